package archtest_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	maxFile     = 600 // lines
	maxFunction = 60
)

type source struct {
	path string // relative to the module
	fset *token.FileSet
	file *ast.File
	data []byte
}

func (s source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.path, s.fset.Position(n.Pos()).Line)
}

func (s source) test() bool { return strings.HasSuffix(s.path, "_test.go") }

// lines is how many lines a node has.
func (s source) lines(n ast.Node) int {
	return s.fset.Position(n.End()).Line - s.fset.Position(n.Pos()).Line + 1
}

// sources parses every file that people wrote.
func sources(t *testing.T) (all []source) {
	t.Helper()
	generated := regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	dir := root(t)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != dir && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil || generated.Match(data) {
			return err
		}
		s := source{fset: token.NewFileSet(), data: data}
		if s.path, err = filepath.Rel(dir, path); err != nil {
			return err
		}
		s.file, err = parser.ParseFile(s.fset, path, data, parser.ParseComments|parser.SkipObjectResolution)
		all = append(all, s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("only %d files found", len(all))
	}
	return all
}

func TestSources_size(t *testing.T) {
	t.Parallel()
	exceptions := longFunctions()
	for _, s := range sources(t) {
		if n := bytes.Count(s.data, []byte("\n")); n > maxFile {
			t.Errorf("%s has %d lines, more than %d", s.path, n, maxFile)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || s.test() || s.lines(f) <= maxFunction+2 {
				continue
			}
			name := s.path + " " + f.Name.Name
			if exceptions[name] == "" {
				t.Errorf("%s: %s has %d lines, more than %d", s.at(f), f.Name.Name, s.lines(f)-2, maxFunction)
			}
			delete(exceptions, name)
		}
	}
	for name := range exceptions {
		t.Errorf("the exception for %s is stale: it is short, or gone", name)
	}
}

func TestSources_noInitAndNoMutableGlobals(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.Name == "init" && d.Recv == nil {
					t.Errorf("%s: an init function", s.at(d))
				}
			case *ast.GenDecl:
				if d.Tok == token.VAR && !s.test() {
					for _, spec := range d.Specs {
						s.checkGlobal(t, d, spec.(*ast.ValueSpec))
					}
				}
			}
		}
	}
}

// checkGlobal accepts assertions of interfaces, compiled expressions, sentinel
// errors, embedded files, and what says why it is there.
func (s source) checkGlobal(t *testing.T, d *ast.GenDecl, v *ast.ValueSpec) {
	t.Helper()
	const reason = "nolint:gochecknoglobals //"
	if v.Names[0].Name == "_" || strings.Contains(s.line(d), reason) || strings.Contains(s.line(v), reason) {
		return
	}
	for _, doc := range []*ast.CommentGroup{d.Doc, v.Doc} {
		if doc != nil && strings.HasPrefix(doc.List[len(doc.List)-1].Text, "//go:embed ") {
			return
		}
	}
	for _, value := range v.Values {
		if call, ok := value.(*ast.CallExpr); ok {
			switch selector(call.Fun) {
			case "regexp.MustCompile", "errors.New", "fmt.Errorf":
				return
			}
		}
	}
	t.Errorf("%s: a package-level variable, %s, without a reason", s.at(v), v.Names[0].Name)
}

// line is the text of a node's first line.
func (s source) line(n ast.Node) string {
	return string(bytes.Split(s.data, []byte("\n"))[s.fset.Position(n.Pos()).Line-1])
}

// selector is "a.b" for that expression.
func selector(e ast.Expr) string {
	if sel, ok := e.(*ast.SelectorExpr); ok {
		if x, ok := sel.X.(*ast.Ident); ok {
			return x.Name + "." + sel.Sel.Name
		}
	}
	return ""
}

// TestOptionalInterfaces_areFoundByAsOnly: an assertion would reach around the
// layers that wrap an executor.
func TestOptionalInterfaces_areFoundByAsOnly(t *testing.T) {
	t.Parallel()
	all := sources(t)
	optional := optionalInterfaces(all)
	if !slices.Contains(optional, "Pauser") || slices.Contains(optional, "Sandbox") {
		t.Fatalf("the optional interfaces are %q", optional)
	}
	is := func(s source, e ast.Expr) bool {
		name := strings.TrimPrefix(selector(e), "backend.")
		if id, ok := e.(*ast.Ident); ok && filepath.Dir(s.path) == "backend" {
			name = id.Name
		}
		return slices.Contains(optional, name)
	}
	for _, s := range all {
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeAssertExpr:
				if n.Type != nil && is(s, n.Type) {
					t.Errorf("%s: an optional interface is asserted; use backend.As", s.at(n))
				}
			case *ast.TypeSwitchStmt:
				for _, c := range n.Body.List {
					if slices.ContainsFunc(c.(*ast.CaseClause).List, func(e ast.Expr) bool { return is(s, e) }) {
						t.Errorf("%s: an optional interface is a case of a type switch; use backend.As", s.at(c))
					}
				}
			}
			return true
		})
	}
}

// optionalInterfaces are the contract's but for the required ones.
func optionalInterfaces(all []source) (names []string) {
	required := []string{"Executor", "Sandbox", "Process", "Filesystem"}
	for _, s := range all {
		if filepath.Dir(s.path) != "backend" || s.test() {
			continue
		}
		for _, d := range s.file.Decls {
			gen, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range gen.Specs {
				ts, ok := spec.(*ast.TypeSpec)
				if !ok || slices.Contains(required, ts.Name.Name) {
					continue
				}
				if _, ok := ts.Type.(*ast.InterfaceType); ok {
					names = append(names, ts.Name.Name)
				}
			}
		}
	}
	return names
}
