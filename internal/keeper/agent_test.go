//go:build linux

package keeper_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/user"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	realagent "github.com/glovebox-dev/glovebox/internal/agent"
	"github.com/glovebox-dev/glovebox/internal/envd"
	"github.com/glovebox-dev/glovebox/internal/keeper"
	"github.com/glovebox-dev/glovebox/internal/launch/spawn"
)

// realAgent serves an agent over one stream, without confinement.
func realAgent(t *testing.T) *os.File {
	t.Helper()
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	reaper, err := spawn.New(spawn.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reaper.Close)
	srv, err := realagent.New(realagent.Options{
		Reaper: reaper, Token: "token",
		OnlyUser: &realagent.Account{Name: u.Username, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Home: t.TempDir()},
	})
	if err != nil {
		t.Fatal(err)
	}
	mine, theirs := pair(t)
	conn, err := net.FileConn(theirs)
	if err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	ended := make(chan struct{})
	go func() { defer close(ended); srv.ServeConn(t.Context(), conn) }()
	t.Cleanup(func() { srv.Close(); conn.Close(); <-ended })
	return mine
}

func TestAgent_throughTheKeeper(t *testing.T) {
	s := newStore(t)
	sb := s.newSandbox(t, "sreal")
	s.hold(t, sb, &keeper.Stream{Files: []*os.File{realAgent(t)}})
	t.Cleanup(sb.kill)
	c := envd.New(sb.client(t), envd.Options{Sandbox: sb.id, Backend: "test", AccessToken: "token", Extended: true})
	t.Cleanup(func() { c.Close() })

	// A program that answers what it is told while it runs, beside others.
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			in, tell := io.Pipe()
			heard, out := io.Pipe()
			p, err := c.Start(t.Context(), backend.Command{Args: []string{"cat"}, Stdin: in, Output: backend.Output{Stdout: out}, Timeout: 20 * time.Second})
			if err != nil {
				t.Errorf("start: %v", err)
				return
			}
			for j := range 20 {
				word := fmt.Sprintf("%d %d\n", i, j)
				io.WriteString(tell, word)
				got := make([]byte, len(word))
				if _, err := io.ReadFull(heard, got); err != nil || string(got) != word {
					t.Errorf("cat said %q, %v", got, err)
				}
			}
			tell.Close()
			if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 || exit.Reason != backend.ReasonExited {
				t.Errorf("cat: %v %v", exit, err)
			}
		})
	}
	wg.Wait()

	// A port inside, both ways.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()
	conn, err := c.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		word := strings.Repeat(fmt.Sprint(i), 1000)
		if _, err := io.WriteString(conn, word); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(word))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != word {
			t.Fatalf("the port said %.20q, %v", got, err)
		}
	}
	conn.Close()

	// A caller that shows no token gets what the agent says to that.
	bare := envd.New(sb.client(t), envd.Options{Sandbox: sb.id, Backend: "test", Extended: true})
	defer bare.Close()
	if _, err := bare.Hello(t.Context()); backend.KindOf(err) != backend.ErrUnauthenticated {
		t.Errorf("without a token: %v", err)
	}
}
