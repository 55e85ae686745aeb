//go:build linux

package subprocess_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func TestProcesses_listAndAttach(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		pf := as[backend.ProcessFinder](t, sb)
		var first syncBuffer
		p, err := sb.Start(t.Context(), backend.Command{
			Args: []string{"sh", "-c", "echo before; read line; echo after $line; echo oops >&2; exit 4"}, Tag: "mine",
			Env: map[string]string{"K": "v"}, KeepInput: true, Output: backend.Output{Stdout: &first},
		})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "it runs", func() bool { return first.String() == "before\n" })
		list, err := pf.Processes(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v %v", list, err)
		}
		i := list[0]
		if i.ID != p.ID() || i.Tag != "mine" || i.PID <= 1 || i.Exit != nil || i.User != "user" || i.Env["K"] != "v" ||
			time.Since(i.Started) > time.Minute || !slices.Equal(i.Args[:2], []string{"sh", "-c"}) {
			t.Errorf("%+v", i)
		}
		var second, late syncBuffer
		q, err := pf.Attach(t.Context(), p.ID(), backend.AttachOptions{Output: backend.Output{Stdout: &second}, Replay: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := as[backend.Inputter](t, p).WriteInput(t.Context(), []byte("hello\n")); err != nil {
			t.Fatal(err)
		}
		for _, w := range []backend.Process{p, q, p} {
			if exit, err := w.Wait(t.Context()); err != nil || exit.String() != "exited(4)" {
				t.Errorf("%v %v", exit, err)
			}
		}
		want := "before\nafter hello\n"
		if first.String() != want || second.String() != want {
			t.Errorf("%q and %q", first.String(), second.String())
		}
		var errs syncBuffer
		q, err = pf.Attach(t.Context(), p.ID(), backend.AttachOptions{Output: backend.Output{Stdout: &late, Stderr: &errs}, Replay: true})
		if err != nil {
			t.Fatal(err)
		}
		if exit, err := q.Wait(t.Context()); err != nil || exit.String() != "exited(4)" || late.String() != want || errs.String() != "oops\n" {
			t.Errorf("after the end: %v %v %q %q", exit, err, late.String(), errs.String())
		}
		if list, err = pf.Processes(t.Context()); err != nil || len(list) != 1 || list[0].Exit == nil || list[0].Exit.Code != 4 {
			t.Errorf("%+v %v", list, err)
		}
		_, err = pf.Attach(t.Context(), "c999", backend.AttachOptions{})
		wantKind(t, err, backend.ErrNotFound)
	})
}

func TestProcess_signal(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		var out syncBuffer
		p, err := sb.Start(t.Context(), backend.Command{
			Args:   []string{"sh", "-c", "trap 'echo one' USR1; trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"},
			Output: backend.Output{Stdout: &out},
		})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is ready", func() bool { return strings.HasPrefix(out.String(), "ready") })
		if err := p.Signal(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the trap ran", func() bool { return out.String() == "ready\none\n" })
		for _, sig := range []backend.Signal{0, -1, 65} {
			wantKind(t, p.Signal(t.Context(), sig), backend.ErrInvalid)
		}
		if err := p.Signal(t.Context(), backend.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if exit, err := p.Wait(t.Context()); err != nil || exit.String() != "exited(9)" {
			t.Errorf("%v %v", exit, err)
		}
		wantKind(t, p.Signal(t.Context(), backend.SIGTERM), backend.ErrNotFound)
	})
}

func TestProcess_waitersAndContexts(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		sctx, scancel := context.WithCancel(t.Context())
		p, err := sb.Start(sctx, backend.Command{Args: []string{"sleep", "0.5"}})
		if err != nil {
			t.Fatal(err)
		}
		scancel() // does nothing any more
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		ends := make(chan string, 8)
		for range cap(ends) {
			go func() {
				exit, err := p.Wait(t.Context())
				ends <- fmt.Sprint(exit, err)
			}()
		}
		for range cap(ends) {
			if got := <-ends; got != "exited(0) <nil>" {
				t.Error(got)
			}
		}
	})
}

func TestDial(t *testing.T) {
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{})
		d := as[backend.Dialer](t, sb)
		_, err := d.DialContext(t.Context(), "tcp", "127.0.0.1:7777")
		wantKind(t, err, backend.ErrUnavailable)
		for _, addr := range []string{"10.0.0.1:80", "example.com:80", "127.0.0.1", "0", "70000", "127.0.0.1:x", ""} {
			if _, err := d.DialContext(t.Context(), "tcp", addr); backend.KindOf(err) != backend.ErrInvalid {
				t.Errorf("%q: %v", addr, err)
			}
		}
		_, err = d.DialContext(t.Context(), "udp", "127.0.0.1:7777")
		if err == nil {
			t.Error("udp is dialled")
		}
		var out syncBuffer
		_, err = sb.Start(t.Context(), backend.Command{Args: []string{"/usr/bin/python3", "-u", "-c", `
import socket
s = socket.create_server(("127.0.0.1", 7777))
print("listening")
while True:
    c, _ = s.accept()
    while data := c.recv(65536): c.sendall(data.upper())
    c.close()
`}, Output: backend.Output{Stdout: &out}, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "it listens", func() bool { return out.String() == "listening\n" })
		for _, addr := range []string{"7777", "127.0.0.1:7777", "localhost:7777"} {
			conn, err := d.DialContext(t.Context(), "tcp", addr)
			if err != nil {
				t.Fatalf("%s: %v", addr, err)
			}
			want := strings.Repeat("ABC", 100_000)
			go func() {
				io.WriteString(conn, strings.ToLower(want))
				if c, ok := conn.(interface{ CloseWrite() error }); ok {
					c.CloseWrite()
				}
			}()
			got, err := io.ReadAll(io.LimitReader(conn, int64(len(want))))
			if err != nil || string(got) != want {
				t.Errorf("%s: %d bytes, %v", addr, len(got), err)
			}
			conn.Close()
			if _, err := conn.Write([]byte("x")); err == nil {
				t.Error("a closed connection takes data")
			}
		}
	})
}
