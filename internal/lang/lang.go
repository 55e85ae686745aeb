// Package lang knows the languages that programs are given in: how one is
// recognised, what runs it, and what to do when that is missing.
package lang

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
)

// Language is one way to write a program.
type Language struct {
	Name        string
	Aliases     []string
	Extensions  []string // with their dot, the first is given to programs without a name
	Interpreter []string // the program that runs it, and its options
	// Package is the Debian package that holds the interpreter.
	Package string
	// shebangs are the interpreters' names that a first line may give.
	shebangs []string
}

// All lists the languages.
func All() []Language {
	return []Language{
		{
			Name: "python", Aliases: []string{"python3", "py"}, Extensions: []string{".py"},
			Interpreter: []string{"python3", "-u"}, Package: "python3", shebangs: []string{"python3", "python"},
		},
		{
			Name: "javascript", Aliases: []string{"js", "node", "nodejs"}, Extensions: []string{".js", ".mjs", ".cjs"},
			Interpreter: []string{"node"}, Package: "nodejs", shebangs: []string{"node", "nodejs"},
		},
		{
			Name: "typescript", Aliases: []string{"ts"}, Extensions: []string{".ts", ".tsx", ".mts", ".cts"},
			Interpreter: []string{"node"}, Package: "nodejs", shebangs: []string{"ts-node", "tsx"},
		},
		{
			Name: "bash", Extensions: []string{".sh", ".bash"},
			Interpreter: []string{"bash"}, Package: "bash", shebangs: []string{"bash"},
		},
		{
			Name: "sh", Aliases: []string{"shell"}, Interpreter: []string{"sh"},
			Package: "dash", shebangs: []string{"sh", "dash"},
		},
	}
}

// Names lists the languages' names.
func Names() []string {
	var out []string
	for _, l := range All() {
		out = append(out, l.Name)
	}
	return out
}

// ByName finds a language by its name or alias; the error suggests one.
func ByName(name string) (Language, error) {
	n := strings.ToLower(name)
	for _, l := range All() {
		if l.Name == n || slices.Contains(l.Aliases, n) {
			return l, nil
		}
	}
	return Language{}, &backend.Error{
		Op: "language", Kind: backend.ErrInvalid,
		Err: fmt.Errorf("unknown language %q, known are %s", name, strings.Join(Names(), ", ")),
	}
}

// Detect tells what a program is written in: from its first line when that
// names an interpreter, else from its file's extension. file may be empty.
func Detect(file string, source []byte) (Language, error) {
	interpreter := shebang(source)
	ext := strings.ToLower(filepath.Ext(file))
	byExt := slices.IndexFunc(All(), func(l Language) bool { return ext != "" && slices.Contains(l.Extensions, ext) })
	if interpreter != "" {
		byLine := slices.IndexFunc(All(), func(l Language) bool { return slices.Contains(l.shebangs, interpreter) })
		// A TypeScript file with node in its first line is still TypeScript.
		if byLine >= 0 && (byExt < 0 || All()[byExt].Interpreter[0] != All()[byLine].Interpreter[0]) {
			return All()[byLine], nil
		}
		if byLine < 0 && byExt < 0 {
			return Language{}, &backend.Error{
				Op: "language", Kind: backend.ErrInvalid,
				Err: fmt.Errorf("the first line names %q, which is not among %s", interpreter, strings.Join(Names(), ", ")),
				Fix: "choose one with --lang, or bring the file with --file and start it with: run -- COMMAND",
			}
		}
	}
	if byExt >= 0 {
		return All()[byExt], nil
	}
	err := &backend.Error{Op: "language", Kind: backend.ErrInvalid, Fix: "choose one with --lang: " + strings.Join(Names(), ", ")}
	switch {
	case bytes.HasPrefix(source, []byte("\x7fELF")):
		err.Err = errors.New("this is a compiled program")
		err.Fix = "bring it in with --file and start it with: run -- ./NAME"
	case ext != "":
		err.Err = fmt.Errorf("no language is known by the extension %q", ext)
	default:
		err.Err = errors.New("there is neither an extension nor a first line that tells")
	}
	return Language{}, err
}

// shebang is the base name of the interpreter that the first line names, with
// env and version suffixes taken off.
func shebang(source []byte) string {
	line, ok := bytes.CutPrefix(source, []byte("#!"))
	if !ok {
		return ""
	}
	if i := bytes.IndexByte(line, '\n'); i >= 0 {
		line = line[:i]
	}
	fields := strings.Fields(string(line[:min(len(line), 512)]))
	if len(fields) > 0 && filepath.Base(fields[0]) == "env" {
		fields = fields[1:]
		for len(fields) > 0 && (strings.HasPrefix(fields[0], "-") || strings.Contains(fields[0], "=")) {
			fields = fields[1:]
		}
	}
	if len(fields) == 0 {
		return ""
	}
	name := filepath.Base(fields[0])
	if strings.HasPrefix(name, "python3.") {
		return "python3"
	}
	return name
}
