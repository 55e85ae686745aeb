//go:build unix

package state_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/state"
)

const childEnv = "GLOVEBOX_TEST_STATE_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := churn(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func randomID() string { return "r" + strings.ToLower(rand.Text())[:12] }

func cancelled(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// churn makes and ends sandboxes on paper until it is killed.
func churn(dir string) error {
	ctx := context.Background()
	s, err := state.Open(dir)
	if err != nil {
		return err
	}
	j, err := s.Journal(ctx)
	if err != nil {
		return err
	}
	if _, err := fmt.Println(s.ID()); err != nil {
		return err
	}
	for {
		id := randomID()
		mk, err := s.Mark(id, state.Mark{PID: os.Getpid(), Cgroups: []string{strings.Repeat("x", mrand.IntN(8000))}})
		if err != nil {
			return err
		}
		steps := []func() error{
			func() error { return j.Put(ctx, state.Record{ID: id, Spec: json.RawMessage(`{}`)}) },
			func() error { return mk.Update(state.Mark{PID: os.Getpid()}) },
			func() error { return j.Ready(ctx, id, 1, 1, nil) },
			func() error { return j.Delete(ctx, id) },
			mk.Release,
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return err
			}
		}
	}
}

func TestStore_survivesSIGKILL(t *testing.T) {
	t.Parallel()
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	dir := t.TempDir()
	s := open(t, dir)
	swept := 0
	for range rounds {
		killSome(t, dir, s.ID(), 3)
		for mk, err := range s.Dead() {
			if err != nil {
				t.Fatal(err)
			}
			if m, err := mk.Content(); err != nil || m.PID == 0 {
				t.Errorf("marker %s: %+v %v", mk.ID(), m, err)
			}
			if err := journal(t, s).Delete(t.Context(), mk.ID()); err != nil {
				t.Fatal(err)
			}
			if err := mk.Release(); err != nil {
				t.Fatal(err)
			}
			swept++
		}
		// What the markers did not name must not exist either.
		list, err := journal(t, s).List(t.Context())
		if err != nil || len(list) != 0 {
			t.Fatalf("records without markers: %v %v", list, err)
		}
		left, err := os.ReadDir(filepath.Join(dir, "sandboxes"))
		if err != nil || len(left) != 0 {
			t.Fatalf("left: %v %v", left, err)
		}
	}
	if swept == 0 {
		t.Error("no child was killed with a marker: the test proves nothing")
	}
}

// killSome runs n children at once and kills each at some moment.
func killSome(t *testing.T, dir, id string, n int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		cmd := exec.CommandContext(t.Context(), exe)
		cmd.Env = append(os.Environ(), childEnv+"="+dir)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil || strings.TrimSpace(line) != id {
			t.Errorf("the child's store is %q, want %q: %v", line, id, err)
		}
		timer := time.AfterFunc(time.Duration(1+mrand.IntN(40))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		defer func() {
			_, _ = io.Copy(io.Discard, out)
			if err := cmd.Wait(); stderr.Len() > 0 {
				t.Errorf("child: %v %s", err, stderr.String())
			}
			timer.Stop()
		}()
	}
}

func TestMark_doesNotPassOffErrorsAsConflicts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	if err := os.RemoveAll(filepath.Join(dir, "sandboxes")); err != nil {
		t.Fatal(err)
	}
	_, err := s.Mark("abc", state.Mark{})
	if err == nil || backend.KindOf(err) == backend.ErrConflict || !strings.Contains(err.Error(), dir) {
		t.Errorf("Mark: %v", err)
	}
}
