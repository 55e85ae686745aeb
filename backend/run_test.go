package backend_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/backend/backendtest"
)

func runSpec(args ...string) backend.RunSpec {
	return backend.RunSpec{
		Command: backend.Command{Args: args},
		Files:   map[string]backend.File{"in": {Data: []byte("data")}, "more": {Reader: strings.NewReader("x")}},
		Fetch:   []string{"in", "absent"},
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	rs := runSpec("cat", "in", "more")
	var streamed bytes.Buffer
	rs.Command.Output.Stdout = &streamed
	res, err := backend.Run(t.Context(), f, rs)
	if err != nil {
		t.Fatal(err)
	}
	if !res.Exit.Success() || string(res.Stdout) != "datax" || streamed.String() != "datax" || len(res.Stderr) != 0 {
		t.Errorf("%+v, streamed %q", res, streamed.String())
	}
	if diff := cmp.Diff(map[string][]byte{"in": []byte("data")}, res.Files); diff != "" {
		t.Error(diff)
	}
	if res.Receipt.Sandbox == "" {
		t.Error("no receipt")
	}
	nothingLeft(t, f)
}

func nothingLeft(t *testing.T, f *backendtest.Fake) {
	t.Helper()
	if left := f.Leaked(); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func TestRun_leavesNothingOnAnyErrorPath(t *testing.T) {
	t.Parallel()
	boom := &backend.Error{Op: "boom", Kind: backend.ErrLost}
	tests := []struct {
		name  string
		fault backendtest.Fault
		known string // of the exit
	}{
		{"create", backendtest.Fault{Op: backendtest.OpCreate}, ""},
		{"first file", backendtest.Fault{Op: backendtest.OpWrite, Nth: 1}, ""},
		{"second file", backendtest.Fault{Op: backendtest.OpWrite, Nth: 2}, ""},
		{"start", backendtest.Fault{Op: backendtest.OpStart}, ""},
		{"start, its answer lost", backendtest.Fault{Op: backendtest.OpStart, After: true}, ""},
		{"wait", backendtest.Fault{Op: backendtest.OpWait}, ""},
		{"fetch", backendtest.Fault{Op: backendtest.OpOpen}, "exited(0)"},
		{"read", backendtest.Fault{Op: backendtest.OpRead}, "exited(0)"},
		{"destroy, its answer lost", backendtest.Fault{Op: backendtest.OpDestroy, After: true}, "exited(0)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := backendtest.New()
			tt.fault.Err = boom
			f.Inject(tt.fault)
			res, err := backend.Run(t.Context(), f, runSpec("echo", "hi"))
			if !errors.Is(err, boom) || backend.KindOf(err) != backend.ErrLost {
				t.Errorf("error %v", err)
			}
			if res.Exit.String() != tt.known || (tt.known != "" && string(res.Stdout) != "hi\n") {
				t.Errorf("what is known: %v %q", res.Exit, res.Stdout)
			}
			nothingLeft(t, f)
		})
	}
}

func TestRun_leavesNothingWhenCancelledAnywhere(t *testing.T) {
	t.Parallel()
	for _, op := range []backendtest.Op{
		backendtest.OpCreate, backendtest.OpWrite, backendtest.OpStart, backendtest.OpWait, backendtest.OpOpen, backendtest.OpRead,
	} {
		t.Run(string(op), func(t *testing.T) {
			t.Parallel()
			f := backendtest.New()
			hold := f.Inject(backendtest.Fault{Op: op, Nth: 1, Hold: true})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				<-hold.Struck()
				cancel()
			}()
			_, err := backend.Run(ctx, f, runSpec("true"))
			// A command that ended before the kill reached it keeps its exit; the
			// files are then read with the ended context.
			if !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
			nothingLeft(t, f)
		})
	}
}

func TestRun_cancelledCommand(t *testing.T) {
	t.Parallel()
	for _, tree := range []bool{true, false} {
		var opts []backendtest.Option
		op := backendtest.OpKillTree
		if !tree {
			op = backendtest.OpSignal
			opts = append(opts, backendtest.WithCapabilities(func(c *backend.Capabilities) {
				c.Claims[backend.ControlKillTree] = backend.Claim{Enforcement: backend.BestEffort}
			}))
		}
		ctx, cancel := context.WithCancel(t.Context())
		opts = append(opts, backendtest.WithProgram("work", func(ctx context.Context, p *backendtest.Proc) backend.Exit {
			_, _ = io.WriteString(p.Stdout, "so far")
			cancel()
			<-ctx.Done()
			return backendtest.Exited(0)
		}))
		f := backendtest.New(opts...)
		res, err := backend.Run(ctx, f, runSpec("work"))
		if !errors.Is(err, context.Canceled) || res.Exit.Reason != backend.ReasonCanceled || string(res.Stdout) != "so far" {
			t.Errorf("tree %v: %v %+v", tree, err, res)
		}
		if len(f.Calls(op)) != 1 {
			t.Errorf("tree %v: no call of %s in %v", tree, op, f.Calls())
		}
		nothingLeft(t, f)
	}
}

