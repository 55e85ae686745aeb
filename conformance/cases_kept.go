package conformance

import (
	"context"
	"maps"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func keptCases() []Case {
	found := needs(feature(backend.FeatureFind))
	return []Case{
		{ID: "LC-40", Area: Lifecycle, Title: "a kept sandbox outlives its executor and is found by another, with its files and processes' place", Needs: found, Run: keptIsFound},
		{ID: "LC-41", Area: Lifecycle, Title: "a bound sandbox is listed by another executor and not found by it", Needs: found, Run: boundIsNotFound},
		{ID: "LC-42", Area: Lifecycle, Title: "a list says state, labels, limits, deadline, level and whether it is kept", Needs: found, Run: listed},
		{ID: "LC-43", Area: Lifecycle, Title: "a kept sandbox that its finder destroyed is found by nobody", Needs: found, Run: destroyedByFinder},
		{ID: "LC-44", Area: Lifecycle, Title: "a kept sandbox ends at its deadline though nobody holds it", Needs: found, Run: keptEnds},
		{ID: "LC-45", Area: Lifecycle, Title: "the receipt of a found sandbox is its maker's", Needs: found, Run: receiptOfFound},
		{ID: "LC-46", Area: Lifecycle, Title: "a lifetime that one sets is what another sees", Needs: append(found, feature(backend.FeatureExtend)), Run: lifetimeSeen},
	}
}

// keep makes a kept sandbox on an executor of its own, which it closes.
func (t *T) keep(ctx context.Context, spec backend.Spec, use func(backend.Sandbox)) string {
	ex := t.Open(ctx)
	spec.Keep = true
	sb, err := ex.Create(ctx, t.Spec(spec))
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	t.made(sb.ID())
	t.Cleanup(func(ctx context.Context) {
		again, err := find[backend.Finder](t, "find", t.Executor()).Find(ctx, sb.ID())
		if err != nil {
			return // gone, as it should be
		}
		if err := again.Destroy(ctx); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
	if use != nil {
		use(sb)
	}
	if err := ex.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	return sb.ID()
}

func (t *T) findAgain(ctx context.Context, id string) backend.Sandbox {
	sb, err := find[backend.Finder](t, "find", t.Open(ctx)).Find(ctx, id)
	if err != nil {
		t.Fatalf("find %s: %v", id, err)
	}
	return sb
}

func keptIsFound(ctx context.Context, t *T) {
	id := t.keep(ctx, backend.Spec{Env: map[string]string{"KEPT": "yes"}}, func(sb backend.Sandbox) { t.write(ctx, sb, "note", "from before\n") })
	sb := t.findAgain(ctx, id)
	if sb.ID() != id {
		t.Errorf("found %q", sb.ID())
	}
	if got := t.good(t.exec(ctx, sb, "cat", "note")); got != "from before\n" {
		t.Errorf("%q", got)
	}
	if err := sb.Destroy(ctx); err != nil {
		t.Errorf("destroy: %v", err)
	}
}

func boundIsNotFound(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	other := t.Open(ctx)
	if info, ok := t.infos(ctx, other)[sb.ID()]; !ok || info.Keep {
		t.Errorf("listed: %v, %+v", ok, info)
	}
	_, err := find[backend.Finder](t, "find", other).Find(ctx, sb.ID())
	t.kind("find", err, backend.ErrNotFound)
	t.good(t.exec(ctx, sb, "true"))
}

func listed(ctx context.Context, t *T) {
	labels := map[string]string{"who": "conformance", "ünïcode": "ä b=c\nd"}
	id := t.keep(ctx, backend.Spec{Labels: labels, Lifetime: 10 * time.Minute}, nil)
	info := t.infos(ctx, t.Executor())[id]
	left := info.Deadline.Sub(t.now())
	if info.State != backend.StateRunning || !maps.Equal(info.Labels, labels) || !info.Keep || info.Isolation != t.Caps().Isolation ||
		info.Network != t.Spec(backend.Spec{}).Network.Mode && info.Network != backend.NetworkNone ||
		info.Limits.Memory != backend.DefaultMemory || left <= 8*time.Minute || left > 10*time.Minute ||
		t.now().Sub(info.Started) > 5*time.Minute || info.Started.After(t.now().Add(time.Second)) {
		t.Errorf("%+v", info)
	}
}

func destroyedByFinder(ctx context.Context, t *T) {
	id := t.keep(ctx, backend.Spec{}, nil)
	if err := t.findAgain(ctx, id).Destroy(ctx); err != nil {
		t.Errorf("destroy: %v", err)
	}
	for range 2 {
		_, err := find[backend.Finder](t, "find", t.Executor()).Find(ctx, id)
		t.kind("find", err, backend.ErrNotFound)
	}
	if info, ok := t.infos(ctx, t.Executor())[id]; ok {
		t.Errorf("still listed: %+v", info)
	}
}

func keptEnds(ctx context.Context, t *T) {
	id := t.keep(ctx, backend.Spec{Lifetime: 3 * time.Second}, nil)
	t.pass(ctx, 3*time.Second)
	f := find[backend.Finder](t, "find", t.Open(ctx))
	t.until(ctx, "nobody finds it", func() bool {
		_, err := f.Find(ctx, id)
		return backend.KindOf(err) == backend.ErrNotFound || backend.KindOf(err) == backend.ErrExpired
	})
	t.Open(ctx) // which sweeps
}

func receiptOfFound(ctx context.Context, t *T) {
	var made backend.Receipt
	id := t.keep(ctx, backend.Spec{Limits: backend.Limits{OpenFiles: 222}, Advisory: []backend.Control{backend.ControlOpenFiles}}, func(sb backend.Sandbox) { made = sb.Receipt() })
	got := t.findAgain(ctx, id).Receipt()
	if got.Sandbox != id || got.Lifetime != "kept" || made.Lifetime != "kept" || got.Achieved != made.Achieved ||
		got.PolicyHash != made.PolicyHash || len(got.Limits) != len(made.Limits) {
		t.Errorf("%+v, made with %+v", got, made)
	}
	for i, g := range got.Limits {
		if i < len(made.Limits) && g != made.Limits[i] {
			t.Errorf("%+v, made with %+v", g, made.Limits[i])
		}
	}
}

func lifetimeSeen(ctx context.Context, t *T) {
	id := t.keep(ctx, backend.Spec{Lifetime: time.Minute}, nil)
	if err := find[backend.Extender](t, "extend", t.findAgain(ctx, id)).SetLifetime(ctx, time.Hour); err != nil {
		t.Fatalf("%v", err)
	}
	if left := t.infos(ctx, t.Open(ctx))[id].Deadline.Sub(t.now()); left < 50*time.Minute || left > time.Hour {
		t.Errorf("it has %v left", left)
	}
}
