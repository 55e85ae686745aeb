package conformance

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func fileCases() []Case {
	sh := needs(shell())
	return []Case{
		{ID: "FS-01", Area: Files, Title: "what is written is read, byte for byte", Needs: sh, Run: roundTrip},
		{ID: "FS-02", Area: Files, Title: "a file of 32 MiB goes in and comes back", Needs: sh, Run: largeFile},
		{ID: "FS-03", Area: Files, Title: "an empty file is a file", Needs: sh, Run: emptyFile},
		{ID: "FS-04", Area: Files, Title: "stat tells name, size, mode, time, owner and path", Needs: sh, Run: stat},
		{ID: "FS-05", Area: Files, Title: "a list is sorted, complete and not recursive", Needs: sh, Run: list},
		{ID: "FS-06", Area: Files, Title: "two thousand entries are listed", Needs: sh, Run: longList},
		{ID: "FS-07", Area: Files, Title: "write makes missing parents, and replaces what is there", Needs: sh, Run: writeReplaces},
		{ID: "FS-08", Area: Files, Title: "mkdir makes parents, and is fine with what is there", Needs: sh, Run: mkdir},
		{ID: "FS-09", Area: Files, Title: "rename moves files and directories, and replaces a file", Needs: sh, Run: rename},
		{ID: "FS-10", Area: Files, Title: "remove takes all below, and is fine with what is absent", Needs: sh, Run: remove},
		{ID: "FS-11", Area: Files, Title: "permissions are what was asked for", Needs: sh, Run: permissions},
		{ID: "FS-12", Area: Files, Title: "commands and files see the same", Needs: sh, Run: sameFiles},
		{ID: "FS-13", Area: Files, Title: "names with spaces, quotes, line ends and other letters are names", Needs: sh, Run: oddNames},
		{ID: "FS-14", Area: Files, Title: "what is written belongs to the user", Needs: sh, Run: ownership},
		{ID: "FS-15", Area: Files, Title: "removing a link leaves what it points to", Needs: sh, Run: removeLink},
		{ID: "FS-16", Area: Files, Title: "stat and list tell a symbolic link and its target", Needs: sh, Run: links},
		{ID: "FS-18", Area: Files, Title: "mkdir gives the mode that was asked for", Needs: sh, Run: mkdirMode},
		{ID: "FS-19", Area: Files, Title: "stat describes what a link points to", Needs: sh, Run: statFollows},
		{ID: "FS-20", Area: Files, Title: "a link's target is where it leads", Needs: sh, Run: linkTarget},
		{ID: "FS-17", Area: Files, Title: "absolute names work", Needs: append(sh, feature(backend.FeaturePrivateRoot)), Run: absoluteNames},
	}
}

func roundTrip(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	data := pattern(3<<20 + 17)
	t.write(ctx, sb, "data", string(data))
	if got := t.read(ctx, sb, "data"); got != string(data) {
		t.Errorf("%d bytes, or others", len(got))
	}
}

func largeFile(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	data := pattern(32 << 20)
	if err := sb.Files().Write(ctx, "large", bytes.NewReader(data), 0); err != nil {
		t.Fatalf("%v", err)
	}
	if got := t.read(ctx, sb, "large"); got != string(data) {
		t.Errorf("%d bytes, or others", len(got))
	}
	if got := t.good(t.sh(ctx, sb, "wc -c <large")); strings.TrimSpace(got) != fmt.Sprint(len(data)) {
		t.Errorf("inside %q", got)
	}
}

func emptyFile(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.write(ctx, sb, "empty", "")
	if got := t.read(ctx, sb, "empty"); got != "" {
		t.Errorf("%q", got)
	}
	t.good(t.sh(ctx, sb, "test -f empty && ! test -s empty"))
}

func stat(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	if err := backend.WriteFile(ctx, sb.Files(), "d/file", []byte("12345"), 0o640); err != nil {
		t.Fatalf("%v", err)
	}
	st, err := sb.Files().Stat(ctx, "d/file")
	if err != nil {
		t.Fatalf("%v", err)
	}
	if st.Name() != "file" || st.Size() != 5 || st.Mode() != 0o640 || st.IsDir() || t.now().Sub(st.ModTime()).Abs() > 2*time.Minute {
		t.Errorf("%s %d %v %v", st.Name(), st.Size(), st.Mode(), st.ModTime())
	}
	attr, ok := st.Sys().(*backend.FileAttr)
	if !ok || attr.Owner == "" || !strings.HasSuffix(attr.Path, "/d/file") || attr.Symlink || attr.LinkTarget != "" {
		t.Errorf("%+v", st.Sys())
	}
	if st, err = sb.Files().Stat(ctx, "d"); err != nil || !st.IsDir() || !st.Mode().IsDir() {
		t.Errorf("%v %v", st, err)
	}
}

