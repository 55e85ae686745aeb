package archtest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/glovebox-dev/glovebox"

// pkg is what `go list -json` says of a package.
type pkg struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Module     *struct{ Path string }
}

func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Standard,Imports,Module"}, args...)...)
	cmd.Dir = root(t)
	cmd.Env = append(cmd.Environ(), "GOOS=linux")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return pkgs
		}
		if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// below tells whether path is dir or lies in it.
func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}

// ruleFor is the rule with the longest part that covers path.
func ruleFor(path string) (best rule, ok bool) {
	for _, r := range rules() {
		if below(path, r.part) && len(r.part) > len(best.part) {
			best, ok = r, true
		}
	}
	return best, ok
}

func TestImports(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, p := range list(t, "./...") {
		path := strings.TrimPrefix(p.ImportPath, module+"/")
		if below(path, "examples") {
			continue
		}
		r, ok := ruleFor(path)
		if !ok {
			t.Errorf("%s has no rule", path)
			continue
		}
		used[r.part] = true
		for _, imported := range p.Imports {
			own, isOwn := strings.CutPrefix(imported, module+"/")
			allowed := r.libraries
			switch {
			case isOwn:
				if target, _ := ruleFor(own); target.part == r.part {
					continue // itself
				}
				allowed = r.own
			case !strings.Contains(strings.Split(imported, "/")[0], "."):
				continue // the standard library
			default:
				own = imported
			}
			i := slices.IndexFunc(allowed, func(a string) bool { return below(own, a) })
			if i < 0 {
				t.Errorf("%s imports %s: %s", path, own, r.why)
				continue
			}
			used[r.part+" → "+allowed[i]] = true
		}
	}
	for _, r := range rules() {
		if !used[r.part] {
			t.Errorf("the rule for %s is stale: there is no such package", r.part)
			continue
		}
		for _, a := range slices.Concat(r.own, r.libraries) {
			if !used[r.part+" → "+a] {
				t.Errorf("the rule for %s is stale: nothing imports %s any more", r.part, a)
			}
		}
	}
}

func TestAgent_isMadeOfWhatIsReviewed(t *testing.T) {
	t.Parallel()
	modules := map[string]bool{}
	for _, p := range list(t, "-deps", "./cmd/glovebox-agent") {
		if !p.Standard && p.Module != nil && p.Module.Path != module {
			modules[p.Module.Path] = true
		}
	}
	var got []string
	for m := range modules {
		got = append(got, m)
	}
	slices.Sort(got)
	if diff := cmp.Diff(agentModules(), got); diff != "" {
		t.Error(diff)
	}
}
