package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	t.Parallel()
	known := filepath.Join(t.TempDir(), "known")
	if err := os.WriteFile(known, []byte("# a comment\n\nsubprocess TestB\tneeds root\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const pkg = `"Package":"github.com/glovebox-dev/glovebox/subprocess"`
	output := func(test, text string) string {
		return `{"Action":"output",` + pkg + `,"Test":"` + test + `","Output":"` + text + `\n"}` + "\n"
	}
	end := func(action, test string) string {
		return `{"Action":"` + action + `",` + pkg + `,"Test":"` + test + `"}` + "\n"
	}
	for _, tc := range []struct {
		name, in string
		ok       bool
		want     []string
		not      string
	}{
		{"a pass says nothing", output("TestA", "noise") + end("pass", "TestA") + end("pass", ""), true, []string{"ok  \t", "1 tests passed"}, "noise"},
		{"a known skip", output("TestB", "x.go:1: needs root here") + end("skip", "TestB") + end("pass", ""), true, []string{"skip\tsubprocess TestB: x.go:1: needs root here\n", "1 skipped (0"}, "(unknown)"},
		{"another reason", output("TestB", "x.go:1: no time") + end("skip", "TestB") + end("pass", ""), false, []string{"(unknown)"}, ""},
		{"another test", output("TestBig", "needs root") + end("skip", "TestBig") + end("pass", ""), false, []string{"1 of them unknown"}, ""},
		{"a failure says why", output("TestA", "because") + end("fail", "TestA") + end("fail", ""), false, []string{"because", "FAIL\t", "1 failed"}, ""},
		{"a crash", output("TestA", "half-way") + output("", "panic: no") + end("fail", ""), false, []string{"half-way", "panic: no", "FAIL\t"}, ""},
		{"no build", `{"ImportPath":"x","Action":"build-output","Output":"undefined: y\n"}` + "\n" + end("fail", ""), false, []string{"undefined: y"}, ""},
		{"what is no event", "go: no such package\n" + end("pass", ""), true, []string{"go: no such package"}, ""},
	} {
		var out strings.Builder
		ok, err := run(known, strings.NewReader(tc.in), &out)
		if err != nil || ok != tc.ok || tc.not != "" && strings.Contains(out.String(), tc.not) {
			t.Errorf("%s: %t, %v\n%s", tc.name, ok, err, out.String())
		}
		for _, want := range tc.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: no %q in %s", tc.name, want, out.String())
			}
		}
	}
}

func TestParseSkips_refuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"no tab", "a(\tb", "a\tb("} {
		if _, err := parseSkips(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}
