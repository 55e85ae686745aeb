package conformance

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/glovebox-dev/glovebox/backend"
)

// maxLog bounds what one case may say, since it quotes what comes from
// sandboxes.
const (
	maxLog  = 50
	maxLine = 4000
)

// T is what a case tells its outcome to. It is safe for concurrent use, but
// for Fatalf and Inconclusivef, which belong to the case's own goroutine.
type T struct {
	run *runner

	mu           sync.Mutex
	failed       bool
	inconclusive bool
	over         bool // nothing is recorded any more
	log          []string
	cleanups     []func(context.Context)
	ids          []string // of the sandboxes it made
}

// Logf records a line that is shown when the case does not pass.
func (t *T) Logf(format string, args ...any) { t.say(nil, format, args...) }

// Errorf fails the case, which goes on.
func (t *T) Errorf(format string, args ...any) { t.say(&t.failed, format, args...) }

// Fatalf fails the case and ends it.
func (t *T) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

// Inconclusivef ends the case since a control shows that nothing can be learnt
// from it here.
func (t *T) Inconclusivef(format string, args ...any) {
	t.say(&t.inconclusive, format, args...)
	runtime.Goexit()
}

func (t *T) say(mark *bool, format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if len(line) > maxLine {
		line = line[:maxLine] + " …"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return
	}
	if mark != nil {
		*mark = true
	}
	if len(t.log) < maxLog {
		t.log = append(t.log, strings.ToValidUTF8(line, "\uFFFD"))
	}
}

// Cleanup has f called when the case has ended, however it ended, the last one
// first, with a context that is alive.
func (t *T) Cleanup(f func(ctx context.Context)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

// nextCleanup takes the last cleanup.
func (t *T) nextCleanup() func(context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.cleanups) == 0 {
		return nil
	}
	f := t.cleanups[len(t.cleanups)-1]
	t.cleanups = t.cleanups[:len(t.cleanups)-1]
	return f
}

func (t *T) made(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ids = append(t.ids, id)
}

// Executor is the executor that all cases of a run share. Nobody closes it.
func (t *T) Executor() backend.Executor { return t.run.ex }

// Caps is what the executor claims.
func (t *T) Caps() backend.Capabilities { return t.run.caps }

// Enforces tells whether a control is claimed without ifs.
func (t *T) Enforces(c backend.Control) bool {
	return t.run.caps.Claim(c).Enforcement == backend.Enforced
}

// Open opens one more executor of the same target and store, as a second
// process would; it is closed at the case's end.
func (t *T) Open(ctx context.Context) backend.Executor {
	ex, err := t.run.target.Open(ctx)
	if err != nil {
		t.Fatalf("a further executor: %v", err)
	}
	t.Cleanup(func(context.Context) {
		if err := ex.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return ex
}

// Spec is spec as this target can make it: with the target's template and
// without a demand for no network where there is no such mode.
func (t *T) Spec(spec backend.Spec) backend.Spec {
	base := t.run.target.Spec
	if spec.Template == "" {
		spec.Template = base.Template
	}
	if spec.Network.Mode == "" {
		spec.Network.Mode = base.Network.Mode
	}
	if modes := t.Caps().Networks; spec.Network.Mode == "" && !slices.Contains(modes, backend.NetworkNone) && len(modes) > 0 {
		spec.Network.Mode = modes[0]
	}
	return spec
}

// Create makes a sandbox that is destroyed at the case's end.
func (t *T) Create(ctx context.Context, spec backend.Spec) backend.Sandbox {
	return t.CreateOn(ctx, t.Executor(), spec)
}

// CreateOn is Create on another executor.
func (t *T) CreateOn(ctx context.Context, ex backend.Executor, spec backend.Spec) backend.Sandbox {
	sb, err := ex.Create(ctx, t.Spec(spec))
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Keep(sb)
	return sb
}

// Keep has sb destroyed at the case's end.
func (t *T) Keep(sb backend.Sandbox) {
	t.made(sb.ID())
	t.Cleanup(func(ctx context.Context) {
		if err := sb.Destroy(ctx); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
}
