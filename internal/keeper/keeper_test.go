//go:build linux

package keeper_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/keeper"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// says answers every request with text.
func says(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
}

func TestHold_stream(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	sb := s.newSandbox(t, "sone")
	if ok, err := s.k.Holds(t.Context(), sb.id); ok || err != nil {
		t.Errorf("before there is a keeper: %v %v", ok, err)
	}
	host, ended := agent(t, says("hello"))
	s.hold(t, sb, &keeper.Stream{Files: []*os.File{host}})
	if got, err := get(t, sb.client(t), "/"); got != "hello" || err != nil {
		t.Errorf("through the keeper: %q %v", got, err)
	}
	if ok, err := s.k.Holds(t.Context(), sb.id); !ok || err != nil {
		t.Errorf("Holds: %v %v", ok, err)
	}
	if ok, err := s.k.Holds(t.Context(), "other"); ok || err != nil {
		t.Errorf("Holds of another: %v %v", ok, err)
	}
	host2, _ := agent(t, says("other"))
	_, err := s.k.Hold(t.Context(), keeper.Held{ID: sb.id, Proc: sb.proc, Stream: &keeper.Stream{Files: []*os.File{host2}}})
	wantKind(t, err, backend.ErrConflict)
	for range 2 {
		if err := s.k.Release(t.Context(), sb.id); err != nil {
			t.Fatal(err)
		}
		if sb.served() {
			t.Error("released, and the socket is there")
		}
	}
	<-ended
	if ok, err := s.k.Holds(t.Context(), sb.id); ok || err != nil {
		t.Errorf("released: %v %v", ok, err)
	}
}

func TestHold_endsWithTheSandbox(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for name, end := range map[string]func(sb *sandbox, agent net.Conn){
		"its process":    func(sb *sandbox, _ net.Conn) { sb.kill() },
		"its one stream": func(_ *sandbox, agent net.Conn) { agent.Close() },
	} {
		sb := s.newSandbox(t, "send")
		mine, theirs := pair(t)
		conn, err := net.FileConn(theirs)
		if err != nil {
			t.Fatal(err)
		}
		theirs.Close()
		ended := serveOn(t, says("x"), conn)
		s.hold(t, sb, &keeper.Stream{Files: []*os.File{mine}})
		if _, err := get(t, sb.client(t), "/"); err != nil {
			t.Fatal(err)
		}
		end(sb, conn)
		eventually(t, name+": the socket goes", func() bool { return !sb.served() })
		<-ended
		eventually(t, name+": not held", func() bool { ok, err := s.k.Holds(t.Context(), sb.id); return !ok && err == nil })
		sb.kill()
	}
}

