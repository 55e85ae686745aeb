package conformance

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
)

func specCases() []Case {
	mounts := needs(feature(backend.FeatureMounts), shell())
	return []Case{
		{ID: "SP-01", Area: Specs, Title: "strict is refused exactly where a control is not enforced, and names it", Run: strict},
		{ID: "SP-02", Area: Specs, Title: "strict with the weak controls advisory is granted, with a warning for each that was set", Run: strictAdvisory},
		{ID: "SP-03", Area: Specs, Title: "an advisory control that cannot be enforced is accepted with a warning", Run: advisory},
		{ID: "SP-04", Area: Specs, Title: "more memory than any host has is refused, with the field", Needs: needs(claimed(backend.ControlMemory)), Run: tooMuchMemory},
		{ID: "SP-05", Area: Specs, Title: "an unknown template is refused", Needs: needs(feature(backend.FeatureTemplates)), Run: unknownTemplate},
		{ID: "SP-06", Area: Specs, Title: "a template's name is no path", Needs: needs(feature(backend.FeatureTemplates)), Run: templatePath},
		{ID: "SP-07", Area: Specs, Title: "an unknown snapshot is refused", Needs: needs(feature(backend.FeatureSnapshot)), Run: unknownSnapshot},
		{ID: "SP-08", Area: Specs, Title: "a mounted host directory is there, read-only", Needs: mounts, Run: mountIsReadOnly},
		{ID: "SP-09", Area: Specs, Title: "a mount that is missing, or no directory or file, is refused", Needs: mounts, Run: badHostPaths},
		{ID: "SP-10", Area: Specs, Title: "a mount shows nothing beside it", Needs: append(slices.Clone(mounts), feature(backend.FeaturePrivateRoot)), Run: mountShowsOnlyItself},
		{ID: "SP-11", Area: Specs, Title: "an admitter says what create does", Run: admitter},
		{ID: "SP-12", Area: Specs, Title: "a managed volume is refused where there is none", Run: noVolumes},
	}
}

// weak are the controls that strict demands and that are not enforced here.
func (t *T) weak() []backend.Control {
	network := t.Spec(backend.Spec{}).Network.Mode
	return slices.DeleteFunc(strictControls(), func(c backend.Control) bool {
		return t.Enforces(c) || c == backend.ControlNetworkOff && network != "" && network != backend.NetworkNone
	})
}

func strict(ctx context.Context, t *T) {
	err := t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{Strict: true}))
	if len(t.weak()) == 0 {
		if err != nil {
			t.Errorf("everything is enforced: %v", err)
		}
		return
	}
	t.unsupportedField("strict", err, "strict")
	if err != nil && !slices.ContainsFunc(t.weak(), func(c backend.Control) bool { return strings.Contains(err.Error(), string(c)) }) {
		t.Errorf("none of %v is named by %v", t.weak(), err)
	}
}

func strictAdvisory(ctx context.Context, t *T) {
	t.good(t.exec(ctx, t.Create(ctx, backend.Spec{Strict: true, Advisory: t.weak()}), "true"))
}

func advisory(ctx context.Context, t *T) {
	for _, control := range backend.Controls() {
		spec, field := setting(control)
		if field == "" || t.Caps().Claim(control).Enforcement != backend.Unsupported || strings.HasPrefix(field, "network") {
			continue
		}
		spec.Advisory = []backend.Control{control}
		sb := t.Create(ctx, spec)
		if !slices.ContainsFunc(sb.Receipt().Warnings, func(w string) bool { return strings.Contains(w, field) }) {
			t.Errorf("%s: no warning among %q", field, sb.Receipt().Warnings)
		}
	}
}

func tooMuchMemory(ctx context.Context, t *T) {
	err := t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{Limits: backend.Limits{Memory: backend.MaxBytes}}))
	t.refusedWith("1 EiB", err, backend.ErrCapacity, "limits.memory")
}

func unknownTemplate(ctx context.Context, t *T) {
	t.kind("template", t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{Template: "no-such-template-here"})), backend.ErrNotFound)
}

func templatePath(ctx context.Context, t *T) {
	for _, name := range []string{"../../etc", "/etc", ".", "a\x00b"} {
		t.kind("template "+name, t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{Template: name})), backend.ErrNotFound, backend.ErrInvalid)
	}
}