func baseNames(infos []fs.FileInfo) (out []string) {
	for _, i := range infos {
		out = append(out, i.Name())
	}
	return out
}

func list(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.good(t.sh(ctx, sb, "mkdir -p d/sub/deep; cd d; touch b a .hidden Z 10 9 sub/inner"))
	infos, err := sb.Files().List(ctx, "d")
	if want := []string{".hidden", "10", "9", "Z", "a", "b", "sub"}; err != nil || !slices.Equal(baseNames(infos), want) {
		t.Errorf("%q, %v", baseNames(infos), err)
	}
	for _, i := range infos {
		if i.IsDir() != (i.Name() == "sub") {
			t.Errorf("%s: %v", i.Name(), i.Mode())
		}
	}
	if infos, err = sb.Files().List(ctx, "d/sub/deep"); err != nil || len(infos) != 0 {
		t.Errorf("an empty one: %q, %v", baseNames(infos), err)
	}
}

func longList(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.good(t.sh(ctx, sb, "mkdir many; cd many; i=0; while test $i -lt 2000; do : >file$i; i=$((i+1)); done"))
	infos, err := sb.Files().List(ctx, "many")
	if err != nil || len(infos) != 2000 {
		t.Errorf("%d entries, %v", len(infos), err)
	}
}

func writeReplaces(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	for _, data := range []string{"long, long content", "short", "", "again"} {
		t.write(ctx, sb, "a/b/c/file", data)
		if got := t.read(ctx, sb, "a/b/c/file"); got != data {
			t.Errorf("%q, want %q", got, data)
		}
	}
	if infos, err := sb.Files().List(ctx, "a/b/c"); err != nil || len(infos) != 1 {
		t.Errorf("beside it: %q, %v", baseNames(infos), err)
	}
}

func mkdir(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	for range 2 {
		if err := sb.Files().Mkdir(ctx, "a/b/c", 0o700); err != nil {
			t.Errorf("%v", err)
		}
	}
	t.good(t.sh(ctx, sb, "echo x >a/b/c/file"))
}

func mkdirMode(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	for perm, want := range map[fs.FileMode]fs.FileMode{0: 0o755, 0o700: 0o700, 0o750: 0o750} {
		name := fmt.Sprintf("d%o", perm)
		if err := sb.Files().Mkdir(ctx, name, perm); err != nil {
			t.Errorf("%v", err)
		}
		if st, err := sb.Files().Stat(ctx, name); err != nil || st.Mode() != fs.ModeDir|want {
			t.Errorf("%o: %v, %v", perm, st.Mode(), err)
		}
	}
}

func rename(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	files := sb.Files()
	t.write(ctx, sb, "from", "from")
	t.write(ctx, sb, "to", "to")
	t.write(ctx, sb, "dir/inner", "inner")
	for _, err := range []error{files.Rename(ctx, "from", "to"), files.Rename(ctx, "dir", "moved"), files.Rename(ctx, "to", "moved/to")} {
		if err != nil {
			t.Errorf("%v", err)
		}
	}
	if t.read(ctx, sb, "moved/to") != "from" || t.read(ctx, sb, "moved/inner") != "inner" {
		t.Errorf("other content")
	}
	if infos, err := files.List(ctx, "."); err != nil || !slices.Contains(baseNames(infos), "moved") || slices.Contains(baseNames(infos), "from") ||
		slices.Contains(baseNames(infos), "dir") {
		t.Errorf("%q, %v", baseNames(infos), err)
	}
}

func remove(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.good(t.sh(ctx, sb, "mkdir -p d/e/f; touch d/1 d/e/2 d/e/f/3 stays; chmod 500 d/e/f"))
	t.good(t.sh(ctx, sb, "chmod 700 d/e/f"))
	for range 2 {
		if err := sb.Files().Remove(ctx, "d"); err != nil {
			t.Errorf("%v", err)
		}
	}
	if err := sb.Files().Remove(ctx, "never/there"); err != nil {
		t.Errorf("%v", err)
	}
	t.good(t.sh(ctx, sb, "test ! -e d && test -e stays"))
}

func permissions(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	for perm, want := range map[fs.FileMode]string{0: "644", 0o600: "600", 0o755: "755", 0o444: "444"} {
		name := fmt.Sprintf("f%o", perm)
		if err := backend.WriteFile(ctx, sb.Files(), name, []byte("#!/bin/sh\necho ran\n"), perm); err != nil {
			t.Fatalf("%v", err)
		}
		if got := strings.TrimSpace(t.good(t.sh(ctx, sb, "stat -c %a "+name))); got != want {
			t.Errorf("%o: %s", perm, got)
		}
	}
	if got := t.good(t.exec(ctx, sb, "./f755")); got != "ran\n" {
		t.Errorf("%q", got)
	}
}

