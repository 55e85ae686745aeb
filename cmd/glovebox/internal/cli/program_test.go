//go:build unix

package cli_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
)

// program is the test binary as glovebox.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	home := t.TempDir()
	cmd.Dir = home
	cmd.Env = []string{asProgram + "=1", "HOME=" + home, "XDG_CONFIG_HOME=" + home, "GLOVEBOX_STATE_DIR=" + home, "PATH=" + os.Getenv("PATH")}
	return cmd
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var ee *exec.ExitError
	if !errors.As(err, &ee) {
		t.Fatal(err)
	}
	return ee.ExitCode()
}

func TestProgram_signalsEndTheRunCleanly(t *testing.T) {
	t.Parallel()
	for sig, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		for _, extra := range []string{"-q", "--json"} {
			cmd := program(t, "run", extra, "--", "ready")
			var stdout bytes.Buffer
			cmd.Stdout = &stdout
			stderr, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			rd := bufio.NewReader(stderr)
			if line, err := rd.ReadString('\n'); line != "ready\n" {
				t.Fatalf("%q, %v", line, err)
			}
			_ = cmd.Process.Signal(sig)
			_ = cmd.Process.Signal(sig) // a second one changes nothing
			rest, _ := io.ReadAll(rd)
			if code := exitCode(t, cmd.Wait()); code != want || strings.Contains(string(rest), "LEAKED") {
				t.Errorf("%v %s: code %d, want %d; output %q, errors %q", sig, extra, code, want, stdout.String(), rest)
			}
			if extra == "--json" && !strings.Contains(stdout.String(), `"kind": "canceled"`) {
				t.Errorf("%v: no document: %q", sig, stdout.String())
			}
		}
	}
}

func TestProgram_aClosedPipeEndsTheRunCleanly(t *testing.T) {
	t.Parallel()
	cmd := program(t, "run", "--", "talk")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_ = out.Close()
	if code := exitCode(t, cmd.Wait()); code != 141 || strings.Contains(stderr.String(), "LEAKED") {
		t.Errorf("code %d, errors %q", code, stderr.String())
	}
}

func TestProgram_aReaderThatStoppedDoesNotHoldTheEnd(t *testing.T) {
	t.Parallel()
	cmd := program(t, "run", "-q", "--", "talk")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReaderSize(out, 16).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	state, err := cmd.Process.Wait() // nobody reads the pipe
	said, rerr := os.ReadFile(stderr.Name())
	if err != nil || rerr != nil || state.ExitCode() != 143 || strings.Contains(string(said), "LEAKED") {
		t.Errorf("%v, %v, errors %q, %v", state, err, said, rerr)
	}
}

func TestProgram_terminalIsProtected(t *testing.T) {
	t.Parallel()
	cmd := program(t, "run", "-q", "--", "escape")
	if got := onTerminal(t, cmd); got != "^[]0;owned^G\\xff\r\n" {
		t.Errorf("the terminal got %q", got)
	}
}

func TestProgram_ttyGetsBytesAndSize(t *testing.T) {
	t.Parallel()
	if got := onTerminal(t, program(t, "run", "-q", "-t", "--", "escape")); got != "\x1b]0;owned\a\xff" {
		t.Errorf("the terminal got %q", got)
	}
	if got := onTerminal(t, program(t, "run", "-q", "-t", "--", "size")); !strings.HasPrefix(got, "size 123 45") {
		t.Errorf("the terminal got %q", got)
	}
}

// onTerminal runs cmd on a terminal of 123 by 45 and gives what that shows.
func onTerminal(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ptmx.Close()
	if err := pty.Setsize(ptmx, &pty.Winsize{Cols: 123, Rows: 45}); err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = tty.Close()
	got, _ := io.ReadAll(ptmx) // ends with EIO when the program has ended
	if code := exitCode(t, cmd.Wait()); code != 0 {
		t.Errorf("code %d: %q", code, got)
	}
	return string(got)
}
