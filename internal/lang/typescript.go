package lang

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/evanw/esbuild/pkg/api"

	"github.com/glovebox-dev/glovebox/backend"
)

// maxMessages bounds how many of the compiler's messages an error quotes.
const maxMessages = 5

// transpile turns p's TypeScript into JavaScript that Node 18 and later run.
// Types are taken away and not checked.
func transpile(p Program, file string) (Program, error) {
	ext := strings.ToLower(filepath.Ext(file))
	name := file
	if name == "" {
		name = p.Name
	}
	var res api.TransformResult
	format := api.FormatCommonJS
	if ext != ".mts" {
		res = transform(p.Source, ext, name, format)
	}
	// CommonJS takes both import and require; what it cannot express is
	// top-level await and import.meta.
	if ext == ".mts" || ext != ".cts" && needsModule(res) {
		format = api.FormatESModule
		res = transform(p.Source, ext, name, format)
	}
	if len(res.Errors) > 0 {
		return p, &backend.Error{Op: "typescript", Kind: backend.ErrInvalid, Err: compileError(res.Errors)}
	}
	for _, w := range res.Warnings {
		if len(p.Warnings) < maxMessages {
			p.Warnings = append(p.Warnings, message(w))
		}
	}
	p.Source = res.Code
	out := ".cjs"
	if format == api.FormatESModule {
		out = ".mjs"
	}
	p.Name = strings.TrimSuffix(p.Name, filepath.Ext(p.Name)) + out
	return p, nil
}

func transform(source []byte, ext, name string, format api.Format) api.TransformResult {
	loader := api.LoaderTS
	if ext == ".tsx" {
		loader = api.LoaderTSX
	}
	return api.Transform(string(source), api.TransformOptions{
		Loader: loader, Format: format, Platform: api.PlatformNode, Target: api.ES2022,
		Sourcefile: name, Sourcemap: api.SourceMapNone, LogLevel: api.LogLevelSilent, Charset: api.CharsetUTF8,
	})
}

func needsModule(res api.TransformResult) bool {
	for _, e := range res.Errors {
		if strings.Contains(e.Text, "Top-level await") {
			return true
		}
	}
	for _, w := range res.Warnings {
		if w.ID == "empty-import-meta" {
			return true
		}
	}
	return false
}

func compileError(messages []api.Message) error {
	lines := make([]string, 0, maxMessages+1)
	for i, m := range messages {
		if i == maxMessages {
			lines = append(lines, fmt.Sprintf("and %d more", len(messages)-i))
			break
		}
		lines = append(lines, message(m))
	}
	return fmt.Errorf("%s", strings.Join(lines, "\n"))
}

// message is one of the compiler's messages with its place and source line.
func message(m api.Message) string {
	l := m.Location
	if l == nil {
		return m.Text
	}
	text := fmt.Sprintf("%s:%d:%d: %s", l.File, l.Line, l.Column+1, m.Text)
	if line := strings.TrimSpace(l.LineText); line != "" && len(line) <= 200 {
		text += "\n    " + line
	}
	return text
}
