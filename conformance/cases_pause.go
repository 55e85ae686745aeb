package conformance

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func pauseCases() []Case {
	p := needs(shell(), feature(backend.FeaturePause))
	return []Case{
		{ID: "PA-01", Area: Pause, Title: "a paused sandbox stands still, and goes on where it was", Needs: p, Run: pauseResume},
		{ID: "PA-02", Area: Pause, Title: "pausing twice and resuming twice are conflicts", Needs: p, Run: pauseConflicts},
		{ID: "PA-03", Area: Pause, Title: "a command for a paused sandbox is a conflict", Needs: p, Run: startPaused},
		{ID: "PA-04", Area: Pause, Title: "the deadline does not strike a paused sandbox, and is set anew by resume", Needs: p, Run: pauseDeadline},
		{ID: "PA-05", Area: Pause, Title: "a paused sandbox can be destroyed", Needs: p, Run: destroyPaused},
		{ID: "PA-06", Area: Pause, Title: "a paused kept sandbox is found paused, and resumed by its finder", Needs: append(p, feature(backend.FeatureFind)), Run: foundPaused},
		{ID: "PA-07", Area: Pause, Title: "pausing files alone works or is refused, never pretended", Needs: p, Run: pauseFilesOnly},
		{ID: "PA-08", Area: Pause, Title: "closing the executor ends a paused bound sandbox", Needs: p, Run: closePaused},
		{ID: "PA-09", Area: Pause, Title: "at its deadline a sandbox that is to be paused is paused, or that was refused", Needs: append(p, feature(backend.FeatureFind)), Run: pauseAtExpiry},
	}
}

func (t *T) pause(ctx context.Context, sb backend.Sandbox) backend.Pauser {
	p := find[backend.Pauser](t, "pause", sb)
	if err := p.Pause(ctx, backend.PauseOptions{}); err != nil {
		t.Fatalf("pause: %v", err)
	}
	return p
}

// counts starts a program that counts aloud.
func (t *T) counts(ctx context.Context, sb backend.Sandbox) *tape {
	_, out, _ := t.start(ctx, sb, backend.Command{
		Args: []string{"sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"}, Timeout: backend.UntilSandboxEnds,
	})
	t.until(ctx, "it counts", func() bool { return strings.Count(out.String(), "\n") > 3 })
	return out
}

func pauseResume(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	out := t.counts(ctx, sb)
	p := t.pause(ctx, sb)
	wait(ctx, 300*time.Millisecond) // what was on its way arrives
	before := out.String()
	wait(ctx, time.Second)
	if after := out.String(); after != before {
		t.Errorf("it went on: %d bytes, and then %d", len(before), len(after))
	}
	if err := p.Resume(ctx); err != nil {
		t.Fatalf("resume: %v", err)
	}
	t.until(ctx, "it goes on", func() bool { return len(out.String()) > len(before)+10 })
	for i, line := range strings.Fields(out.String()) {
		if line != fmt.Sprint(i+1) {
			t.Errorf("line %d is %q", i+1, line)
			break
		}
	}
	t.good(t.exec(ctx, sb, "true"))
}

func pauseConflicts(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.kind("resume what runs", find[backend.Pauser](t, "pause", sb).Resume(ctx), backend.ErrConflict)
	p := t.pause(ctx, sb)
	t.kind("pause what is paused", p.Pause(ctx, backend.PauseOptions{}), backend.ErrConflict)
	if err := p.Resume(ctx); err != nil {
		t.Errorf("%v", err)
	}
	t.kind("resume twice", p.Resume(ctx), backend.ErrConflict)
}

func startPaused(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.pause(ctx, sb)
	short, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	_, err := sb.Start(short, backend.Command{Args: []string{"true"}})
	t.kind("start", err, backend.ErrConflict)
}

func pauseDeadline(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Lifetime: 4 * time.Second})
	p := t.pause(ctx, sb)
	t.pass(ctx, 6*time.Second)
	if err := p.Resume(ctx); err != nil {
		t.Fatalf("resume: %v", err)
	}
	t.good(t.exec(ctx, sb, "true"))
	t.pass(ctx, 4*time.Second)
	t.expired(ctx, sb)
}

func destroyPaused(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.counts(ctx, sb)
	t.pause(ctx, sb)
	if err := sb.Destroy(ctx); err != nil {
		t.Errorf("%v", err)
	}
	t.everyCall(ctx, sb, backend.ErrClosed)
}

func foundPaused(ctx context.Context, t *T) {
	id := t.keep(ctx, backend.Spec{}, func(sb backend.Sandbox) {
		t.write(ctx, sb, "f", "kept")
		t.pause(ctx, sb)
	})
	if info := t.infos(ctx, t.Executor())[id]; info.State != backend.StatePaused {
		t.Errorf("%+v", info)
	}
	sb := t.findAgain(ctx, id)
	if err := find[backend.Pauser](t, "pause", sb).Resume(ctx); err != nil {
		t.Fatalf("%v", err)
	}
	if got := t.read(ctx, sb, "f"); got != "kept" {
		t.Errorf("%q", got)
	}
	if info := t.infos(ctx, t.Executor())[id]; info.State != backend.StateRunning {
		t.Errorf("%+v", info)
	}
}

func pauseFilesOnly(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.write(ctx, sb, "f", "kept")
	p := find[backend.Pauser](t, "pause", sb)
	if err := p.Pause(ctx, backend.PauseOptions{FilesOnly: true}); err != nil {
		t.kind("files only", err, backend.ErrUnsupported)
	} else if err := p.Resume(ctx); err != nil {
		t.Errorf("%v", err)
	}
	if got := t.read(ctx, sb, "f"); got != "kept" {
		t.Errorf("%q", got)
	}
}

func closePaused(ctx context.Context, t *T) {
	ex := t.Open(ctx)
	sb := t.CreateOn(ctx, ex, backend.Spec{})
	t.pause(ctx, sb)
	if err := ex.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	t.everyCall(ctx, sb, backend.ErrClosed)
}

func pauseAtExpiry(ctx context.Context, t *T) {
	spec := backend.Spec{Lifetime: 3 * time.Second, OnExpiry: backend.ExpiryPause}
	kept := t.Spec(spec)
	kept.Keep = true
	if err := t.refuses(ctx, t.Executor(), kept); err != nil {
		t.unsupportedField("pausing at the deadline", err, "on_expiry")
		return
	}
	id := t.keep(ctx, spec, func(sb backend.Sandbox) { t.write(ctx, sb, "f", "kept") })
	t.pass(ctx, 3*time.Second)
	t.until(ctx, "it is paused", func() bool { return t.infos(ctx, t.Executor())[id].State == backend.StatePaused })
	sb := t.findAgain(ctx, id)
	if err := find[backend.Pauser](t, "pause", sb).Resume(ctx); err != nil {
		t.Fatalf("%v", err)
	}
	if got := t.read(ctx, sb, "f"); got != "kept" {
		t.Errorf("%q", got)
	}
}
