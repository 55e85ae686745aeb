//go:build linux

package subprocess_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/subprocess"
)

func TestStart_input(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		t.Run("reader", func(t *testing.T) {
			data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
			got := run(t, sb, backend.Command{Args: []string{"sh", "-c", "cat | wc -c"}, Stdin: bytes.NewReader(data)}).succeed(t)
			if strings.TrimSpace(got.out) != fmt.Sprint(len(data)) {
				t.Errorf("%q arrived", got.out)
			}
		})
		t.Run("reader nobody reads", func(t *testing.T) {
			r, w := io.Pipe()
			defer w.Close()
			run(t, sb, backend.Command{Args: []string{"true"}, Stdin: r}).succeed(t)
		})
		t.Run("none", func(t *testing.T) {
			if got := sh(t, sb, "cat; readlink /proc/self/fd/0").succeed(t); got.out != "/dev/null\n" {
				t.Errorf("standard input is %q", got.out)
			}
		})
		t.Run("kept open", func(t *testing.T) {
			var out syncBuffer
			p, err := sb.Start(t.Context(), backend.Command{Args: []string{"cat"}, KeepInput: true, Output: backend.Output{Stdout: &out}})
			if err != nil {
				t.Fatal(err)
			}
			in := as[backend.Inputter](t, p)
			for _, s := range []string{"one\n", "\x00two\n"} {
				if err := in.WriteInput(t.Context(), []byte(s)); err != nil {
					t.Fatal(err)
				}
				eventually(t, "it comes back", func() bool { return strings.HasSuffix(out.String(), s) })
			}
			if err := in.CloseInput(t.Context()); err != nil {
				t.Fatal(err)
			}
			if exit, err := p.Wait(t.Context()); err != nil || !exit.Success() || out.String() != "one\n\x00two\n" {
				t.Errorf("%v %v %q", exit, err, out.String())
			}
		})
	})
}

func TestStart_environment(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Env: map[string]string{"A": "sandbox", "B": "sandbox"}})
		got := run(t, sb, backend.Command{Args: []string{"/usr/bin/env"}, Env: map[string]string{"B": "command", "C": "line\nline = 'x'"}}).succeed(t)
		home := strings.TrimSpace(sh(t, sb, "cd && pwd -P").succeed(t).out)
		want := []string{
			"A=sandbox", "B=command", "C=line\nline = 'x'", "HOME=" + home, "USER=user", "LOGNAME=user",
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		}
		for _, w := range want {
			if !strings.Contains("\n"+got.out, "\n"+w+"\n") {
				t.Errorf("%q is missing in %q", w, got.out)
			}
		}
		if n := strings.Count(got.out, "\n"); n != len(want)+1 {
			t.Errorf("more than was given: %q", got.out)
		}
		_, err := sb.Start(t.Context(), backend.Command{Args: []string{"true"}, Env: map[string]string{"BAD": "nul\x00"}})
		wantKind(t, err, backend.ErrInvalid, "command.env", "BAD")
		got = run(t, sb, backend.Command{Args: []string{"true"}, Env: map[string]string{"PATH": "/nowhere"}})
		if got.String() != "exited(127)" {
			t.Errorf("a program outside the command's PATH: %v", got.Exit)
		}
	})
}

func TestStart_directory(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		home := strings.TrimSpace(sh(t, sb, "mkdir -p a/b && echo x >file && pwd -P").succeed(t).out)
		if h.caps.Has(backend.FeaturePrivateRoot) && home != backend.DefaultHome {
			t.Errorf("home is %q", home)
		}
		for dir, want := range map[string]string{"": home, "a": home + "/a", "a/b/..": home + "/a", home + "/a/b": home + "/a/b", "/usr": "/usr"} {
			if got := run(t, sb, backend.Command{Args: []string{"/bin/pwd", "-P"}, Dir: dir}).succeed(t); got.out != want+"\n" {
				t.Errorf("dir %q: %q, want %q", dir, got.out, want)
			}
		}
		for _, dir := range []string{"missing", "file", "/root/x"} {
			_, err := sb.Start(t.Context(), backend.Command{Args: []string{"true"}, Dir: dir})
			wantKind(t, err, backend.ErrInvalid)
		}
	})
}

