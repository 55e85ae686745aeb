//go:build linux && (amd64 || arm64)

package seccomp

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// decoded is what Profile gives for p, read back strictly.
func decoded(t *testing.T, p Policy) profile {
	t.Helper()
	data, err := Profile(p)
	if err != nil {
		t.Fatal(err)
	}
	var out profile
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// verdict is what a runtime makes of a call: the entry that matches it, and
// otherwise the default. No two may match with different results.
func (p profile) verdict(t *testing.T, name string, args [6]uint64) uint32 {
	t.Helper()
	results := map[uint32]bool{}
	for _, c := range p.Syscalls {
		if !slices.Contains(c.Names, name) || slices.ContainsFunc(c.Args, func(a profileArg) bool {
			return args[a.Index]&a.Value != a.ValueTwo
		}) {
			continue
		}
		if c.Action == actAllow {
			results[retAllow] = true
		} else {
			results[retErrno|*c.ErrnoRet] = true
		}
	}
	switch len(results) {
	case 0:
		return retErrno | p.DefaultErrnoRet
	case 1:
		for r := range results {
			return r
		}
	}
	t.Errorf("%s%v: entries contradict each other: %v", name, args, results)
	return 0
}

// interesting are values of arguments that some rule may look at.
func interesting() []uint64 {
	vals := []uint64{
		0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 16, 17, 38, 40, 44, 0x10, 0x12, 0x14, 0x20000, 0x20008, 0x40000, 0xffffffff, 1 << 32, 1<<32 | 1, 1<<32 | 40,
		unix.TIOCSTI, unix.TIOCLINUX, unix.TCGETS, 1<<32 | unix.TIOCSTI, 1<<63 | unix.TIOCLINUX, ^uint64(0),
		newNamespaces, uint64(unix.SIGCHLD), pidfdThread,
	}
	for bit := range 64 {
		vals = append(vals, 1<<bit, 1<<bit|uint64(unix.SIGCHLD), unix.TIOCSTI^1<<bit, unix.TIOCLINUX^1<<bit)
	}
	return vals
}

// TestProfile_saysWhatTheFilterSays compares both for every call that exists
// and every value that a rule could look at.
func TestProfile_saysWhatTheFilterSays(t *testing.T) {
	t.Parallel()
	table, err := names()
	if err != nil {
		t.Fatal(err)
	}
	for _, policy := range []Policy{{}, {GuardInit: true}, {LeaveClone3: true}, {NoIPC: true}} {
		prog, err := Filter(policy)
		if err != nil {
			t.Fatal(err)
		}
		prof := decoded(t, policy)
		refusals := 0
		tested := map[uint32]bool{}
		for _, r := range policyRules(policy) {
			tested[r.nr] = r.when != nil
		}
		for nr, name := range table {
			vals := []uint64{0, 1, ^uint64(0)}
			if tested[nr] {
				vals = interesting()
			}
			for _, arg := range []int{0, 1} {
				for _, v := range vals {
					c := call{arch: auditArch, nr: nr}
					c.args[arg] = v
					filter, profile := verdict(t, prog, c), prof.verdict(t, name, c.args)
					if filter != retAllow {
						refusals++
					}
					if filter != profile && (filter != retAllow || !slices.Contains(unneeded, name)) {
						t.Errorf("%+v: %s%v: the filter says %#x, the profile %#x", policy, name, c.args, filter, profile)
					}
				}
			}
		}
		if refusals < 1000 {
			t.Errorf("%+v: only %d refusals were compared", policy, refusals)
		}
	}
}

// TestProfile_refusesWhatNobodyListed: a call without a name in the profile is
// one that the sandbox's kernel does not have.
func TestProfile_refusesWhatNobodyListed(t *testing.T) {
	t.Parallel()
	prof := decoded(t, Policy{})
	enosys := errno(unix.ENOSYS)
	if got := prof.verdict(t, "a_call_of_2040", [6]uint64{}); got != enosys {
		t.Errorf("an unknown call: %#x", got)
	}
	if got := prof.verdict(t, "read", [6]uint64{}); got != retAllow {
		t.Errorf("read: %#x", got)
	}
	if prof.DefaultAction != actErrno || len(prof.Architectures) != 1 {
		t.Errorf("default %s, architectures %q", prof.DefaultAction, prof.Architectures)
	}
}

// TestNames_areTheKernels: the table has each number that x/sys knows.
func TestNames_areTheKernels(t *testing.T) {
	t.Parallel()
	table, err := names()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil || len(strings.TrimSpace(string(dir))) == 0 {
		t.Skipf("the source of x/sys is not here: %q, %v", dir, err)
	}
	path := filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+runtime.GOARCH+".go")
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		nr, err := strconv.ParseUint(spec.Values[0].(*ast.BasicLit).Value, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		if nr > maxNr {
			return true
		}
		compared++
		if want := strings.ToLower(strings.TrimPrefix(spec.Names[0].Name, "SYS_")); table[uint32(nr)] != want {
			t.Errorf("%d is %q, in x/sys %q", nr, table[uint32(nr)], want)
		}
		return true
	})
	if compared < 300 || compared != len(table) {
		t.Errorf("%d names in x/sys, %d in the table", compared, len(table))
	}
}
