package backend_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// wantField checks that err is of kind and names field; field "" is no error.
func wantField(t *testing.T, err error, kind backend.Kind, field string) {
	t.Helper()
	if field == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	e, ok := errors.AsType[*backend.Error](err)
	if !ok || e.Kind != kind || e.Field != field {
		t.Errorf("error %+v, want %s of %s", err, kind, field)
	}
}

func TestLimits_validate(t *testing.T) {
	t.Parallel()
	tests := []struct {
		limits backend.Limits
		field  string
	}{
		{backend.Limits{}, ""},
		{backend.Limits{Memory: backend.MinMemory, Pids: backend.MinPids, CPUs: 0.01, Disk: 4096, Inodes: 16}, ""},
		{backend.Limits{Memory: backend.MaxBytes, Pids: backend.MaxPids, CPUs: backend.MaxCPUs, Disk: backend.MaxBytes}, ""},
		{backend.Limits{Memory: -1}, "limits.memory"},
		{backend.Limits{Memory: 1}, "limits.memory"},
		{backend.Limits{Memory: math.MaxInt64}, "limits.memory"},
		{backend.Limits{Memory: math.MinInt64}, "limits.memory"},
		{backend.Limits{Pids: 1}, "limits.pids"},
		{backend.Limits{Pids: -1}, "limits.pids"},
		{backend.Limits{Pids: math.MaxInt64}, "limits.pids"},
		{backend.Limits{CPUs: -0.5}, "limits.cpus"},
		{backend.Limits{CPUs: 0.001}, "limits.cpus"},
		{backend.Limits{CPUs: math.NaN()}, "limits.cpus"},
		{backend.Limits{CPUs: math.Inf(1)}, "limits.cpus"},
		{backend.Limits{CPUs: math.Inf(-1)}, "limits.cpus"},
		{backend.Limits{Disk: 1}, "limits.disk"},
		{backend.Limits{Disk: -1}, "limits.disk"},
		{backend.Limits{Disk: backend.MaxBytes + 1}, "limits.disk"},
		{backend.Limits{Inodes: 1}, "limits.inodes"},
		{backend.Limits{Inodes: -1}, "limits.inodes"},
		{backend.Limits{OpenFiles: 1}, "limits.open_files"},
		{backend.Limits{OpenFiles: math.MaxInt64}, "limits.open_files"},
		{backend.Limits{FileSize: -1}, "limits.file_size"},
		{backend.Limits{FileSize: math.MaxInt64}, "limits.file_size"},
		{backend.Limits{Output: -1}, "limits.output"},
		{backend.Limits{Output: math.MaxInt64}, "limits.output"},
		{backend.Limits{CPUTime: -1}, "limits.cpu_time"},
	}
	for _, tt := range tests {
		wantField(t, tt.limits.Validate(), backend.ErrInvalid, tt.field)
		wantField(t, backend.Spec{Limits: tt.limits}.Validate(), backend.ErrInvalid, tt.field)
	}
}