func TestStart_users(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		if h.privilege == subprocess.PrivilegeRestricted { // where /proc is closed
			got := python(t, sb, "import ctypes; p = ctypes.CDLL(None).prctl; print(p(39, 0, 0, 0, 0), p(21, 0, 0, 0, 0))").succeed(t)
			if got.out != "1 2\n" {
				t.Errorf("no_new_privs and seccomp are %q", got.out)
			}
			_, err := sb.Start(t.Context(), backend.Command{Args: []string{"id"}, User: "root"})
			wantKind(t, err, backend.ErrUnsupported, "command.user")
			return
		}
		status := []string{"/bin/grep", "-E", "^(Uid|Gid|Cap|NoNewPrivs|Seccomp:)", "/proc/self/status"}
		got := run(t, sb, backend.Command{Args: status}).succeed(t)
		checkPowerless(t, got.out)
		if h.privilege != subprocess.PrivilegeRoot {
			_, err := sb.Start(t.Context(), backend.Command{Args: []string{"id"}, User: "root"})
			wantKind(t, err, backend.ErrUnsupported)
			_, err = sb.Start(t.Context(), backend.Command{Args: []string{"id"}, User: "nobody"})
			wantKind(t, err, backend.ErrUnsupported)
			run(t, sb, backend.Command{Args: []string{"id"}, User: backend.DefaultUser}).succeed(t)
			return
		}
		for user, uid := range map[string]string{"": "1000", "user": "1000", "root": "0", "nobody": "65534"} {
			if got := run(t, sb, backend.Command{Args: []string{"id", "-u"}, User: user, Dir: "/"}).succeed(t); got.out != uid+"\n" {
				t.Errorf("user %q is uid %q", user, got.out)
			}
		}
		got = run(t, sb, backend.Command{Args: status, User: "root"}).succeed(t)
		if !strings.Contains(got.out, "Uid:\t0\t0\t0\t0") {
			t.Errorf("root's ids: %s", got.out)
		}
		checkPowerless(t, got.out)
		got = run(t, sb, backend.Command{Args: []string{"sh", "-c", `
for what in 'chown 1 /tmp' 'mount -t tmpfs x /mnt' 'touch /usr/x' 'echo x >/proc/sys/kernel/hostname'; do
	(eval "$what") 2>/dev/null && echo "$what"
done
echo tried`}, User: "root"}).succeed(t)
		if got.out != "tried\n" {
			t.Errorf("root can: %s", got.out)
		}
		_, err := sb.Start(t.Context(), backend.Command{Args: []string{"id"}, User: "mallory"})
		wantKind(t, err, backend.ErrNotFound, "mallory")
	})
}

func checkPowerless(t *testing.T, status string) {
	t.Helper()
	for _, line := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if !strings.Contains(status, line+":\t0000000000000000\n") {
			t.Errorf("%s is not empty:\n%s", line, status)
		}
	}
	if !strings.Contains(status, "NoNewPrivs:\t1") || !strings.Contains(status, "Seccomp:\t2") {
		t.Errorf("not confined:\n%s", status)
	}
}

