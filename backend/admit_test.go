package backend_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/backend/backendtest"
)

// capabilities are the fake's, with one control held as firmly as given.
func capabilities(control backend.Control, e backend.Enforcement) backend.Capabilities {
	caps := backendtest.Capabilities()
	caps.Claims[control] = backend.Claim{Enforcement: e, Note: "because"}
	return caps
}

func TestCapabilities_admitSetFields(t *testing.T) {
	t.Parallel()
	fields := []struct {
		control backend.Control
		field   string
		spec    backend.Spec
	}{
		{backend.ControlMemory, "limits.memory", backend.Spec{Limits: backend.Limits{Memory: 64 << 20}}},
		{backend.ControlCPU, "limits.cpus", backend.Spec{Limits: backend.Limits{CPUs: 2}}},
		{backend.ControlPids, "limits.pids", backend.Spec{Limits: backend.Limits{Pids: 9}}},
		{backend.ControlDisk, "limits.disk", backend.Spec{Limits: backend.Limits{Disk: 1 << 20}}},
		{backend.ControlInodes, "limits.inodes", backend.Spec{Limits: backend.Limits{Inodes: 99}}},
		{backend.ControlOpenFiles, "limits.open_files", backend.Spec{Limits: backend.Limits{OpenFiles: 99}}},
		{backend.ControlFileSize, "limits.file_size", backend.Spec{Limits: backend.Limits{FileSize: 99}}},
		{backend.ControlCPUTime, "limits.cpu_time", backend.Spec{Limits: backend.Limits{CPUTime: time.Second}}},
		{backend.ControlOutput, "limits.output", backend.Spec{Limits: backend.Limits{Output: 99}}},
		{backend.ControlOutput, "limits.output", backend.Spec{Limits: backend.Limits{KillOnOutput: true}}},
		{backend.ControlLifetime, "lifetime", backend.Spec{Lifetime: time.Minute}},
		{backend.ControlMountsRO, "mounts", backend.Spec{Mounts: []backend.Mount{{HostPath: "/a", Target: "/a", ReadOnly: true}}}},
		{backend.ControlNetworkOff, "network.mode", backend.Spec{Network: backend.Network{Mode: backend.NetworkNone}}},
		{backend.ControlNetworkList, "network.mode", backend.Spec{Network: backend.Network{Mode: backend.NetworkAllowlist}}},
	}
	modes := []struct {
		name             string
		enforcement      backend.Enforcement
		strict, advisory bool
		refused          bool
		warnings         int
	}{
		{"enforced", backend.Enforced, true, false, false, 0},
		{"unsupported", backend.Unsupported, false, false, true, 0},
		{"unsupported but advisory", backend.Unsupported, false, true, false, 1},
		{"best effort", backend.BestEffort, false, false, false, 1},
		{"best effort under strict", backend.BestEffort, true, false, true, 0},
		{"best effort under strict but advisory", backend.BestEffort, true, true, false, 1},
	}
	for _, f := range fields {
		for _, m := range modes {
			t.Run(f.field+" "+m.name, func(t *testing.T) {
				t.Parallel()
				spec := f.spec
				spec.Strict = m.strict
				if m.advisory {
					spec.Advisory = []backend.Control{f.control}
				}
				_, warnings, err := capabilities(f.control, m.enforcement).Admit("box", spec)
				if len(warnings) != m.warnings {
					t.Errorf("warnings %q", warnings)
				}
				if !m.refused {
					wantField(t, err, "", "")
					return
				}
				wantField(t, err, backend.ErrUnsupported, f.field)
				if e, ok := errors.AsType[*backend.Error](err); !ok || e.Backend != "box" || e.Fix == "" || !strings.Contains(e.Error(), "because") {
					t.Errorf("the error %v does not name backend, reason and fix", err)
				}
			})
		}
	}
}

func TestCapabilities_admitFillsDefaultsAndNeverRefusesThem(t *testing.T) {
	t.Parallel()
	caps := backendtest.Capabilities()
	caps.Claims = nil
	caps.Features = nil
	caps.Networks = []backend.NetworkMode{backend.NetworkNone}
	got, warnings, err := caps.Admit("box", backend.Spec{})
	if err != nil || len(warnings) != 0 {
		t.Fatalf("%q %v", warnings, err)
	}
	want := backend.Spec{
		Limits: backend.Limits{}.WithDefaults(), Network: backend.Network{Mode: backend.NetworkNone},
		Lifetime: backend.DefaultLifetime, OnExpiry: backend.ExpiryDestroy,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCapabilities_admitRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*backend.Capabilities)
		spec   backend.Spec
		kind   backend.Kind
		field  string
	}{
		{"an invalid spec", nil, backend.Spec{Lifetime: -1}, backend.ErrInvalid, "lifetime"},
		{
			"a level that is not reached", func(c *backend.Capabilities) { c.Isolation = backend.IsolationProcess },
			backend.Spec{MinIsolation: backend.IsolationContainer},
			backend.ErrUnsupported, "min_isolation",
		},
		{"a level that is reached", nil, backend.Spec{MinIsolation: backend.IsolationVM}, "", ""},
		{
			"a network that cannot be given", func(c *backend.Capabilities) { c.Networks = []backend.NetworkMode{backend.NetworkNone} },
			backend.Spec{Network: backend.Network{Mode: backend.NetworkFull}},
			backend.ErrUnsupported, "network.mode",
		},
		{
			"no network that cannot be given", func(c *backend.Capabilities) { c.Networks = []backend.NetworkMode{backend.NetworkFull} },
			backend.Spec{},
			backend.ErrUnsupported, "network.mode",
		},
		{"keep", without(backend.FeatureFind), backend.Spec{Keep: true}, backend.ErrUnsupported, "keep"},
		{"pause at expiry", without(backend.FeaturePause), backend.Spec{OnExpiry: backend.ExpiryPause}, backend.ErrUnsupported, "on_expiry"},
		{"a template", without(backend.FeatureTemplates), backend.Spec{Template: "a"}, backend.ErrUnsupported, "template"},
		{"a snapshot", nil, backend.Spec{From: "a"}, backend.ErrUnsupported, "from"},
		{"a volume", nil, backend.Spec{Mounts: []backend.Mount{{Volume: "a", Target: "/a"}}}, backend.ErrUnsupported, "mounts[0].volume"},
		{
			"what strict demands unasked", func(c *backend.Capabilities) { delete(c.Claims, backend.ControlSyscalls) },
			backend.Spec{Strict: true},
			backend.ErrUnsupported, "strict",
		},
		{
			"no network, which strict demands unasked", func(c *backend.Capabilities) { delete(c.Claims, backend.ControlNetworkOff) },
			backend.Spec{Strict: true},
			backend.ErrUnsupported, "strict",
		},
		{
			"what strict demands unasked, advisory", func(c *backend.Capabilities) { delete(c.Claims, backend.ControlSyscalls) },
			backend.Spec{Strict: true, Advisory: []backend.Control{backend.ControlSyscalls}},
			"", "",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			caps := backendtest.Capabilities()
			if tt.change != nil {
				tt.change(&caps)
			}
			_, _, err := caps.Admit("box", tt.spec)
			wantField(t, err, tt.kind, tt.field)
		})
	}
}

func without(feature backend.Feature) func(*backend.Capabilities) {
	return func(c *backend.Capabilities) {
		var kept []backend.Feature
		for _, f := range c.Features {
			if f != feature {
				kept = append(kept, f)
			}
		}
		c.Features = kept
	}
}