func TestSpec_validate(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spec  backend.Spec
		field string
	}{
		{"zero", backend.Spec{}, ""},
		{"advisory", backend.Spec{Advisory: backend.Controls()}, ""},
		{"unknown control", backend.Spec{Advisory: []backend.Control{backend.ControlMemory, "memroy"}}, "advisory"},
		{"longest", backend.Spec{Lifetime: backend.MaxLifetime}, ""},
		{"too long", backend.Spec{Lifetime: backend.MaxLifetime + 1}, "lifetime"},
		{"negative", backend.Spec{Lifetime: -1}, "lifetime"},
		{"least", backend.Spec{Lifetime: math.MinInt64}, "lifetime"},
		{"environment", backend.Spec{Env: map[string]string{"A": "b=c", "a.b": ""}}, ""},
		{"unnamed variable", backend.Spec{Env: map[string]string{"": "x"}}, "env"},
		{"variable with =", backend.Spec{Env: map[string]string{"a=b": "x"}}, "env"},
		{"NUL in a name", backend.Spec{Env: map[string]string{"a\x00": "x"}}, "env"},
		{"NUL in a value", backend.Spec{Env: map[string]string{"a": "x\x00"}}, "env"},
		{"level", backend.Spec{MinIsolation: backend.IsolationVM}, ""},
		{"unknown level", backend.Spec{MinIsolation: 6}, "min_isolation"},
		{"expiry", backend.Spec{OnExpiry: backend.ExpiryPause}, ""},
		{"unknown expiry", backend.Spec{OnExpiry: "sleep"}, "on_expiry"},
		{"network", backend.Spec{Network: backend.Network{Mode: "some"}}, "network.mode"},
		{"secrets", backend.Spec{Secrets: []backend.SecretRef{"env:A"}}, "secrets"},
		{"secrets for a network", backend.Spec{Secrets: []backend.SecretRef{"env:A"}, Network: backend.Network{Mode: backend.NetworkFull}}, ""},
		{"mounts", backend.Spec{Mounts: []backend.Mount{
			{HostPath: "/a", Target: "/b", ReadOnly: true}, {HostPath: "/a", Target: "/c", ReadOnly: true},
		}}, ""},
		{"two mounts at one place", backend.Spec{Mounts: []backend.Mount{
			{HostPath: "/a", Target: "/b", ReadOnly: true}, {HostPath: "/c", Target: "/b", ReadOnly: true},
		}}, "mounts[1]"},
		{"bad mount", backend.Spec{Mounts: []backend.Mount{{}}}, "mounts[0]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			wantField(t, tt.spec.Validate(), backend.ErrInvalid, tt.field)
		})
	}
}

func TestMount_validate(t *testing.T) {
	t.Parallel()
	tests := []struct {
		mount backend.Mount
		kind  backend.Kind // "" for a good one
	}{
		{backend.Mount{HostPath: "/opt/venv", Target: "/opt/venv", ReadOnly: true}, ""},
		{backend.Mount{Volume: "data", Target: "/data"}, ""},
		{backend.Mount{Target: "/a", ReadOnly: true}, backend.ErrInvalid},
		{backend.Mount{HostPath: "/a", Volume: "b", Target: "/a", ReadOnly: true}, backend.ErrInvalid},
		{backend.Mount{HostPath: "/a", Target: "/a"}, backend.ErrUnsupported},
		{backend.Mount{HostPath: "a", Target: "/a", ReadOnly: true}, backend.ErrInvalid},
		{backend.Mount{HostPath: "/a\x00", Target: "/a", ReadOnly: true}, backend.ErrInvalid},
		{backend.Mount{HostPath: "/a", Target: "", ReadOnly: true}, backend.ErrInvalid},
		{backend.Mount{HostPath: "/a", Target: "a", ReadOnly: true}, backend.ErrInvalid},
		{backend.Mount{HostPath: "/a", Target: "/", ReadOnly: true}, backend.ErrInvalid},
		{backend.Mount{HostPath: "/a", Target: "/a/", ReadOnly: true}, backend.ErrInvalid},
		{backend.Mount{HostPath: "/a", Target: "/a/../b", ReadOnly: true}, backend.ErrInvalid},
		{backend.Mount{HostPath: "/a", Target: "/a\x00", ReadOnly: true}, backend.ErrInvalid},
		{backend.Mount{HostPath: "/a", Target: "/proc", ReadOnly: true}, backend.ErrInvalid},
		{backend.Mount{HostPath: "/a", Target: "/sys/fs", ReadOnly: true}, backend.ErrInvalid},
		{backend.Mount{HostPath: "/a", Target: "/dev/x", ReadOnly: true}, backend.ErrInvalid},
		{backend.Mount{HostPath: "/a", Target: "/process", ReadOnly: true}, ""},
	}
	for _, tt := range tests {
		field := "m"
		if tt.kind == "" {
			field = ""
		}
		wantField(t, tt.mount.Validate("m"), tt.kind, field)
	}
}

