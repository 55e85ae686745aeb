package conformance

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// What cases share.

// maxHeld bounds what a case collects of one stream.
const maxHeld = 80 << 20

// tape collects output. It is safe for concurrent use.
type tape struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *tape) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.buf.Len() < maxHeld {
		o.buf.Write(p)
	}
	return len(p), nil
}

func (o *tape) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// outcome is what a command gave.
type outcome struct {
	backend.Exit
	out, err string
}

func (o outcome) has(h backend.Hit) bool {
	return slices.Contains(o.Hits, h)
}

// tryRun runs cmd to its end.
func tryRun(ctx context.Context, sb backend.Sandbox, cmd backend.Command) (outcome, error) {
	var out, errs tape
	if cmd.Output.Stdout == nil {
		cmd.Output.Stdout = &out
	}
	if cmd.Output.Stderr == nil {
		cmd.Output.Stderr = &errs
	}
	exit, err := backend.RunIn(ctx, sb, cmd)
	return outcome{exit, out.String(), errs.String()}, err
}

// command runs cmd, whose end must be known.
func (t *T) command(ctx context.Context, sb backend.Sandbox, cmd backend.Command) outcome {
	got, err := tryRun(ctx, sb, cmd)
	if err != nil {
		t.Fatalf("%.200q: %v", cmd.Args, err)
	}
	return got
}

func (t *T) exec(ctx context.Context, sb backend.Sandbox, args ...string) outcome {
	return t.command(ctx, sb, backend.Command{Args: args})
}

func (t *T) sh(ctx context.Context, sb backend.Sandbox, script string) outcome {
	return t.exec(ctx, sb, "sh", "-c", script)
}

func (t *T) python(ctx context.Context, sb backend.Sandbox, program string) outcome {
	return t.exec(ctx, sb, "python3", "-c", program)
}

// good ends the case unless the command exited with 0; it is its output.
func (t *T) good(got outcome) string {
	if !got.Success() {
		t.Fatalf("%v, hits %v\nstdout: %.1000q\nstderr: %.1000q", got.Exit, got.Hits, got.out, got.err)
	}
	return got.out
}

// start starts cmd and puts what it writes on the tapes.
func (t *T) start(ctx context.Context, sb backend.Sandbox, cmd backend.Command) (p backend.Process, out, errs *tape) {
	out, errs = &tape{}, &tape{}
	if cmd.Output.Stdout == nil {
		cmd.Output.Stdout = out
	}
	if cmd.Output.Stderr == nil {
		cmd.Output.Stderr = errs
	}
	p, err := sb.Start(ctx, cmd)
	if err != nil {
		t.Fatalf("start %.200q: %v", cmd.Args, err)
	}
	return p, out, errs
}

// wait is the command's end, which must be known.
func (t *T) wait(ctx context.Context, p backend.Process) backend.Exit {
	exit, err := p.Wait(ctx)
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return exit
}

// exited fails the case unless a command ended so: "exited(3)".
func (t *T) exited(what string, got backend.Exit, want string) {
	if got.String() != want {
		t.Errorf("%s: %v, want %s", what, got, want)
	}
}

// until waits for something that must come about; the case ends without it.
func (t *T) until(ctx context.Context, what string, cond func() bool) {
	deadline := time.Now().Add(30 * time.Second)
	for !cond() {
		if ctx.Err() != nil || time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		wait(ctx, 10*time.Millisecond)
	}
}

// pass lets d pass on the backend's clock.
func (t *T) pass(ctx context.Context, d time.Duration) {
	if c := t.run.target.Clock; c != nil {
		c.Advance(d)
		return
	}
	wait(ctx, d)
}

// now is the backend's time.
func (t *T) now() time.Time {
	if c := t.run.target.Clock; c != nil {
		return c.Now()
	}
	return time.Now()
}

// kind fails the case unless err is of that kind.
func (t *T) kind(what string, err error, kinds ...backend.Kind) {
	got := backend.KindOf(err)
	for _, k := range kinds {
		if err != nil && got == k {
			return
		}
	}
	t.Errorf("%s: kind %q of error %v, want %q", what, got, err, kinds)
}

// refusedWith fails the case unless err is of that kind and names the field.
func (t *T) refusedWith(what string, err error, kind backend.Kind, field string) {
	t.kind(what, err, kind)
	if err == nil {
		return
	}
	be, ok := errors.AsType[*backend.Error](err)
	if !ok || !strings.HasPrefix(be.Field, field) {
		t.Errorf("%s: the field %q is not named by %v", what, field, err)
	}
}

