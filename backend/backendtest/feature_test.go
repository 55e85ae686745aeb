package backendtest_test

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/backend/backendtest"
)

func has[T any](v any) bool {
	_, ok := backend.As[T](v)
	return ok
}

func TestFake_featuresCanBeTakenAway(t *testing.T) {
	t.Parallel()
	tests := []struct {
		feature backend.Feature
		has     func(f *backendtest.Fake, sb backend.Sandbox, p backend.Process) bool
	}{
		{backend.FeatureProbe, func(f *backendtest.Fake, _ backend.Sandbox, _ backend.Process) bool { return has[backend.Prober](f) }},
		{backend.FeatureFind, func(f *backendtest.Fake, _ backend.Sandbox, _ backend.Process) bool { return has[backend.Finder](f) }},
		{backend.FeaturePause, func(_ *backendtest.Fake, sb backend.Sandbox, _ backend.Process) bool { return has[backend.Pauser](sb) }},
		{backend.FeatureExtend, func(_ *backendtest.Fake, sb backend.Sandbox, _ backend.Process) bool {
			return has[backend.Extender](sb)
		}},
		{backend.FeatureDial, func(_ *backendtest.Fake, sb backend.Sandbox, _ backend.Process) bool { return has[backend.Dialer](sb) }},
		{backend.FeatureUsage, func(_ *backendtest.Fake, sb backend.Sandbox, _ backend.Process) bool { return has[backend.Meter](sb) }},
		{backend.FeatureProcesses, func(_ *backendtest.Fake, sb backend.Sandbox, _ backend.Process) bool {
			return has[backend.ProcessFinder](sb)
		}},
		{backend.FeatureRange, func(_ *backendtest.Fake, sb backend.Sandbox, _ backend.Process) bool {
			return has[backend.RangeOpener](sb.Files())
		}},
		{backend.FeatureInput, func(_ *backendtest.Fake, _ backend.Sandbox, p backend.Process) bool { return has[backend.Inputter](p) }},
		{backend.FeatureTerminal, func(_ *backendtest.Fake, _ backend.Sandbox, p backend.Process) bool { return has[backend.Resizer](p) }},
	}
	for _, tt := range tests {
		t.Run(string(tt.feature), func(t *testing.T) {
			t.Parallel()
			for _, claimed := range []bool{true, false} {
				var opts []backendtest.Option
				if !claimed {
					opts = append(opts, backendtest.Without(tt.feature))
				}
				f := backendtest.New(opts...)
				sb := create(t, f, backend.Spec{})
				p := start(t, sb, backend.Command{Args: []string{"hang"}, KeepInput: true, Terminal: &backend.TerminalSize{}})
				if got := tt.has(f, sb, p); got != claimed || f.Capabilities().Has(tt.feature) != claimed {
					t.Errorf("claimed %v, found %v", claimed, got)
				}
				_ = f.Close()
			}
		})
	}
}