func unknownSnapshot(ctx context.Context, t *T) {
	for _, name := range []string{"no-such-snapshot", "../../etc"} {
		t.kind("from "+name, t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{From: name})), backend.ErrNotFound, backend.ErrInvalid)
	}
}

// hostDir is a directory of the host's with a file, that every user can read.
func (t *T) hostDir() string {
	dir, err := os.MkdirTemp("", "conformance-")
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func(context.Context) {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("%v", err)
		}
	})
	if err := os.Mkdir(filepath.Join(dir, "shown"), 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	for _, name := range []string{"beside", "shown/file"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name+" of the host\n"), 0o644); err != nil {
			t.Fatalf("%v", err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	return dir
}

// target is where a host directory can be mounted: at its own path where there
// is no root of the sandbox's own.
func (t *T) mountTarget(dir string) string {
	if t.Caps().Has(backend.FeaturePrivateRoot) {
		return "/conformance"
	}
	return dir
}

func mountIsReadOnly(ctx context.Context, t *T) {
	dir := filepath.Join(t.hostDir(), "shown")
	at := t.mountTarget(dir)
	sb := t.Create(ctx, backend.Spec{Mounts: []backend.Mount{{HostPath: dir, Target: at, ReadOnly: true}}})
	if got := t.good(t.exec(ctx, sb, "cat", at+"/file")); got != "shown/file of the host\n" {
		t.Errorf("%q", got)
	}
	got := t.sh(ctx, sb, "cd "+at+` && for f in file new; do (echo x >$f) 2>/dev/null && echo wrote $f; done; rm -f file 2>/dev/null && echo removed; mkdir d 2>/dev/null && echo made; echo tried`)
	if got.out != "tried\n" {
		t.Errorf("%q", got.out)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(data) != "shown/file of the host\n" {
		t.Errorf("on the host: %q, %v", data, err)
	}
	if m := sb.Receipt().Mounts; len(m) != 1 || m[0].HostPath != dir || !m[0].ReadOnly {
		t.Errorf("the receipt's mounts: %+v", m)
	}
}

func badHostPaths(ctx context.Context, t *T) {
	dir := t.hostDir()
	for _, path := range []string{filepath.Join(dir, "missing"), "/", "/proc", "/sys/kernel", "/dev/null"} {
		at := t.mountTarget(filepath.Join(dir, "shown"))
		err := t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{Mounts: []backend.Mount{{HostPath: path, Target: at, ReadOnly: true}}}))
		t.kind("mounting "+path, err, backend.ErrInvalid, backend.ErrNotFound, backend.ErrDenied, backend.ErrUnsupported)
	}
}

func mountShowsOnlyItself(ctx context.Context, t *T) {
	dir := t.hostDir()
	sb := t.Create(ctx, backend.Spec{Mounts: []backend.Mount{{HostPath: filepath.Join(dir, "shown"), Target: "/conformance", ReadOnly: true}}})
	t.good(t.exec(ctx, sb, "cat", "/conformance/file")) // the control
	for _, name := range []string{filepath.Join(dir, "beside"), "/conformance/../beside", "/beside"} {
		if got := t.exec(ctx, sb, "cat", name); got.Success() {
			t.Errorf("%s can be read: %q", name, got.out)
		}
	}
}

func admitter(ctx context.Context, t *T) {
	a, ok := backend.As[backend.Admitter](t.Executor())
	if !ok {
		return // it promises nothing and has no feature
	}
	good := t.Spec(backend.Spec{})
	granted, _, err := a.Admit(good)
	if err != nil || granted.Lifetime == 0 || granted.Limits.Memory == 0 {
		t.Errorf("%+v, %v", granted, err)
	}
	for _, bad := range []backend.Spec{{Limits: backend.Limits{Memory: -1}}, {Network: backend.Network{Mode: "none at all"}}} {
		_, _, err := a.Admit(bad)
		if made := t.refuses(ctx, t.Executor(), bad); err == nil || backend.KindOf(err) != backend.KindOf(made) {
			t.Errorf("admit says %v, create %v", err, made)
		}
	}
}

func noVolumes(ctx context.Context, t *T) {
	spec := t.Spec(backend.Spec{Mounts: []backend.Mount{{Volume: "none-such", Target: "/conformance"}}})
	t.kind("volume", t.refuses(ctx, t.Executor(), spec), backend.ErrUnsupported, backend.ErrNotFound)
}