func TestRun_destroyFails(t *testing.T) {
	t.Parallel()
	stuck := &backend.Error{Op: "destroy", Kind: backend.ErrUnavailable}
	f := backendtest.New()
	f.Inject(backendtest.Fault{Op: backendtest.OpDestroy, Err: stuck})
	res, err := backend.Run(t.Context(), f, runSpec("true"))
	if !errors.Is(err, stuck) || !res.Exit.Success() {
		t.Errorf("%v %v", err, res.Exit)
	}
	// With another error before it neither is lost, and the first one decides.
	f.Inject(backendtest.Fault{Op: backendtest.OpStart, Err: backend.ErrDenied})
	_, err = backend.Run(t.Context(), f, runSpec("true"))
	if !errors.Is(err, stuck) || backend.KindOf(err) != backend.ErrDenied {
		t.Errorf("both: %v", err)
	}
	if left := f.Leaked(); len(left) != 2 {
		t.Errorf("the fake lost count: %q", left)
	}
}

func TestRun_outlivedByItsContextStillDestroys(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	ctx, cancel := context.WithCancel(t.Context())
	created := f.Inject(backendtest.Fault{Op: backendtest.OpWrite, Hold: true})
	go func() { <-created.Struck(); cancel() }()
	if _, err := backend.Run(ctx, f, runSpec("true")); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if calls := f.Calls(backendtest.OpDestroy); len(calls) != 1 || calls[0].Err != nil {
		t.Errorf("destroy: %+v", calls)
	}
	nothingLeft(t, f)
}

func TestRun_capturesUpToTheLimit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name      string
		limit     int64
		written   string
		kept      int
		truncated bool
	}{
		{"below", 2000, "1999", 1999, false},
		{"exactly", 2000, "2000", 2000, false},
		{"above", 2000, "2001", 2000, true},
		{"default", 0, "10485761", 10 << 20, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := backendtest.New()
			rs := runSpec("flood", tt.written)
			rs.Spec.Limits.Output = tt.limit
			var streamed counter
			rs.Command.Output.Stdout = &streamed
			res, err := backend.Run(t.Context(), f, rs)
			if err != nil {
				t.Fatal(err)
			}
			if len(res.Stdout) != tt.kept || res.Exit.StdoutTruncated != tt.truncated || res.Exit.StderrTruncated {
				t.Errorf("%d bytes, %+v", len(res.Stdout), res.Exit)
			}
			if hit := len(res.Exit.Hits) == 1 && res.Exit.Hits[0] == backend.HitOutput; hit != tt.truncated {
				t.Errorf("hits %v", res.Exit.Hits)
			}
			if tt.limit == 0 && streamed != 10485761 {
				t.Errorf("streamed %d: what is streamed has no default limit", streamed)
			}
		})
	}
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

type broken struct{ calls int }

func (b *broken) Write([]byte) (int, error) {
	b.calls++
	return 0, io.ErrClosedPipe
}

func TestRun_brokenWriterStopsDeliveryNotTheCommand(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	rs := runSpec("flood", "5000")
	var b broken
	rs.Command.Output.Stdout = &b
	res, err := backend.Run(t.Context(), f, rs)
	if err != nil || len(res.Stdout) != 5000 || b.calls != 1 {
		t.Errorf("%v, %d bytes, %d calls", err, len(res.Stdout), b.calls)
	}
}

func TestRun_killOnOutputHasALimitWithoutOneSet(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	rs := runSpec("flood", "20000000")
	rs.Spec.Limits.KillOnOutput = true
	res, err := backend.Run(t.Context(), f, rs)
	if err != nil || res.Exit.Reason != backend.ReasonOutputLimit || len(res.Stdout) != 10<<20 {
		t.Errorf("%v %v, %d bytes", err, res.Exit, len(res.Stdout))
	}
}

