// Package testenv tells tests what this machine offers, and makes a missing
// backend a failure where it must be there.
package testenv

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// EnvRequire names the environment variable that lists, separated by commas,
// the backends that must be available: tests that would be skipped fail.
const EnvRequire = "GLOVEBOX_TEST_REQUIRE"

// Nobody is the uid and gid of AsNobody.
const Nobody = 65534

// EnvNobody is set in the test binary that AsNobody starts.
const EnvNobody = "GLOVEBOX_TEST_NOBODY"

// Required tells whether EnvRequire lists name.
func Required(name string) bool {
	return slices.ContainsFunc(strings.Split(os.Getenv(EnvRequire), ","), func(s string) bool {
		return strings.TrimSpace(s) == name
	})
}

// Require goes on when unavailable is empty. Otherwise it is why the backend
// called name cannot be used here, and the test is skipped with it, or fails
// when EnvRequire lists name.
func Require(tb testing.TB, name, unavailable string) {
	tb.Helper()
	switch {
	case unavailable == "":
	case Required(name):
		tb.Fatalf("%s is required by %s and is not available: %s", name, EnvRequire, unavailable)
	default:
		tb.Skipf("%s is not available: %s", name, unavailable)
	}
}

// NeedRoot skips a test that only root can run.
func NeedRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("only root can do this")
	}
}

// NeedProgram gives the path of a program, and skips the test without it.
func NeedProgram(tb testing.TB, name string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		tb.Skipf("%s is not installed", name)
	}
	return path
}

// Root is the module's directory, found from this source file's path; the test
// is skipped where that is not there, as for a test binary taken elsewhere.
func Root(tb testing.TB) string {
	tb.Helper()
	_, file, _, ok := runtime.Caller(0)
	root := filepath.Dir(filepath.Dir(filepath.Dir(file)))
	if _, err := os.Stat(filepath.Join(root, "go.mod")); !ok || err != nil {
		tb.Skip("the module's source is not here")
	}
	return root
}

// Builder builds programs of this module once for a test binary's whole run. A
// package that uses it makes one in TestMain and closes it there.
type Builder struct {
	mu    sync.Mutex
	dir   string
	built map[string]func() (string, error)

	rootfs func() (string, error)
}

// EnvBin names a directory with programs that were built before, which are
// taken instead of building: for test binaries that run where Go is not.
const EnvBin = "GLOVEBOX_TEST_BIN"

// Build gives the path of the program pkg, a directory such as "cmd/glovebox",
// built static and readable for every user. Errors end the test.
func (b *Builder) Build(tb testing.TB, pkg string) string {
	tb.Helper()
	if bin := os.Getenv(EnvBin); bin != "" {
		return filepath.Join(bin, filepath.Base(pkg))
	}
	root := Root(tb)
	path, err := b.once(root, pkg)()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

func (b *Builder) once(root, pkg string) func() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.built[pkg] == nil {
		if b.built == nil {
			b.built = map[string]func() (string, error){}
		}
		b.built[pkg] = sync.OnceValues(func() (string, error) { return b.build(root, pkg) })
	}
	return b.built[pkg]
}

func (b *Builder) build(root, pkg string) (string, error) {
	dir, err := b.directory()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, filepath.Base(pkg))
	// The build serves all tests of the run, so none of theirs may end it.
	cmd := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "./"+pkg) //nolint:forbidigo // see above
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", &buildError{pkg: pkg, output: string(out), err: err}
	}
	return path, nil
}

func (b *Builder) directory() (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dir != "" {
		return b.dir, nil
	}
	dir, err := os.MkdirTemp("", "glovebox-test-bin-")
	if err != nil {
		return "", err
	}
	b.dir = dir
	return dir, os.Chmod(dir, 0o755)
}

// Close removes what was built.
func (b *Builder) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dir == "" {
		return nil
	}
	return os.RemoveAll(b.dir)
}

type buildError struct {
	pkg, output string
	err         error
}

func (e *buildError) Error() string {
	return "building " + e.pkg + ": " + e.err.Error() + "\n" + e.output
}
func (e *buildError) Unwrap() error { return e.err }
