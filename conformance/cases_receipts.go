package conformance

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func receiptCases() []Case {
	return []Case{
		{ID: "RC-01", Area: Receipts, Title: "a receipt names sandbox, driver, level, network, lifetime and deadline", Run: receiptFacts},
		{ID: "RC-02", Area: Receipts, Title: "a receipt has each limit once, with its value, and claims no more than the executor", Run: receiptLimits},
		{ID: "RC-03", Area: Receipts, Title: "a receipt has each other control that is claimed, as it is claimed", Run: receiptControls},
		{ID: "RC-04", Area: Receipts, Title: "the same spec has the same policy hash, another spec another", Run: policyHash},
		{ID: "RC-05", Area: Receipts, Title: "a receipt does not change, and survives JSON", Run: receiptStays},
		{ID: "RC-06", Area: Receipts, Title: "a receipt holds no value of the environment", Run: receiptSecrets},
		{ID: "RC-07", Area: Receipts, Title: "a limit that was asked for and one that is a default are told apart", Run: receiptDefaults},
	}
}

func receiptFacts(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Lifetime: 10 * time.Minute, Labels: map[string]string{"a": "b"}})
	r, left := sb.Receipt(), sb.Receipt().Deadline.Sub(t.now())
	switch caps := t.Caps(); {
	case r.Sandbox != sb.ID() || r.Driver != caps.Driver || r.Backend == "":
		t.Errorf("who: %+v", r)
	case r.Asked != backend.IsolationNone || r.Achieved != caps.Isolation:
		t.Errorf("level %v of %v", r.Achieved, caps.Isolation)
	case r.Lifetime != "bound" || left < 8*time.Minute || left > 10*time.Minute+time.Second:
		t.Errorf("%s for %v", r.Lifetime, left)
	case !slices.Contains(caps.Networks, r.Network):
		t.Errorf("network %q", r.Network)
	}
}

// limitControls are those that receipts hold as limits.
func limitControls() []backend.Control {
	return []backend.Control{
		backend.ControlMemory, backend.ControlCPU, backend.ControlPids, backend.ControlDisk, backend.ControlInodes, backend.ControlOpenFiles,
		backend.ControlFileSize, backend.ControlCPUTime, backend.ControlOutput, backend.ControlLifetime,
	}
}

// firmness orders enforcements.
func firmness(e backend.Enforcement) int {
	return slices.Index([]backend.Enforcement{backend.Unsupported, backend.BestEffort, backend.Enforced}, e)
}

func receiptLimits(ctx context.Context, t *T) {
	var got []backend.Control
	for _, g := range t.Create(ctx, backend.Spec{}).Receipt().Limits {
		if slices.Contains(got, g.Control) {
			t.Errorf("%s is there twice", g.Control)
		}
		got = append(got, g.Control)
		if g.Value == "" || firmness(g.Enforcement) < 0 || firmness(g.Enforcement) > firmness(t.Caps().Claim(g.Control).Enforcement) {
			t.Errorf("%+v, claimed %+v", g, t.Caps().Claim(g.Control))
		}
		if g.Enforcement == backend.Enforced && g.Mechanism == "" {
			t.Errorf("%s is enforced by nothing", g.Control)
		}
	}
	for _, c := range limitControls() {
		if !slices.Contains(got, c) {
			t.Errorf("%s is not in the receipt", c)
		}
	}
}

func receiptControls(ctx context.Context, t *T) {
	r := t.Create(ctx, backend.Spec{}).Receipt()
	for c, cl := range r.Controls {
		if claim := t.Caps().Claim(c); firmness(cl.Enforcement) < 0 || firmness(cl.Enforcement) > firmness(claim.Enforcement) {
			t.Errorf("%s: %+v, claimed %+v", c, cl, claim)
		}
	}
	for c, claim := range t.Caps().Claims {
		if _, ok := r.Controls[c]; !ok && !slices.Contains(limitControls(), c) {
			t.Errorf("%s, which is %s, is not in the receipt", c, claim.Enforcement)
		}
	}
}

func policyHash(ctx context.Context, t *T) {
	hash := func(s backend.Spec) string {
		sb := t.Create(ctx, s)
		r := sb.Receipt()
		if err := sb.Destroy(ctx); err != nil {
			t.Errorf("destroy: %v", err)
		}
		return r.PolicyHash
	}
	one, same, other := hash(backend.Spec{}), hash(backend.Spec{}), hash(backend.Spec{Env: map[string]string{"A": "b"}})
	if one == "" || one != same || one == other {
		t.Errorf("%q, the same again %q, another %q", one, same, other)
	}
}

func receiptStays(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	before := sb.Receipt()
	t.good(t.exec(ctx, sb, "true"))
	data, err := json.Marshal(sb.Receipt())
	if err != nil {
		t.Fatalf("%v", err)
	}
	if after := sb.Receipt(); !reflect.DeepEqual(before, after) {
		t.Errorf("%+v, and then %+v", before, after)
	}
	var back backend.Receipt
	if err := json.Unmarshal(data, &back); err != nil || back.Sandbox != sb.ID() || len(back.Limits) != len(before.Limits) {
		t.Errorf("%s: %v", data, err)
	}
}

func receiptSecrets(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Env: map[string]string{"TOKEN": "conformance-hush-hush"}})
	if data, err := json.Marshal(sb.Receipt()); err != nil || strings.Contains(string(data), "hush") {
		t.Errorf("%s, %v", data, err)
	}
}

func receiptDefaults(ctx context.Context, t *T) {
	spec := backend.Spec{Limits: backend.Limits{OpenFiles: 345}, Advisory: []backend.Control{backend.ControlOpenFiles}}
	for _, g := range t.Create(ctx, spec).Receipt().Limits {
		if asked := g.Control == backend.ControlOpenFiles; asked == g.Default || asked && g.Value != "345" {
			t.Errorf("%+v", g)
		}
	}
}
