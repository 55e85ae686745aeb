package lang_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/lang"
)

func TestDetect(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, file, source, want string }{
		{"python", "a/b.py", "print(1)", "python"},
		{"upper case", "B.PY", "", "python"},
		{"javascript", "b.mjs", "", "javascript"},
		{"typescript", "b.tsx", "", "typescript"},
		{"bash", "b.sh", "echo", "bash"},
		{"a shell named in the first line", "b.sh", "#!/bin/sh\necho", "sh"},
		{"env", "tool", "#!/usr/bin/env python3\n", "python"},
		{"env with options", "tool", "#!/usr/bin/env -S A=1 node --x\n", "javascript"},
		{"a version", "tool", "#!/usr/bin/python3.11\n", "python"},
		{"the first line wins over a foreign extension", "b.py", "#!/bin/bash\n", "bash"},
		{"TypeScript run by node stays TypeScript", "b.ts", "#!/usr/bin/env node\n", "typescript"},
		{"unknown interpreter, known extension", "b.py", "#!/opt/odd\n", "python"},
		{"crlf", "tool", "#!/bin/sh\r\n", "sh"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := lang.Detect(tc.file, []byte(tc.source))
			if err != nil || got.Name != tc.want {
				t.Errorf("Detect = %q, %v, want %q", got.Name, err, tc.want)
			}
		})
	}
	for _, tc := range []struct{ name, file, source, want string }{
		{"extension", "b.rb", "", `extension ".rb"`},
		{"nothing", "tool", "text", "--lang"},
		{"compiled", "tool", "\x7fELF\x02", "compiled"},
		{"interpreter", "tool", "#!/usr/bin/perl\n", `"perl"`},
		{"empty first line", "", "#!", "--lang"},
	} {
		t.Run("refuses "+tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := lang.Detect(tc.file, []byte(tc.source))
			if backend.KindOf(err) != backend.ErrInvalid || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want invalid with %q", err, tc.want)
			}
		})
	}
}

func TestByName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"Python3": "python", "ts": "typescript", "node": "javascript", "bash": "bash"} {
		if got, err := lang.ByName(name); err != nil || got.Name != want {
			t.Errorf("ByName(%q) = %q, %v, want %q", name, got.Name, err, want)
		}
	}
	if _, err := lang.ByName("cobol"); err == nil || !strings.Contains(err.Error(), "python, javascript") {
		t.Errorf("error %v does not list the known ones", err)
	}
}

func TestPrepare_namesTheFile(t *testing.T) {
	t.Parallel()
	py, _ := lang.ByName("python")
	for file, want := range map[string]string{
		"": "main.py", "x/sort.py": "sort.py", "-c.py": "main.py", "a b.py": "main.py", ".hidden.py": "main.py",
		"tool": "tool", strings.Repeat("a", 200) + ".py": "main.py", "a\x1bb.py": "main.py",
	} {
		p, err := lang.Prepare(py, file, []byte("x"))
		if err != nil || p.Name != want {
			t.Errorf("Prepare(%q).Name = %q, %v, want %q", file, p.Name, err, want)
		}
	}
	p, _ := lang.Prepare(py, "s.py", nil)
	if d := cmp.Diff([]string{"python3", "-u", "s.py", "--x"}, p.Args("s.py", "--x")); d != "" {
		t.Error(d)
	}
}

func TestPrepare_typescript(t *testing.T) {
	t.Parallel()
	ts, _ := lang.ByName("typescript")
	for _, tc := range []struct{ name, file, source, want, contains string }{
		{"script", "a.ts", "const x: number = 1; enum E { A } console.log(x, E.A)", "a.cjs", "const x = 1"},
		{"imports", "a.ts", "import fs from 'fs'; console.log(fs.readdirSync('.') as string[])", "a.cjs", "require("},
		{"top-level await", "a.ts", "const x: number = await Promise.resolve(1); console.log(x)", "a.mjs", "await Promise"},
		{"import.meta", "a.ts", "console.log(import.meta.url as string)", "a.mjs", "import.meta.url"},
		{"module by extension", "a.mts", "export const x: number = 1", "a.mjs", "export"},
		{"typed in", "", "let s: string = 'é'; console.log(s)", "main.cjs", "é"},
		{"jsx", "a.tsx", "const e = <b>hi</b>", "a.cjs", "createElement"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p, err := lang.Prepare(ts, tc.file, []byte(tc.source))
			if err != nil {
				t.Fatal(err)
			}
			if p.Name != tc.want || !strings.Contains(string(p.Source), tc.contains) {
				t.Errorf("name %q, source:\n%s\nwant name %q, source with %q", p.Name, p.Source, tc.want, tc.contains)
			}
			if strings.Contains(string(p.Source), "sourceMappingURL") {
				t.Error("a source map stands in the output")
			}
		})
	}
	_, err := lang.Prepare(ts, "dir/bad.ts", []byte("const a = 1\nconst = 3\n"))
	if backend.KindOf(err) != backend.ErrInvalid || !strings.Contains(err.Error(), "dir/bad.ts:2:7: ") ||
		!strings.Contains(err.Error(), "const = 3") {
		t.Errorf("error %v does not name the place and line", err)
	}
}
