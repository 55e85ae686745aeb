package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// AsNobody runs the calling test as an unprivileged user: as root it starts
// the test binary again for this test alone, under Nobody and with directories
// of its own, reports how that went and returns true, upon which the test
// returns. As anybody else it returns false. Call it first, and not from a
// subtest.
func AsNobody(t *testing.T) (done bool) {
	t.Helper()
	if os.Geteuid() != 0 {
		return false
	}
	if os.Getenv(EnvNobody) != "" {
		t.Fatal("still root after giving it up")
	}
	exe := nobodysCopy(t)
	home := nobodysHome(t)
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout="+timeLeft(t))
	cmd.Dir = home
	cmd.Env = append(withoutUser(os.Environ()), EnvNobody+"=1", "HOME="+home, "TMPDIR="+home,
		"XDG_STATE_HOME="+filepath.Join(home, "state"), "XDG_RUNTIME_DIR="+home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: Nobody, Gid: Nobody}, Setsid: true}
	out, err := cmd.CombinedOutput()
	switch text := string(out); {
	case err != nil:
		t.Fatalf("as uid %d: %v\n%s", Nobody, err, out)
	case strings.Contains(text, "--- SKIP: "+t.Name()):
		t.Skipf("as uid %d:\n%s", Nobody, out)
	case !strings.Contains(text, "--- PASS: "+t.Name()):
		t.Fatalf("as uid %d the test did not run:\n%s", Nobody, out)
	}
	return true
}

// timeLeft is what the calling test's own limit leaves, less a moment for its
// report; five minutes when it has none.
func timeLeft(t *testing.T) string {
	t.Helper()
	left := 5 * time.Minute
	if deadline, ok := t.Deadline(); ok {
		left = max(time.Until(deadline)-5*time.Second, time.Second)
	}
	return left.String()
}

// nobodysCopy is a copy of this binary where every user can run it: the
// original lies below a directory of root's.
func nobodysCopy(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	dir := openDir(t)
	path := filepath.Join(dir, filepath.Base(exe))
	// A child forked meanwhile would hold the copy open for writing, and what is
	// written to cannot be executed.
	syscall.ForkLock.RLock()
	err = os.WriteFile(path, data, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func nobodysHome(t *testing.T) string {
	t.Helper()
	dir := openDir(t)
	if err := os.Chown(dir, Nobody, Nobody); err != nil {
		t.Fatal(err)
	}
	return dir
}

// openDir is a directory that every user can enter; t.TempDir's are below one
// that only its user can.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "glovebox-test-nobody-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func withoutUser(env []string) []string {
	var kept []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "HOME", "USER", "LOGNAME", "TMPDIR", "GLOVEBOX_STATE_DIR":
		default:
			if !strings.HasPrefix(name, "XDG_") && !strings.HasPrefix(name, "SUDO_") {
				kept = append(kept, kv)
			}
		}
	}
	return kept
}
