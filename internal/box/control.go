//go:build linux

package box

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// As implements the optional interfaces that this sandbox has.
func (sb *Sandbox) As(target any) bool {
	switch t := target.(type) {
	case *backend.Extender:
		*t = sb.control()
	case *backend.Meter:
		*t = sb.control()
	case *backend.ProcessFinder:
		*t = sb.control()
	case *backend.EnvdTransport:
		*t = sb.control()
	case *backend.NetworkUpdater:
		// What the mode was at the start: it can only get tighter.
		if !sb.ex.proxied(sb.spec.Network) && sb.receipt.Network != backend.NetworkAllowlist && sb.receipt.Network != backend.NetworkFull {
			return false
		}
		*t = sb.control()
	case *backend.Dialer:
		if !sb.ex.caps.Has(backend.FeatureDial) {
			return false
		}
		*t = sb.control()
	case *backend.Pauser:
		if _, ok := sb.body.(Freezer); !ok || !sb.ex.caps.Has(backend.FeaturePause) {
			return false
		}
		*t = sb.control()
	case *backend.Snapshotter:
		if _, ok := sb.body.(Saver); !ok || !sb.ex.caps.Has(backend.FeatureSnapshot) {
			return false
		}
		*t = sb.control()
	default:
		return false
	}
	return true
}

func (sb *Sandbox) control() *control { return (*control)(sb) }

// control is a Sandbox with its optional interfaces. They are on a type of
// their own so that only As hands them out.
type control Sandbox

// SetLifetime implements backend.Extender.
func (c *control) SetLifetime(ctx context.Context, d time.Duration) error {
	sb := (*Sandbox)(c)
	if err := sb.usable("extend"); err != nil {
		return err
	}
	if d <= 0 || d > backend.MaxLifetime {
		err := sb.error("extend", backend.ErrInvalid, fmt.Errorf("%v is not between 0 and %v", d, backend.MaxLifetime))
		err.Field = "lifetime"
		return err
	}
	return sb.setDeadline(ctx, d)
}

// setDeadline moves the agent's, the host's and the journal's deadline. The
// host's is never the earlier one.
func (sb *Sandbox) setDeadline(ctx context.Context, d time.Duration) error {
	if err := sb.client.SetDeadline(ctx, d); err != nil {
		return err
	}
	at := time.Now().Add(d)
	sb.deadline.Store(at.UnixNano())
	sb.mu.Lock()
	if sb.expiry != nil && !sb.closed.Load() {
		sb.expiry.Reset(d + behind)
	}
	sb.mu.Unlock()
	if !sb.keep {
		return nil
	}
	j, err := sb.ex.store.Journal(ctx)
	if err != nil {
		return err
	}
	return j.SetDeadline(ctx, sb.id, at)
}

// Usage implements backend.Meter.
func (c *control) Usage(ctx context.Context) (backend.Usage, error) {
	sb := (*Sandbox)(c)
	if err := sb.usable("usage"); err != nil {
		return backend.Usage{}, err
	}
	u, err := sb.client.Usage(ctx)
	if err != nil {
		return u, err
	}
	sb.amend(&u)
	return u, nil
}

// Processes implements backend.ProcessFinder.
func (c *control) Processes(ctx context.Context) ([]backend.ProcessInfo, error) {
	if err := (*Sandbox)(c).usable("processes"); err != nil {
		return nil, err
	}
	return c.client.Processes(ctx)
}

// Attach implements backend.ProcessFinder.
func (c *control) Attach(ctx context.Context, id string, opts backend.AttachOptions) (backend.Process, error) {
	if err := (*Sandbox)(c).usable("attach"); err != nil {
		return nil, err
	}
	return c.client.Attach(ctx, id, opts)
}

// DialContext implements backend.Dialer.
func (c *control) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if err := (*Sandbox)(c).usable("dial"); err != nil {
		return nil, err
	}
	return c.client.DialContext(ctx, network, addr)
}

// Envd implements backend.EnvdTransport.
func (c *control) Envd(context.Context) (http.RoundTripper, error) {
	if err := (*Sandbox)(c).alive("envd"); err != nil {
		return nil, err
	}
	return c.transport, nil
}

var (
	_ backend.Extender      = (*control)(nil)
	_ backend.Meter         = (*control)(nil)
	_ backend.ProcessFinder = (*control)(nil)
	_ backend.Dialer        = (*control)(nil)
	_ backend.Pauser        = (*control)(nil)
	_ backend.EnvdTransport = (*control)(nil)
)
