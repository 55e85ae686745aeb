//go:build !linux

package subprocess

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync/atomic"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/subprocess/internal/plain"
)

const driverName = "subprocess"

// fixOther says how code that is not trusted can be run from this system.
const fixOther = "use a backend with Docker or run glovebox in a Linux virtual machine; " +
	"for code that you trust accept no isolation with privilege: none"

// Executor makes sandboxes as child processes. It is safe for concurrent use.
// This system has none of what contains them on Linux, so it refuses every one
// unless Config.Privilege is PrivilegeNone.
type Executor struct {
	cfg    Config
	caps   backend.Capabilities
	plain  *plain.Executor // nil unless no isolation was accepted
	closed atomic.Bool
}

// Open readies the backend. It succeeds on valid configuration whatever the
// host offers; Probe says what that is. The caller closes the Executor.
func Open(_ context.Context, cfg Config) (*Executor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	ex := &Executor{cfg: cfg, caps: backend.Capabilities{
		Driver: driverName, Isolation: backend.IsolationNone, Claims: map[backend.Control]backend.Claim{},
		Networks: []backend.NetworkMode{backend.NetworkNone}, Features: []backend.Feature{backend.FeatureProbe},
	}}
	if cfg.Privilege == PrivilegeNone {
		ex.plain = plain.New(plain.Options{Name: driverName})
		ex.caps = ex.plain.Capabilities()
		ex.caps.Claims = maps.Clone(ex.caps.Claims)
		ex.caps.Features = append([]backend.Feature{backend.FeatureProbe}, ex.caps.Features...)
	}
	return ex, nil
}

// Capabilities implements backend.Executor.
func (ex *Executor) Capabilities() backend.Capabilities { return ex.caps }

// Create implements backend.Executor.
func (ex *Executor) Create(ctx context.Context, spec backend.Spec) (backend.Sandbox, error) {
	if ex.closed.Load() {
		return nil, &backend.Error{Op: "create", Kind: backend.ErrClosed, Backend: driverName}
	}
	if _, _, err := ex.Admit(spec); err != nil {
		return nil, err
	}
	return ex.plain.Create(ctx, spec)
}

// Admit implements backend.Admitter.
func (ex *Executor) Admit(spec backend.Spec) (backend.Spec, []string, error) {
	if err := spec.Validate(); err != nil {
		return spec, nil, err
	}
	if ex.plain == nil {
		return spec, nil, ex.refusal()
	}
	for field, value := range map[string]string{"rootfs": ex.cfg.Rootfs, "cgroup_parent": ex.cfg.CgroupParent} {
		if value != "" {
			return spec, nil, &backend.Error{
				Op: "create", Kind: backend.ErrUnsupported, Backend: driverName, Field: field,
				Err: fmt.Errorf("%s cannot use one", systemName()), Fix: "leave it unset",
			}
		}
	}
	return ex.caps.Admit(driverName, spec)
}

// refusal is why nothing is run here.
func (ex *Executor) refusal() *backend.Error {
	why := "has nothing to contain hostile code with, so it is refused"
	if ex.cfg.Privilege != PrivilegeAuto {
		why = fmt.Sprintf("has no privilege %s, which is Linux's, so hostile code is refused", ex.cfg.Privilege)
	}
	return &backend.Error{
		Op: "create", Kind: backend.ErrUnavailable, Backend: driverName,
		Err: errors.New(systemName() + " " + why), Fix: fixOther,
	}
}

// systemName is this system's name for people.
func systemName() string {
	names := map[string]string{"darwin": "macOS", "windows": "Windows", "freebsd": "FreeBSD", "openbsd": "OpenBSD", "netbsd": "NetBSD"}
	return cmp.Or(names[runtime.GOOS], runtime.GOOS)
}

// Close implements backend.Executor.
func (ex *Executor) Close() error {
	ex.closed.Store(true)
	if ex.plain == nil {
		return nil
	}
	return ex.plain.Close()
}

// As implements the optional interfaces of the executor.
func (ex *Executor) As(target any) bool {
	if t, ok := target.(*backend.Prober); ok {
		*t = (*prober)(ex)
		return true
	}
	return false
}

// Sweep removes what is left of sandboxes whose owners are gone. None can be
// told from a living one here: what a killed owner leaves lies in the system's
// directory for temporary files, which the system clears.
func (ex *Executor) Sweep(ctx context.Context) error { return ctx.Err() }

// MaybeAgent does nothing: there are agents on Linux only.
func MaybeAgent() {}

var (
	_ backend.Executor = (*Executor)(nil)
	_ backend.Admitter = (*Executor)(nil)
)