func sameFiles(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.write(ctx, sb, "given", "given\n")
	if got := t.good(t.sh(ctx, sb, `cat given "$HOME/given"; echo made >made; mv given moved`)); got != "given\ngiven\n" {
		t.Errorf("%q", got)
	}
	if t.read(ctx, sb, "made") != "made\n" || t.read(ctx, sb, "moved") != "given\n" {
		t.Errorf("other content")
	}
}

func oddNames(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	odd := []string{
		" ", "a b", "line\nline", "-rf", "--", "'\"`", "$HOME", "*", "ünïcödé ☃", "%2e%2e", "a\tb", "~", "..hidden", "...", "\x7f",
		"#", "?q=1&x", "\x1b[31m", strings.Repeat("n", 255), ".",
	}
	for _, name := range odd {
		if name == "." {
			continue
		}
		if err := backend.WriteFile(ctx, sb.Files(), "odd/"+name, []byte(name), 0); err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if got := t.read(ctx, sb, "odd/"+name); got != name {
			t.Errorf("%q has %q", name, got)
		}
	}
	infos, err := sb.Files().List(ctx, "odd")
	if err != nil {
		t.Fatalf("%v", err)
	}
	want := slices.Sorted(slices.Values(odd[:len(odd)-1]))
	if !slices.Equal(baseNames(infos), want) {
		t.Errorf("%q, want %q", baseNames(infos), want)
	}
	if got := t.good(t.sh(ctx, sb, "cd odd && ls -A | wc -l")); strings.TrimSpace(got) != fmt.Sprint(len(want)+1) { // one has a line end
		t.Errorf("inside there are %q", got)
	}
	if err := sb.Files().Remove(ctx, "odd"); err != nil {
		t.Errorf("%v", err)
	}
}

func ownership(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.write(ctx, sb, "d/file", "x")
	t.good(t.sh(ctx, sb, `test -O d && test -O d/file && echo more >>d/file && rm -r d`))
}

func removeLink(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.good(t.sh(ctx, sb, "mkdir dir tree; echo x >dir/file; ln -s dir link; ln -s ../dir tree/link; ln -s dir/file flink"))
	for _, name := range []string{"link", "tree", "flink"} {
		if err := sb.Files().Remove(ctx, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := t.good(t.sh(ctx, sb, "cat dir/file; ls")); got != "x\ndir\n" {
		t.Errorf("%q", got)
	}
}

func links(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.good(t.sh(ctx, sb, "mkdir d; echo 12345 >d/file; ln -s file d/link; ln -s missing d/dangling"))
	st, err := sb.Files().Stat(ctx, "d/link")
	if err != nil {
		t.Fatalf("%v", err)
	}
	if attr, ok := st.Sys().(*backend.FileAttr); !ok || !attr.Symlink || attr.LinkTarget == "" {
		t.Errorf("%+v", st.Sys())
	}
	if got := t.read(ctx, sb, "d/link"); got != "12345\n" {
		t.Errorf("%q", got)
	}
	infos, err := sb.Files().List(ctx, "d")
	if err != nil || len(infos) != 3 {
		t.Fatalf("%q, %v", baseNames(infos), err)
	}
	for _, i := range infos {
		if attr, ok := i.Sys().(*backend.FileAttr); !ok || attr.Symlink == (i.Name() == "file") {
			t.Errorf("%s: %+v", i.Name(), i.Sys())
		}
	}
}

func statFollows(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.good(t.sh(ctx, sb, "mkdir d; echo 12345 >d/file; ln -s file d/link; ln -s d dlink"))
	if st, err := sb.Files().Stat(ctx, "d/link"); err != nil || st.Size() != 6 || !st.Mode().IsRegular() {
		t.Errorf("a link to a file of 6 bytes: %d bytes, %v, %v", st.Size(), st.Mode(), err)
	}
	if st, err := sb.Files().Stat(ctx, "dlink"); err != nil || !st.IsDir() {
		t.Errorf("a link to a directory: %v, %v", st.Mode(), err)
	}
}

func linkTarget(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.good(t.sh(ctx, sb, "mkdir d; echo x >d/file; ln -s file d/link"))
	st, err := sb.Files().Stat(ctx, "d/link")
	if err != nil {
		t.Fatalf("%v", err)
	}
	if attr, ok := st.Sys().(*backend.FileAttr); !ok || !strings.HasSuffix(attr.LinkTarget, "/d/file") {
		t.Errorf("%+v", st.Sys())
	}
}

func absoluteNames(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.write(ctx, sb, "/tmp/there", "there\n")
	if got := t.good(t.sh(ctx, sb, "cat /tmp/there; echo home >~/here")); got != "there\n" {
		t.Errorf("%q", got)
	}
	if got := t.read(ctx, sb, backend.DefaultHome+"/here"); got != "home\n" {
		t.Errorf("%q", got)
	}
}