func TestNetwork_validate(t *testing.T) {
	t.Parallel()
	list := func(n backend.Network) backend.Network {
		n.Mode = backend.NetworkAllowlist
		return n
	}
	rule := backend.Rule{Host: "example.com"}
	tests := []struct {
		name    string
		network backend.Network
		field   string
	}{
		{"none", backend.Network{Mode: backend.NetworkNone}, ""},
		{"rules", list(backend.Network{Allow: []backend.Rule{rule, {CIDR: "192.0.2.0/24"}, {CIDR: "2001:db8::1"}}}), ""},
		{"rules without a network", backend.Network{Allow: []backend.Rule{rule}}, "network"},
		{"DNS without a network", backend.Network{DNS: []string{"192.0.2.1"}}, "network"},
		{"a proxy without a network", backend.Network{Upstream: &backend.Proxy{URL: "http://a"}}, "network"},
		{"an empty rule", list(backend.Network{Allow: []backend.Rule{{}}}), "network.allow[0]"},
		{"host and range", list(backend.Network{Deny: []backend.Rule{rule, {Host: "a", CIDR: "192.0.2.0/24"}}}), "network.deny[1]"},
		{"a range that is none", list(backend.Network{Deny: []backend.Rule{{CIDR: "192.0.2.0/33"}}}), "network.deny[0].cidr"},
		{"an URL for a host", list(backend.Network{Allow: []backend.Rule{{Host: "http://a"}}}), "network.allow[0].host"},
		{"a header", list(backend.Network{Inject: []backend.HeaderRule{{Rule: rule, Header: "X-A", Secret: "env:A"}}}), ""},
		{"a header that ends early", list(backend.Network{Inject: []backend.HeaderRule{{Rule: rule, Header: "X-A\r\nB", Secret: "env:A"}}}), "network.inject[0].header"},
		{"no secret", list(backend.Network{Inject: []backend.HeaderRule{{Rule: rule, Header: "X-A"}}}), "network.inject[0].secret"},
		{"no rule", list(backend.Network{Inject: []backend.HeaderRule{{Header: "X-A", Secret: "env:A"}}}), "network.inject[0].rule"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			wantField(t, tt.network.Validate(), backend.ErrInvalid, tt.field)
		})
	}
}

func TestCommand_validate(t *testing.T) {
	t.Parallel()
	args := []string{"a"}
	tests := []struct {
		name    string
		command backend.Command
		field   string
	}{
		{"least", backend.Command{Args: args}, ""},
		{"empty argument", backend.Command{Args: []string{"a", ""}}, ""},
		{"no program", backend.Command{}, "command.args"},
		{"empty program", backend.Command{Args: []string{"", "a"}}, "command.args"},
		{"NUL", backend.Command{Args: []string{"a", "b\x00"}}, "command.args"},
		{"environment", backend.Command{Args: args, Env: map[string]string{"": ""}}, "command.env"},
		{"directory", backend.Command{Args: args, Dir: "/\x00"}, "command"},
		{"user", backend.Command{Args: args, User: "\x00"}, "command"},
		{"tag", backend.Command{Args: args, Tag: "\x00"}, "command"},
		{"endless", backend.Command{Args: args, Timeout: backend.UntilSandboxEnds}, ""},
		{"negative timeout", backend.Command{Args: args, Timeout: -time.Second}, "command.timeout"},
		{"negative CPU time", backend.Command{Args: args, CPUTime: -1}, "command.cpu_time"},
		{"two inputs", backend.Command{Args: args, Stdin: strings.NewReader(""), KeepInput: true}, "command.stdin"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			wantField(t, tt.command.Validate(), backend.ErrInvalid, tt.field)
		})
	}
}

func TestValidID(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{
		"ab": true, "a1": true, "a" + strings.Repeat("x", 40): true,
		"": false, "a": false, "1a": false, "Ab": false, "a-b": false, "a/b": false, "..": false, "ab\n": false,
		"a" + strings.Repeat("x", 41): false,
	} {
		if got := backend.ValidID(id); got != want {
			t.Errorf("ValidID(%q) = %v", id, got)
		}
	}
}