func TestStart_terminal(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		var out syncBuffer
		p, err := sb.Start(t.Context(), backend.Command{
			Args: []string{"/bin/bash", "--norc", "--noprofile", "-i"}, Terminal: &backend.TerminalSize{Cols: 100, Rows: 40}, KeepInput: true,
			Env: map[string]string{"PS1": "ready> "}, Output: backend.Output{Stdout: &out},
		})
		if err != nil {
			t.Fatal(err)
		}
		in := as[backend.Inputter](t, p)
		enter := func(s, want string) {
			t.Helper()
			if err := in.WriteInput(t.Context(), []byte(s)); err != nil {
				t.Fatal(err)
			}
			eventually(t, want+" on the terminal", func() bool { return strings.Contains(out.String(), want) })
		}
		enter("stty size; tty; test -t 0 && test -t 1 && test -t 2 && echo all-$((1+1))\n", "all-2")
		if !strings.Contains(out.String(), "40 100") || !strings.Contains(out.String(), "/dev/pts/") {
			t.Errorf("%q", out.String())
		}
		if err := as[backend.Resizer](t, p).Resize(t.Context(), backend.TerminalSize{Cols: 33, Rows: 11}); err != nil {
			t.Fatal(err)
		}
		enter("stty size\n", "11 33")
		enter("sh -c 'echo at-$((6*7)); exec sleep 1000'\n", "at-42")
		enter("\x03", "^C")
		enter("echo after-$?\n", "after-130")
		wantKind(t, in.CloseInput(t.Context()), backend.ErrUnsupported)
		if err := in.WriteInput(t.Context(), []byte("exit 5\n")); err != nil {
			exit, werr := p.Wait(t.Context())
			t.Fatal(err, exit, werr, out.String())
		}
		if exit, err := p.Wait(t.Context()); err != nil || exit.String() != "exited(5)" {
			t.Errorf("%v %v %q", exit, err, out.String())
		}
	})
}

func TestStart_badArguments(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		for name, cmd := range map[string]backend.Command{
			"nothing": {}, "empty": {Args: []string{""}}, "NUL": {Args: []string{"echo", "a\x00b"}},
			"NUL in dir": {Args: []string{"echo"}, Dir: "a\x00"}, "timeout": {Args: []string{"echo"}, Timeout: -5},
			"CPU time":   {Args: []string{"echo"}, CPUTime: -time.Second},
			"two inputs": {Args: []string{"echo"}, Stdin: strings.NewReader(""), KeepInput: true},
		} {
			if _, err := sb.Start(t.Context(), cmd); backend.KindOf(err) != backend.ErrInvalid {
				t.Errorf("%s: %v", name, err)
			}
		}
		_, err := sb.Start(t.Context(), backend.Command{Args: []string{"echo", strings.Repeat("x", 200<<10)}})
		wantKind(t, err, backend.ErrInvalid, "larger than the kernel takes")
		many := slices.Repeat([]string{strings.Repeat("y", 100<<10)}, 40)
		_, err = sb.Start(t.Context(), backend.Command{Args: append([]string{"echo"}, many...)})
		wantKind(t, err, backend.ErrInvalid, "larger than the kernel takes")
		sh(t, sb, "echo it goes on").succeed(t)
	})
}

func TestStart_bigAndBinary(t *testing.T) {
	inModes(t, everywhere, func(t *testing.T, h *harness) {
		res, err := backend.Run(t.Context(), h.ex, backend.RunSpec{
			Spec:    h.spec(backend.Spec{}),
			Command: backend.Command{Args: []string{"/usr/bin/python3", "big.py"}},
			Files:   map[string]backend.File{"big.py": {Data: []byte("x = '''" + strings.Repeat("é", 70<<10) + "'''\nprint(len(x))\n")}},
			Fetch:   []string{"big.py", "missing"},
		})
		if err != nil || string(res.Stdout) != fmt.Sprintf("%d\n", 70<<10) || len(res.Files) != 1 {
			t.Errorf("%v %v %.200s %.200s", res.Exit, err, res.Stdout, res.Stderr)
		}
		sb := h.create(t, backend.Spec{})
		got := python(t, sb, "import sys; sys.stdout.buffer.write(bytes(range(256)) * 300)").succeed(t)
		if want := strings.Repeat(string(allBytes()), 300); got.out != want {
			t.Errorf("%d bytes came, %s…", len(got.out), base64.StdEncoding.EncodeToString([]byte(got.out[:min(len(got.out), 60)])))
		}
	})
}

func allBytes() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// syncBuffer is a buffer that can be looked at while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