func TestFake_pauseDisarmsTheDeadline(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	sb := create(t, f, backend.Spec{Lifetime: time.Minute})
	pauser, _ := backend.As[backend.Pauser](sb)
	if err := pauser.Pause(t.Context(), backend.PauseOptions{}); err != nil {
		t.Fatal(err)
	}
	wantKind(t, pauser.Pause(t.Context(), backend.PauseOptions{}), backend.ErrConflict)
	_, err := sb.Start(t.Context(), backend.Command{Args: []string{"true"}})
	wantKind(t, err, backend.ErrConflict)
	f.Clock().Advance(time.Hour)
	if err := pauser.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantKind(t, pauser.Resume(t.Context()), backend.ErrConflict)
	f.Clock().Advance(59 * time.Second)
	wait(t, start(t, sb, backend.Command{Args: []string{"true"}}))
	extender, _ := backend.As[backend.Extender](sb)
	if err := extender.SetLifetime(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	f.Clock().Advance(59 * time.Second)
	if left := f.Leaked(); len(left) != 1 {
		t.Errorf("extended, but left are %q", left)
	}
	f.Clock().Advance(time.Second)
	wantKind(t, pauser.Resume(t.Context()), backend.ErrExpired)
}

func TestFake_keptIsFoundAgain(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	kept := create(t, f, backend.Spec{Keep: true, Labels: map[string]string{"a": "b"}})
	bound := create(t, f, backend.Spec{})
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := f.Create(t.Context(), backend.Spec{})
	wantKind(t, err, backend.ErrClosed)
	second := f.Reopen()
	finder, _ := backend.As[backend.Finder](second)
	_, err = finder.Find(t.Context(), bound.ID())
	wantKind(t, err, backend.ErrNotFound)
	sb, err := finder.Find(t.Context(), kept.ID())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for info, err := range finder.Sandboxes(t.Context()) {
		if n++; err != nil || info.ID != kept.ID() || info.Labels["a"] != "b" || !info.Keep {
			t.Errorf("%+v %v", info, err)
		}
	}
	if n != 1 {
		t.Errorf("%d sandboxes listed", n)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = finder.Find(t.Context(), kept.ID())
	wantKind(t, err, backend.ErrNotFound)
	if left := f.Leaked(); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func TestFake_attachInputAndTerminal(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	sb := create(t, f, backend.Spec{})
	var first, second bytes.Buffer
	p := start(t, sb, backend.Command{
		Args: []string{"cat"}, KeepInput: true, Tag: "x", Output: backend.Output{Stdout: &first},
	})
	in, _ := backend.As[backend.Inputter](p)
	if err := in.WriteInput(t.Context(), []byte("one ")); err != nil {
		t.Fatal(err)
	}
	ps, _ := backend.As[backend.ProcessFinder](sb)
	if err := in.WriteInput(t.Context(), []byte("two ")); err != nil {
		t.Fatal(err)
	}
	again, err := ps.Attach(t.Context(), p.ID(), backend.AttachOptions{Output: backend.Output{Stdout: &second}, Replay: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.CloseInput(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait(t, again)
	if first.String() != "one two " || second.String() != "one two " {
		t.Errorf("outputs %q and %q", first.String(), second.String())
	}
	infos, err := ps.Processes(t.Context())
	if err != nil || len(infos) != 1 || infos[0].Tag != "x" || infos[0].Exit == nil {
		t.Errorf("Processes: %+v %v", infos, err)
	}
	_, err = ps.Attach(t.Context(), "other", backend.AttachOptions{})
	wantKind(t, err, backend.ErrNotFound)
}

func TestFake_dial(t *testing.T) {
	t.Parallel()
	ready := make(chan struct{})
	f := backendtest.New(backendtest.WithProgram("serve", func(_ context.Context, p *backendtest.Proc) backend.Exit {
		l, err := p.Listen(8080)
		if err != nil {
			return backendtest.Exited(1)
		}
		close(ready)
		for {
			c, err := l.Accept()
			if err != nil {
				return backendtest.Exited(0)
			}
			_, _ = io.WriteString(c, "hi")
			_ = c.Close()
		}
	}))
	sb := create(t, f, backend.Spec{})
	dialer, _ := backend.As[backend.Dialer](sb)
	_, err := dialer.DialContext(t.Context(), "tcp", "8080")
	wantKind(t, err, backend.ErrUnavailable)
	start(t, sb, backend.Command{Args: []string{"serve"}})
	<-ready
	for _, addr := range []string{"8080", "localhost:8080", "127.0.0.1:8080"} {
		c, err := dialer.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(c); string(got) != "hi" {
			t.Errorf("%s: %q", addr, got)
		}
		_ = c.Close()
	}
	for _, addr := range []string{"192.0.2.1:8080", "65536", "x"} {
		_, err := dialer.DialContext(t.Context(), "tcp", addr)
		wantKind(t, err, backend.ErrInvalid)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
}