func TestHold_refuses(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	sb := s.newSandbox(t, "sone")
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	a, b := pair(t)
	stream := func(files ...*os.File) *keeper.Stream { return &keeper.Stream{Files: files} }
	list := backend.Network{Mode: backend.NetworkAllowlist}
	for name, tt := range map[string]struct {
		held keeper.Held
		want backend.Kind
	}{
		"nothing":              {keeper.Held{ID: sb.id, Proc: sb.proc}, backend.ErrInvalid},
		"no ID":                {keeper.Held{ID: "../x", Proc: sb.proc, Stream: stream(a)}, backend.ErrInvalid},
		"no descriptors":       {keeper.Held{ID: sb.id, Proc: sb.proc, Stream: stream()}, backend.ErrInvalid},
		"a file":               {keeper.Held{ID: sb.id, Proc: sb.proc, Stream: stream(file)}, backend.ErrInvalid},
		"two sockets":          {keeper.Held{ID: sb.id, Proc: sb.proc, Stream: stream(a, b)}, backend.ErrInvalid},
		"three":                {keeper.Held{ID: sb.id, Proc: sb.proc, Stream: stream(a, b, a)}, backend.ErrInvalid},
		"an unknown framing":   {keeper.Held{ID: sb.id, Proc: sb.proc, Stream: &keeper.Stream{Files: []*os.File{a}, Framing: "x"}}, backend.ErrInvalid},
		"a process that ended": {keeper.Held{ID: sb.id, Proc: state.Proc{PID: sb.proc.PID, Start: sb.proc.Start - 1}, Stream: stream(a)}, backend.ErrNotFound},
		"bad rules":            {keeper.Held{ID: sb.id, Proc: sb.proc, Network: backend.Network{Mode: "x"}, Stream: stream(a)}, backend.ErrInvalid},
	} {
		_, err := s.k.Hold(t.Context(), tt.held)
		if backend.KindOf(err) != tt.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	// An agent that is not there gives no network.
	h, err := s.k.Hold(t.Context(), keeper.Held{ID: sb.id, Proc: sb.proc, Network: list})
	if err != nil {
		t.Fatal(err)
	}
	wantKind(t, h.Commit(t.Context()), backend.ErrUnavailable)
	eventually(t, "it is not held", func() bool { ok, err := s.k.Holds(t.Context(), sb.id); return !ok && err == nil })
	wantKind(t, s.k.SetNetwork(t.Context(), sb.id, list, nil), backend.ErrNotFound)
}

func TestHold_isLetGoWithItsMaker(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, closed := range []bool{true, false} {
		sb := s.newSandbox(t, "smade"+strconv.FormatBool(closed))
		host, ended := agent(t, says("x"))
		if closed {
			h, err := s.k.Hold(t.Context(), keeper.Held{ID: sb.id, Proc: sb.proc, Stream: &keeper.Stream{Files: []*os.File{host}}})
			if err != nil {
				t.Fatal(err)
			}
			host.Close()
			for range 2 {
				if err := h.Close(); err != nil {
					t.Error(err)
				}
			}
		} else {
			maker := another(t, "hold_and_wait", s, sb, host)
			eventually(t, "it is held", sb.served)
			host.Close()
			if err := maker.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		<-ended
		eventually(t, "the socket goes", func() bool { return !sb.served() })
	}
}

func TestHold_outlivesItsMaker(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	sb := s.newSandbox(t, "sone")
	host, ended := agent(t, says("hello"))
	maker := another(t, "hold", s, sb, host)
	host.Close()
	if err := maker.Wait(); err != nil {
		t.Fatal(err)
	}
	if got, err := get(t, sb.client(t), "/"); got != "hello" || err != nil {
		t.Errorf("after its maker: %q %v", got, err)
	}
	pids := s.pids(t)
	if len(pids) != 1 {
		t.Fatalf("keepers: %v", pids)
	}
	// It has left its maker's session, and has nothing of it but what it needs.
	if sid, err := unix.Getsid(pids[0]); err != nil || sid == must(unix.Getsid(0)) {
		t.Errorf("session %d, %v", sid, err)
	}
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pids[0])); err == nil && strings.Contains(string(env), envRole) {
		t.Errorf("its environment: %q", env)
	}
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pids[0])); err == nil && cwd != "/" {
		t.Errorf("it is in %s", cwd)
	}
	sb.kill()
	<-ended
}

func must[T any](v T, _ error) T { return v }

// another starts a role with a stream.
func another(t *testing.T, role string, s *store, sb *sandbox, host *os.File) *exec.Cmd {
	t.Helper()
	exe, err := self()
	if err != nil {
		t.Fatal(err)
	}
	// What a script may have open for itself is not the keeper's.
	stray, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stray.Close()
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), envRole+"="+fmt.Sprintf("%s:%s %s %d %d", role, s.dir, sb.id, sb.proc.PID, sb.proc.Start))
	cmd.ExtraFiles = []*os.File{host, w}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if role == "hold" {
		var b [1]byte
		if n, _ := stray.Read(b[:]); n != 0 {
			t.Error("something was written to the stray descriptor")
		}
	}
	return cmd
}

