package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/glovebox-dev/glovebox/backend"
)

func metaCases() []Case {
	return []Case{
		{ID: "MT-01", Area: Meta, Title: "capabilities are the same at every call", Run: capsConstant},
		{ID: "MT-02", Area: Meta, Title: "capabilities hold known names only, and each claim says its mechanism or what is missing", Run: capsPlausible},
		{ID: "MT-03", Area: Meta, Title: "a further executor of the same store claims the same", Run: capsOfAnother},
		{ID: "MT-04", Area: Meta, Title: "the level that is claimed can be demanded", Run: ownLevel},
		{ID: "MT-05", Area: Meta, Title: "a stronger level is refused, never undercut", Run: strongerLevel},
		{ID: "MT-06", Area: Meta, Title: "network modes that are not claimed are refused", Run: otherNetworks},
		{ID: "MT-07", Area: Meta, Title: "capabilities are data: they survive JSON", Run: capsJSON},
		{ID: "MT-08", Area: Meta, Title: "a probe agrees with the capabilities", Needs: needs(feature(backend.FeatureProbe)), Run: probe},
	}
}

func capsConstant(ctx context.Context, t *T) {
	text := func() string {
		data, err := json.Marshal(t.Executor().Capabilities())
		if err != nil {
			t.Fatalf("%v", err)
		}
		return string(data)
	}
	before := text()
	t.good(t.exec(ctx, t.Create(ctx, backend.Spec{}), "true"))
	if after := text(); after != before {
		t.Errorf("%s, and then %s", before, after)
	}
}

func capsPlausible(_ context.Context, t *T) {
	caps := t.Caps()
	if caps.Driver == "" {
		t.Errorf("the driver has no name")
	}
	if caps.Isolation > backend.IsolationVM {
		t.Errorf("isolation %v", caps.Isolation)
	}
	for control, cl := range caps.Claims {
		switch {
		case !slices.Contains(backend.Controls(), control):
			t.Errorf("control %q is not known", control)
		case cl.Enforcement == backend.Enforced && cl.Mechanism == "":
			t.Errorf("%s is enforced by nothing", control)
		case cl.Enforcement == backend.BestEffort && cl.Note == "":
			t.Errorf("%s is best effort and does not say what stays open", control)
		case cl.Enforcement != backend.Enforced && cl.Enforcement != backend.BestEffort && cl.Enforcement != backend.Unsupported:
			t.Errorf("%s is %q", control, cl.Enforcement)
		}
	}
	known := features()
	for i, f := range caps.Features {
		if !slices.Contains(known, f) || slices.Contains(caps.Features[:i], f) {
			t.Errorf("feature %q is not known, or named twice", f)
		}
	}
	modes := []backend.NetworkMode{backend.NetworkNone, backend.NetworkAllowlist, backend.NetworkFull}
	for i, m := range caps.Networks {
		if !slices.Contains(modes, m) || slices.Contains(caps.Networks[:i], m) {
			t.Errorf("network mode %q is not known, or named twice", m)
		}
	}
	if len(caps.Networks) == 0 {
		t.Errorf("no network mode can be had")
	}
	if caps.Isolation >= backend.IsolationRestricted && !slices.Contains(caps.Networks, backend.NetworkNone) {
		t.Errorf("level %s without network mode none", caps.Isolation)
	}
}

func capsOfAnother(ctx context.Context, t *T) {
	if got := t.Open(ctx).Capabilities(); !reflect.DeepEqual(got, t.Caps()) {
		t.Errorf("%+v, want %+v", got, t.Caps())
	}
}

func ownLevel(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{MinIsolation: t.Caps().Isolation})
	if r := sb.Receipt(); r.Asked != t.Caps().Isolation || r.Achieved < r.Asked {
		t.Errorf("asked %v, achieved %v", r.Asked, r.Achieved)
	}
}

func strongerLevel(ctx context.Context, t *T) {
	for _, l := range backend.Isolations() {
		if l > t.Caps().Isolation {
			Need{NeedLevel, l.String()}.refuse(ctx, t)
		}
	}
	t.refusedWith("an unknown level", t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{MinIsolation: 99})), backend.ErrInvalid, "min_isolation")
}

func otherNetworks(ctx context.Context, t *T) {
	for _, m := range []backend.NetworkMode{backend.NetworkNone, backend.NetworkAllowlist, backend.NetworkFull} {
		if !slices.Contains(t.Caps().Networks, m) {
			network(m).refuse(ctx, t)
		}
	}
	t.refusedWith("an unknown mode", t.refuses(ctx, t.Executor(), backend.Spec{Network: backend.Network{Mode: "bridge"}}),
		backend.ErrInvalid, "network.mode")
}

func capsJSON(_ context.Context, t *T) {
	data, err := json.Marshal(t.Caps())
	if err != nil {
		t.Fatalf("%v", err)
	}
	var got backend.Capabilities
	if err := json.Unmarshal(data, &got); err != nil || !reflect.DeepEqual(got, t.Caps()) {
		t.Errorf("%s gives %+v, %v", data, got, err)
	}
}

func probe(ctx context.Context, t *T) {
	h, err := find[backend.Prober](t, "probe", t.Executor()).Probe(ctx)
	if err != nil || !h.Available || h.Isolation != t.Caps().Isolation {
		t.Errorf("%+v, %v", h, err)
	}
}