// unsupportedField fails the case unless err is ErrUnsupported, names the field
// and says what to do.
func (t *T) unsupportedField(what string, err error, field string) {
	t.refusedWith(what, err, backend.ErrUnsupported, field)
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("%s: it is not errors.ErrUnsupported: %v", what, err)
	}
	if be, ok := errors.AsType[*backend.Error](err); ok && be.Fix == "" {
		t.Errorf("%s: no fix is given: %v", what, err)
	}
}

// refuses creates what must not be; a sandbox that comes about is destroyed.
func (t *T) refuses(ctx context.Context, ex backend.Executor, spec backend.Spec) error {
	sb, err := ex.Create(ctx, spec)
	if err == nil {
		t.Keep(sb)
	}
	return err
}

// find is an optional interface that must be there.
func find[I any](t *T, what string, v any) I {
	i, ok := backend.As[I](v)
	if !ok {
		t.Fatalf("%s is claimed and not there", what)
	}
	return i
}

// absent fails the case when an optional interface is there.
func absent[I any](t *T, what string, v any) {
	if _, ok := backend.As[I](v); ok {
		t.Errorf("%s is there and not claimed", what)
	}
}

func (t *T) write(ctx context.Context, sb backend.Sandbox, name, data string) {
	if err := backend.WriteFile(ctx, sb.Files(), name, []byte(data), 0); err != nil {
		t.Fatalf("write %.100q: %v", name, err)
	}
}

func (t *T) read(ctx context.Context, sb backend.Sandbox, name string) string {
	data, err := backend.ReadFile(ctx, sb.Files(), name, maxHeld)
	if err != nil {
		t.Fatalf("read %.100q: %v", name, err)
	}
	return string(data)
}

// calls are every call on a sandbox, by name.
func calls(sb backend.Sandbox) map[string]func(context.Context) error {
	files := sb.Files()
	all := map[string]func(context.Context) error{
		"start": func(ctx context.Context) error {
			_, err := sb.Start(ctx, backend.Command{Args: []string{"true"}})
			return err
		},
		"open": func(ctx context.Context) error {
			rc, err := files.Open(ctx, "x")
			if err == nil {
				err = rc.Close()
			}
			return err
		},
		"write":  func(ctx context.Context) error { return backend.WriteFile(ctx, files, "y", []byte("x"), 0) },
		"stat":   func(ctx context.Context) error { _, err := files.Stat(ctx, "x"); return err },
		"list":   func(ctx context.Context) error { _, err := files.List(ctx, "."); return err },
		"mkdir":  func(ctx context.Context) error { return files.Mkdir(ctx, "d", 0) },
		"rename": func(ctx context.Context) error { return files.Rename(ctx, "x", "z") },
		"remove": func(ctx context.Context) error { return files.Remove(ctx, "y") },
	}
	if e, ok := backend.As[backend.Extender](sb); ok {
		all["set lifetime"] = func(ctx context.Context) error { return e.SetLifetime(ctx, time.Minute) }
	}
	if m, ok := backend.As[backend.Meter](sb); ok {
		all["usage"] = func(ctx context.Context) error { _, err := m.Usage(ctx); return err }
	}
	if f, ok := backend.As[backend.ProcessFinder](sb); ok {
		all["processes"] = func(ctx context.Context) error { _, err := f.Processes(ctx); return err }
		all["attach"] = func(ctx context.Context) error { _, err := f.Attach(ctx, "none", backend.AttachOptions{}); return err }
	}
	if d, ok := backend.As[backend.Dialer](sb); ok {
		all["dial"] = func(ctx context.Context) error {
			conn, err := d.DialContext(ctx, "tcp", "1")
			if err == nil {
				err = conn.Close()
			}
			return err
		}
	}
	if p, ok := backend.As[backend.Pauser](sb); ok {
		all["pause"] = func(ctx context.Context) error { return p.Pause(ctx, backend.PauseOptions{}) }
	}
	return all
}

// everyCall makes all calls; each must end with an error of one of kinds.
func (t *T) everyCall(ctx context.Context, sb backend.Sandbox, kinds ...backend.Kind) {
	for name, call := range calls(sb) {
		t.kind(name, call(ctx), kinds...)
	}
}

// infos lists an executor's sandboxes by ID.
func (t *T) infos(ctx context.Context, ex backend.Executor) map[string]backend.Info {
	all := map[string]backend.Info{}
	for info, err := range find[backend.Finder](t, "find", ex).Sandboxes(ctx) {
		if err != nil {
			t.Fatalf("sandboxes: %v", err)
		}
		all[info.ID] = info
	}
	return all
}

// pattern is n bytes in which every value occurs.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8*13)
	}
	return b
}

// endless reads the byte b for ever.
type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

var _ io.Reader = endless(0)
