//go:build linux

package keeper

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/egress"
)

// EgressOptions is what an Egress is made from.
type EgressOptions struct {
	Sandbox string
	Token   string // the agent's
	Network backend.Network
	Secrets map[backend.SecretRef]string
	// Audit is the directory whose audit.jsonl gets the decisions; "" drops them.
	Audit string
	// Transport reaches the agent.
	Transport http.RoundTripper
}

// Egress is a sandbox's way out, served as long as the sandbox lives.
type Egress struct {
	proxy  *egress.Proxy
	log    *auditLog
	cancel context.CancelFunc
	done   chan struct{}
	failed chan error // the first failure

	mu      sync.Mutex
	secrets map[backend.SecretRef]string
}

const (
	// openWithin bounds how long the way out may take to open.
	openWithin = 10 * time.Second
	// A transport that fails is tried again, for there may be another
	// connection, or the sandbox may only be paused.
	againSoon, againLate = 50 * time.Millisecond, 5 * time.Second
)

// StartEgress opens the way out: commands that start after it returned have it.
// It goes on until Close; ctx governs the call alone.
func StartEgress(ctx context.Context, o EgressOptions) (*Egress, error) {
	e := &Egress{secrets: o.Secrets, log: openAudit(o.Audit), done: make(chan struct{}), failed: make(chan error, 1)}
	var err error
	e.proxy, err = egress.New(egress.Options{
		Sandbox: o.Sandbox, Network: o.Network, Token: o.Token, Audit: e.log.write, Secrets: e.secret,
	})
	if err != nil {
		e.log.close()
		return nil, err
	}
	sctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	e.cancel = cancel
	go e.serve(sctx, o.Transport)
	if err := e.open(ctx); err != nil {
		e.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &backend.Error{Op: "network", Kind: backend.ErrUnavailable, Sandbox: o.Sandbox, Err: err}
	}
	return e, nil
}

// open waits until the agent takes part.
func (e *Egress) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	ready := make(chan error, 1)
	go func() { ready <- e.proxy.Ready(ctx) }()
	select {
	case err := <-ready:
		return err
	case err := <-e.failed:
		return err
	}
}

func (e *Egress) secret(ref backend.SecretRef) (string, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	v, ok := e.secrets[ref]
	return v, ok
}

func (e *Egress) serve(ctx context.Context, rt http.RoundTripper) {
	defer close(e.done)
	wait := againSoon
	for {
		began := time.Now()
		err := e.proxy.Serve(ctx, rt)
		if ctx.Err() != nil {
			return
		}
		select {
		case e.failed <- err:
		default:
		}
		if time.Since(began) > againLate {
			wait = againSoon
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		wait = min(2*wait, againLate)
	}
}

// Update replaces the rules. On error the old ones stay.
func (e *Egress) Update(n backend.Network, secrets map[backend.SecretRef]string) error {
	e.mu.Lock()
	old := e.secrets
	e.secrets = secrets
	e.mu.Unlock()
	err := e.proxy.Update(n)
	if err != nil {
		e.mu.Lock()
		e.secrets = old
		e.mu.Unlock()
	}
	return err
}

// Close ends every connection and waits for them.
func (e *Egress) Close() {
	e.cancel()
	e.proxy.Close() //nolint:errcheck // it has none
	<-e.done
	e.log.close()
}
