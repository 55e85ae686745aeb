//go:build !linux

package subprocess_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/subprocess"
)

func TestOther_refusesHostileCode(t *testing.T) {
	t.Parallel()
	for _, privilege := range []subprocess.Privilege{subprocess.PrivilegeAuto, subprocess.PrivilegeRoot, subprocess.PrivilegeRestricted} {
		ex, err := subprocess.Open(t.Context(), subprocess.Config{Privilege: privilege})
		if err != nil {
			t.Fatal(err)
		}
		defer ex.Close()
		if ex.Capabilities().Isolation != backend.IsolationNone {
			t.Errorf("%q: level %s", privilege, ex.Capabilities().Isolation)
		}
		_, err = ex.Create(t.Context(), backend.Spec{})
		if backend.KindOf(err) != backend.ErrUnavailable || !strings.Contains(err.Error(), "privilege: none") || !strings.Contains(err.Error(), "hostile") {
			t.Errorf("%q: %v", privilege, err)
		}
		prober, ok := backend.As[backend.Prober](ex)
		if !ok {
			t.Fatal("no prober")
		}
		if h, err := prober.Probe(t.Context()); err != nil || h.Available || h.Reason == "" || h.Fix == "" {
			t.Errorf("%q: %+v %v", privilege, h, err)
		}
	}
}

func TestOther_noneIsAcceptedByName(t *testing.T) {
	t.Parallel()
	r, err := subprocess.Measure(t.Context(), subprocess.Config{Privilege: subprocess.PrivilegeNone})
	if err != nil || !r.Health.Available || r.Health.Isolation != backend.IsolationNone || len(r.Health.Warnings) == 0 {
		t.Fatalf("%+v %v", r.Health, err)
	}
	ex, err := subprocess.Open(t.Context(), subprocess.Config{Privilege: subprocess.PrivilegeNone})
	if err != nil {
		t.Fatal(err)
	}
	_, err = ex.Create(t.Context(), backend.Spec{MinIsolation: backend.IsolationRestricted})
	if backend.KindOf(err) != backend.ErrUnsupported {
		t.Errorf("a level was undercut: %v", err)
	}
	sb, err := ex.Create(t.Context(), backend.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(sb.Receipt().Warnings, func(w string) bool { return strings.HasPrefix(w, "nothing is contained") }) {
		t.Errorf("warnings %q", sb.Receipt().Warnings)
	}
	for range 2 {
		if err := ex.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err = ex.Create(t.Context(), backend.Spec{})
	if backend.KindOf(err) != backend.ErrClosed {
		t.Error(err)
	}
}
