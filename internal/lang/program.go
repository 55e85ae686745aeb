package lang

import (
	"path/filepath"
	"strings"
)

// Program is source made ready to run: a file to put into the sandbox's home
// and what to start it with.
type Program struct {
	Language Language
	Name     string // of the file, without directories
	Source   []byte
	// Warnings are for whoever gave the source.
	Warnings []string
}

// Args is the command line for the program when its file is at path.
func (p Program) Args(path string, args ...string) []string {
	out := append([]string{}, p.Language.Interpreter...)
	return append(append(out, path), args...)
}

// Prepare makes source ready. file is where it came from, empty when it was
// typed or piped. TypeScript becomes JavaScript.
func Prepare(l Language, file string, source []byte) (Program, error) {
	p := Program{Language: l, Name: fileName(l, file), Source: source}
	if l.Name == "typescript" {
		return transpile(p, file)
	}
	return p, nil
}

// fileName is the name that the program gets in the sandbox: its own where
// that is a plain one that the interpreter understands, main otherwise.
func fileName(l Language, file string) string {
	ext := ""
	if len(l.Extensions) > 0 {
		ext = l.Extensions[0]
	}
	base := filepath.Base(file)
	if file == "" || len(base) > 100 || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "-") {
		return "main" + ext
	}
	for _, r := range base {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-+", r)) {
			return "main" + ext
		}
	}
	return base
}