func features() []backend.Feature {
	return []backend.Feature{
		backend.FeatureProbe, backend.FeatureFind, backend.FeaturePause, backend.FeatureSnapshot, backend.FeatureExtend,
		backend.FeatureDial, backend.FeatureUsage, backend.FeatureProcesses, backend.FeatureTerminal, backend.FeatureInput,
		backend.FeatureUsers, backend.FeatureRange, backend.FeatureMetadata, backend.FeatureWatch, backend.FeatureEnvd,
		backend.FeaturePrivateRoot, backend.FeatureMounts, backend.FeatureTemplates, backend.FeatureStartup,
	}
}

// featureCases are one for each feature: what is claimed is there. That what is
// not claimed is refused follows from the need.
func featureCases() []Case {
	var out []Case
	for i, f := range features() {
		out = append(out, Case{
			ID: fmt.Sprintf("MT-%d", 20+i), Area: Meta, Title: "feature " + string(f) + " is there when it is claimed, and refused when it is not",
			Needs: needs(feature(f)), Run: func(ctx context.Context, t *T) { featureIsThere(ctx, t, f) },
		})
	}
	return out
}

func featureIsThere(ctx context.Context, t *T, f backend.Feature) {
	sb := t.Create(ctx, backend.Spec{})
	switch f {
	case backend.FeatureProbe:
		find[backend.Prober](t, "probe", t.Executor())
	case backend.FeatureFind:
		find[backend.Finder](t, "find", t.Executor())
	case backend.FeaturePause:
		find[backend.Pauser](t, "pause", sb)
	case backend.FeatureSnapshot:
		find[backend.Snapshotter](t, "snapshot", sb)
		find[backend.SnapshotStore](t, "snapshot", t.Executor())
	case backend.FeatureExtend:
		find[backend.Extender](t, "extend", sb)
	case backend.FeatureDial:
		find[backend.Dialer](t, "dial", sb)
	case backend.FeatureUsage:
		find[backend.Meter](t, "usage", sb)
	case backend.FeatureProcesses:
		find[backend.ProcessFinder](t, "processes", sb)
	case backend.FeatureTerminal, backend.FeatureInput:
		p, _, _ := t.start(ctx, sb, backend.Command{Args: []string{"cat"}, KeepInput: true})
		if f == backend.FeatureTerminal {
			p, _, _ = t.start(ctx, sb, backend.Command{Args: []string{"cat"}, KeepInput: true, Terminal: &backend.TerminalSize{}})
			find[backend.Resizer](t, "terminal", p)
		} else {
			find[backend.Inputter](t, "input", p)
		}
	case backend.FeatureUsers:
		find[backend.UserFiles](t, "users", sb.Files())
	case backend.FeatureRange:
		find[backend.RangeOpener](t, "range", sb.Files())
	case backend.FeatureMetadata:
		find[backend.MetadataWriter](t, "metadata", sb.Files())
	case backend.FeatureWatch:
		find[backend.Watcher](t, "watch", sb.Files())
	case backend.FeatureEnvd:
		rt, err := find[backend.EnvdTransport](t, "envd", sb).Envd(ctx)
		if err != nil || rt == nil {
			t.Errorf("%v, %v", rt, err)
		}
	case backend.FeaturePrivateRoot:
		if st, err := sb.Files().Stat(ctx, "/tmp"); err != nil || !st.IsDir() {
			t.Errorf("/tmp: %v, %v", st, err)
		}
	case backend.FeatureMounts, backend.FeatureTemplates, backend.FeatureStartup: // SP-08, ST-01 and those after them
	}
}

// controlCases are one for each control that a field of Spec asks for.
func controlCases() []Case {
	var out []Case
	for i, control := range backend.Controls() {
		if _, field := setting(control); field == "" {
			continue
		}
		out = append(out, Case{
			ID: fmt.Sprintf("MT-%d", 50+i), Area: Meta, Title: "asking for " + string(control) + " is granted as it is claimed, or refused",
			Needs: needs(claimed(control)), Run: func(ctx context.Context, t *T) { controlAsClaimed(ctx, t, control) },
		})
	}
	return out
}

func controlAsClaimed(ctx context.Context, t *T, control backend.Control) {
	spec, field := setting(control)
	claim := t.Caps().Claim(control)
	sb := t.Create(ctx, spec)
	receipt := sb.Receipt()
	for _, g := range receipt.Limits {
		if g.Control == control && (g.Default || g.Enforcement != claim.Enforcement || g.Value == "") {
			t.Errorf("asked for and granted: %+v, claimed %+v", g, claim)
		}
	}
	if control == backend.ControlNetworkOff && receipt.Network != backend.NetworkNone {
		t.Errorf("network %q was granted", receipt.Network)
	}
	switch claim.Enforcement {
	case backend.BestEffort:
		if len(receipt.Warnings) == 0 {
			t.Errorf("best effort without a warning")
		}
		strict := t.Spec(spec)
		strict.Strict = true
		t.unsupportedField("strict", t.refuses(ctx, t.Executor(), strict), field)
	default:
		spec.Advisory = []backend.Control{control}
		t.Create(ctx, spec)
	}
}