func holdAs(arg string) (*keeper.Holding, error) {
	var dir, id string
	var p state.Proc
	if _, err := fmt.Sscan(arg, &dir, &id, &p.PID, &p.Start); err != nil {
		return nil, err
	}
	// As a shell's own descriptor, which children inherit.
	if _, err := unix.FcntlInt(4, unix.F_SETFD, 0); err != nil {
		return nil, err
	}
	stream := &keeper.Stream{Files: []*os.File{os.NewFile(3, "stream")}}
	return keeper.New(dir, self, idle).Hold(context.Background(), keeper.Held{ID: id, Proc: p, Stream: stream})
}

func holdAndWait(arg string) int {
	if _, err := holdAs(arg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {}
}

func holdAndLeave(arg string) int {
	h, err := holdAs(arg)
	if err == nil {
		err = h.Commit(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func TestKeeper_oneForMany(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const n = 12
	boxes := make([]*sandbox, n)
	var wg sync.WaitGroup
	for i := range n {
		boxes[i] = s.newSandbox(t, fmt.Sprintf("smany%d", i))
		host, _ := agent(t, says(boxes[i].id))
		wg.Go(func() {
			// Each as a process of its own would.
			h, err := keeper.New(s.dir, self, idle).Hold(t.Context(), keeper.Held{
				ID: boxes[i].id, Proc: boxes[i].proc, Stream: &keeper.Stream{Files: []*os.File{host}},
			})
			if err == nil {
				err = h.Commit(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
			host.Close()
		})
	}
	wg.Wait()
	if pids := s.pids(t); len(pids) != 1 {
		t.Errorf("keepers: %v", pids)
	}
	for _, sb := range boxes {
		if got, err := get(t, sb.client(t), "/"); got != sb.id || err != nil {
			t.Errorf("%s: %q %v", sb.id, got, err)
		}
		sb.kill()
	}
}

func TestKeeper_killed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	sb := s.newSandbox(t, "sone")
	host, ended := agent(t, says("first"))
	s.hold(t, sb, &keeper.Stream{Files: []*os.File{host}})
	pids := s.pids(t)
	if len(pids) != 1 {
		t.Fatalf("keepers: %v", pids)
	}
	if err := unix.Kill(pids[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-ended // the agent's stream has, so a real one ends its sandbox
	if ok, err := s.k.Holds(t.Context(), sb.id); ok || err != nil {
		t.Errorf("killed: %v %v", ok, err)
	}
	wantKind(t, s.k.SetNetwork(t.Context(), sb.id, backend.Network{}, nil), backend.ErrNotFound)
	if err := s.k.Release(t.Context(), sb.id); err != nil {
		t.Error(err)
	}
	// A new one takes over the store, though its socket was left.
	other := s.newSandbox(t, "stwo")
	host, _ = agent(t, says("second"))
	s.hold(t, other, &keeper.Stream{Files: []*os.File{host}})
	if got, err := get(t, other.client(t), "/"); got != "second" || err != nil {
		t.Errorf("the new keeper: %q %v", got, err)
	}
	other.kill()
}

func TestKeeper_thatIsNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &store{dir: dir}
	sb := s.newSandbox(t, "sone")
	a, _ := pair(t)
	for _, program := range []string{"/bin/true", "/bin/false", "/nonexistent"} {
		k := keeper.New(dir, func() (string, error) { return program, nil }, idle)
		_, err := k.Hold(t.Context(), keeper.Held{ID: sb.id, Proc: sb.proc, Stream: &keeper.Stream{Files: []*os.File{a}}})
		wantKind(t, err, backend.ErrUnavailable)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := keeper.New(dir, self, idle).Hold(ctx, keeper.Held{ID: sb.id, Proc: sb.proc, Stream: &keeper.Stream{Files: []*os.File{a}}})
	if err != context.Canceled { //nolint:errorlint // unwrapped
		t.Errorf("cancelled: %v", err)
	}
}