func TestRun_refusesBeforeAnythingIsMade(t *testing.T) {
	t.Parallel()
	tests := []struct {
		change func(*backend.RunSpec)
		field  string
	}{
		{func(rs *backend.RunSpec) { rs.Command.Args = nil }, "command.args"},
		{func(rs *backend.RunSpec) { rs.Spec.Keep = true }, "keep"},
		{func(rs *backend.RunSpec) { rs.FetchLimit = -1 }, "fetch_limit"},
	}
	for _, tt := range tests {
		f := backendtest.New()
		rs := runSpec("true")
		tt.change(&rs)
		_, err := backend.Run(t.Context(), f, rs)
		wantField(t, err, backend.ErrInvalid, tt.field)
		if len(f.Calls()) != 0 {
			t.Errorf("%s: calls %v", tt.field, f.Calls())
		}
	}
}

func TestRun_fetchLimitIsForAllFiles(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	rs := runSpec("true")
	rs.Fetch, rs.FetchLimit = []string{"in", "more"}, 4
	res, err := backend.Run(t.Context(), f, rs)
	if backend.KindOf(err) != backend.ErrTooLarge || !res.Exit.Success() || len(res.Files) != 1 {
		t.Errorf("%v %+v", err, res.Files)
	}
	nothingLeft(t, f)
}

func TestReadFile_limits(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	sb, err := f.Create(t.Context(), backend.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := backend.WriteFile(t.Context(), sb.Files(), "a", []byte("12345"), 0); err != nil {
		t.Fatal(err)
	}
	for limit, fits := range map[int64]bool{5: true, 4: false, 0: false, -1: false, math.MaxInt64: true} {
		data, err := backend.ReadFile(t.Context(), sb.Files(), "a", limit)
		if fits && (err != nil || string(data) != "12345") || !fits && backend.KindOf(err) != backend.ErrTooLarge {
			t.Errorf("limit %d: %q %v", limit, data, err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, f)
}

func TestRunIn_killsWhatItCannotWaitFor(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	sb, err := f.Create(t.Context(), backend.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	f.Inject(backendtest.Fault{Op: backendtest.OpWait, Err: backend.ErrLost})
	_, err = backend.RunIn(t.Context(), sb, backend.Command{Args: []string{"hang"}})
	if backend.KindOf(err) != backend.ErrLost {
		t.Errorf("error %v", err)
	}
	if left := f.Leaked(); len(left) != 1 { // the sandbox lives on, alone
		t.Errorf("left: %q", left)
	}
}

func TestRunIn_killFails(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	sb, err := f.Create(t.Context(), backend.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	wait := f.Inject(backendtest.Fault{Op: backendtest.OpWait, Hold: true})
	f.Inject(backendtest.Fault{Op: backendtest.OpKillTree, Err: backend.ErrLost})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-wait.Struck(); cancel() }()
	exit, err := backend.RunIn(ctx, sb, backend.Command{Args: []string{"hang"}})
	if backend.KindOf(err) != backend.ErrLost || !errors.Is(err, context.Canceled) || exit.Reason != "" {
		t.Errorf("%v %v", exit, err)
	}
	_ = f.Close()
}

func TestRunIn_ownEndBeforeTheKillCounts(t *testing.T) {
	t.Parallel()
	f := backendtest.New()
	sb, err := f.Create(t.Context(), backend.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	wait := f.Inject(backendtest.Fault{Op: backendtest.OpWait, Nth: 1, Hold: true})
	kill := f.Inject(backendtest.Fault{Op: backendtest.OpKillTree, Hold: true})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-wait.Struck()
		cancel()
		<-kill.Struck()
		f.Clock().Advance(time.Second) // the command's own timeout
		kill.Release()
	}()
	exit, err := backend.RunIn(ctx, sb, backend.Command{Args: []string{"hang"}, Timeout: time.Second})
	if err != nil || exit.Reason != backend.ReasonTimeout {
		t.Errorf("%v %v", exit, err)
	}
	_ = f.Close()
}

func TestRun_warnsNearALimit(t *testing.T) {
	t.Parallel()
	fake := backendtest.New(backendtest.WithProgram("greedy", func(context.Context, *backendtest.Proc) backend.Exit {
		e := backendtest.Exited(0)
		e.Usage.PeakMemory = backend.DefaultMemory - 1
		return e
	}))
	res, err := backend.Run(t.Context(), fake, backend.RunSpec{Command: backend.Command{Args: []string{"greedy"}}})
	if err != nil || len(res.Exit.Warnings) != 1 || !strings.HasPrefix(res.Exit.Warnings[0], "memory reached 99%") {
		t.Errorf("warnings %q, %v", res.Exit.Warnings, err)
	}
}
