package dockerfile_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/internal/image/dockerfile"
)

func sh(text string) []string { return []string{"/bin/sh", "-c", text} }

func TestParse(t *testing.T) {
	const text = `# syntax=docker/dockerfile:1
ARG TAG=12
FROM debian:${TAG} AS main
ARG WHO=world
ENV A=1 B="x y" C=$WHO
ENV OLD the old way
WORKDIR /srv
WORKDIR app
RUN echo one \
    # a comment in between

    && echo two
RUN ["prog", "$A"]
COPY --chown=user:users --chmod=0755 "a b" c* bin/
USER user
ADD f /etc/g
RUN echo ${MISSING:-${A}}
LABEL x=y
EXPOSE 80
ENTRYPOINT ["run"]
CMD ["it", "now"]
`
	got, err := dockerfile.Parse(strings.NewReader(text), map[string]string{"WHO": "you"})
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"A": "1", "B": "x y", "C": "you", "OLD": "the old way"}
	all := map[string]string{"A": "1", "B": "x y", "C": "you", "OLD": "the old way", "WHO": "you"}
	want := dockerfile.File{
		From: "debian:12", Env: env, Dir: "/srv/app", User: "user", Start: []string{"run", "it", "now"},
		Steps: []dockerfile.Step{
			{Line: 7, Text: "WORKDIR /srv", Env: all, Dir: "/srv"},
			{Line: 8, Text: "WORKDIR app", Env: all, Dir: "/srv/app"},
			{Line: 9, Text: "RUN echo one && echo two", Run: sh("echo one && echo two"), Env: all, Dir: "/srv/app"},
			{Line: 13, Text: `RUN ["prog", "$A"]`, Run: []string{"prog", "$A"}, Env: all, Dir: "/srv/app"},
			{
				Line: 14, Text: `COPY --chown=user:users --chmod=0755 "a b" c* bin/`, Env: all, Dir: "/srv/app",
				Copy: &dockerfile.Copy{Sources: []string{"a b", "c*"}, Dest: "/srv/app/bin/", Owner: "user:users", Mode: 0o755},
			},
			{Line: 16, Text: "ADD f /etc/g", Env: all, Dir: "/srv/app", Copy: &dockerfile.Copy{Sources: []string{"f"}, Dest: "/etc/g"}},
			{Line: 17, Text: "RUN echo ${MISSING:-${A}}", Run: sh("echo ${MISSING:-${A}}"), Env: all, Dir: "/srv/app", User: "user"},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestParse_variables(t *testing.T) {
	for in, want := range map[string]string{
		`$A`: "1", `${A}2`: "12", `\$A`: "$A", `'$A'`: "$A", `"$A b"`: "1 b", `$NO`: "", `${NO:-d}`: "d", `${A:+alt}`: "alt",
		`${NO:+alt}`: "", `${NO:-${A}}`: "1", `a'b"c'd`: `ab"cd`, `$`: "$", `"\n"`: `\n`,
	} {
		f, err := dockerfile.Parse(strings.NewReader("FROM x\nENV A=1\nENV B="+in), nil)
		if err != nil || f.Env["B"] != want {
			t.Errorf("%s: %q, %v, want %q", in, f.Env["B"], err, want)
		}
	}
}

func TestParse_refuses(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", "no FROM"},
		{"RUN x", "line 1: RUN before FROM"},
		{"FROM a\nFROM b", "line 2: a second FROM"},
		{"FROM --platform=x a", "line 1: FROM --platform=x is not supported"},
		{"FROM a\nHEALTHCHECK CMD x", "line 2: HEALTHCHECK is not supported"},
		{"FROM a\nVOLUME /x", "line 2: VOLUME is not supported"},
		{"FROM a\nSHELL [\"x\"]", "line 2: SHELL is not supported"},
		{"FROM a\nONBUILD RUN x", "line 2: ONBUILD is not supported"},
		{"FROM a\n\n# c\nRUN --mount=type=bind x", "line 4: RUN --mount=type=bind is not supported"},
		{"FROM a\nRUN <<EOF\nx\nEOF", "line 2: here-documents"},
		{"FROM a\nCOPY --from=b x y", "line 2: COPY --from is not supported"},
		{"FROM a\nCOPY ../x y", "line 2: \"../x\" leaves the context"},
		{"FROM a\nCOPY a/../../x y", "line 2: \"a/../../x\" leaves the context"},
		{"FROM a\nENV D=../..\nCOPY $D/x y", "line 3: \"../../x\" leaves"},
		{"FROM a\nCOPY x", "line 2: COPY takes"},
		{"FROM a\nADD https://x/y z", "line 2: ADD of an address"},
		{"FROM a\nADD x.tar.gz z", "line 2: ADD would unpack"},
		{"FROM a\nCOPY --chmod=999 x y", "line 2: \"999\" is no mode"},
		{"FROM a\nENV 1=x", "line 2: \"1\" is no variable's name"},
		{"FROM a\nENV A=\"x", "line 2: a quote is not closed"},
		{"FROM a\nENV A=${A", "line 2: a brace is not closed"},
		{"FROM a\nENV A=${A:?x}", "line 2: ${A:?x} is not supported"},
		{"FROM a\nRUN", "line 2: RUN says nothing"},
		{"FROM a\nUSER a b", "line 2: \"a b\" is no user"},
		{"# escape=`\nFROM a", "line 1: another escape character"},
		{"FROM -x", "names no image"},
		{"FROM a\x00", "no text"},
		{strings.Repeat("#\n", 1<<20), "more than 1 MiB"},
		{"FROM a\n" + strings.Repeat("RUN x\n", 501), "line 502: more than 500 steps"},
		{"FROM a\nENV A=xxxxxxxxxxxxxxxx\n" + strings.Repeat("ENV A=$A$A$A$A\n", 20), "too long"},
	} {
		_, err := dockerfile.Parse(strings.NewReader(test.text), nil)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.60q: error %v, want %q", test.text, err, test.want)
		}
	}
	if _, err := dockerfile.Parse(strings.NewReader("FROM a"), map[string]string{"X": "1"}); err == nil {
		t.Error("an argument that no ARG names is accepted")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("FROM a\nENV A=${B:-\"c\"}\nCOPY [\"a\", \"b\"]\nRUN x \\\n y")
	f.Fuzz(func(_ *testing.T, text string) {
		file, err := dockerfile.Parse(strings.NewReader(text), nil)
		if err != nil {
			return
		}
		for _, s := range file.Steps {
			if s.Copy == nil {
				continue
			}
			for _, src := range s.Copy.Sources {
				if !filepath.IsLocal(src) {
					panic(src)
				}
			}
		}
	})
}

// files makes a context.
func files(t *testing.T, names map[string]string) *dockerfile.Context {
	t.Helper()
	dir := t.TempDir()
	for name, text := range names {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(text, "-> "); ok {
			err = os.Symlink(to, path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c, err := dockerfile.OpenContext(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func names(t *testing.T, c *dockerfile.Context, cp *dockerfile.Copy) ([]string, error) {
	t.Helper()
	var b bytes.Buffer
	if err := c.WriteTar(&b, cp); err != nil {
		return nil, err
	}
	var out []string
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, h.Name+h.Linkname)
	}
}

func TestContext(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := files(t, map[string]string{
		"a": "1", "b.txt": "2", "d/x": "3", "d/y/z": "4", "node_modules/m": "5", "keep/no": "6", "keep/yes": "7",
		"out": "-> " + secret, "up": "-> " + filepath.Dir(secret), ".dockerignore": "node_modules\nkeep/*\n!keep/yes\n",
	})
	for _, test := range []struct {
		sources []string
		dest    string
		want    []string
	}{
		{[]string{"a"}, "/x", []string{"x"}},
		{[]string{"a"}, "/x/", []string{"x/a"}},
		{[]string{"a", "*.txt"}, "/x/", []string{"x/a", "x/b.txt"}},
		{[]string{"d"}, "/x", []string{"x/", "x/x", "x/y/", "x/y/z"}},
		{[]string{"keep"}, "/", []string{"yes"}},
		{[]string{"out"}, "/x", []string{"x" + secret}},
	} {
		got, err := names(t, c, &dockerfile.Copy{Sources: test.sources, Dest: test.dest})
		if err != nil {
			t.Errorf("%s: %v", test.sources, err)
		}
		if d := cmp.Diff(test.want, got); d != "" {
			t.Errorf("%s to %s: %s", test.sources, test.dest, d)
		}
	}
	all, err := names(t, c, &dockerfile.Copy{Sources: []string{"."}, Dest: "/"})
	if err != nil || strings.Contains(strings.Join(all, " "), "node_modules/m") || !strings.Contains(strings.Join(all, " "), "keep/yes") {
		t.Errorf("the whole context: %q, %v", all, err)
	}
	for _, src := range []string{"nope", "up/secret", "../secret"} {
		if got, err := names(t, c, &dockerfile.Copy{Sources: []string{src}, Dest: "/x"}); err == nil {
			t.Errorf("%s is copied: %q", src, got)
		}
	}
}

func TestHash(t *testing.T) {
	parse := func(text string) dockerfile.File {
		f, err := dockerfile.Parse(strings.NewReader(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	seen := map[string]string{}
	for name, h := range map[string]func() (string, error){
		"one":          func() (string, error) { return dockerfile.Hash("b", parse("FROM a\nRUN x"), nil) },
		"another base": func() (string, error) { return dockerfile.Hash("c", parse("FROM a\nRUN x"), nil) },
		"another step": func() (string, error) { return dockerfile.Hash("b", parse("FROM a\nRUN y"), nil) },
		"environment":  func() (string, error) { return dockerfile.Hash("b", parse("FROM a\nENV A=1\nRUN x"), nil) },
		"user":         func() (string, error) { return dockerfile.Hash("b", parse("FROM a\nUSER u\nRUN x"), nil) },
		"start":        func() (string, error) { return dockerfile.Hash("b", parse("FROM a\nRUN x\nCMD y"), nil) },
		"a file": func() (string, error) {
			return dockerfile.Hash("b", parse("FROM a\nCOPY f /f"), files(t, map[string]string{"f": "1"}))
		},
		"its content": func() (string, error) {
			return dockerfile.Hash("b", parse("FROM a\nCOPY f /f"), files(t, map[string]string{"f": "2"}))
		},
	} {
		sum, err := h()
		again, err2 := h()
		if err != nil || err2 != nil || sum != again {
			t.Errorf("%s: %v, %v, %s, %s", name, err, err2, sum, again)
		}
		if other, ok := seen[sum]; ok {
			t.Errorf("%s and %s have one hash", name, other)
		}
		seen[sum] = name
	}
}
