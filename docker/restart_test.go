//go:build linux

package docker_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/docker"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/testenv/testengine"
)

// A daemon that restarts: with live-restore sandboxes live on, without it they
// are lost, which is told; either way nothing is left.
func TestDaemon_restarts(t *testing.T) {
	for name, live := range map[string]bool{"live-restore": true, "plain": false} {
		t.Run(name, func(t *testing.T) {
			d := testengine.New(t, fmt.Sprintf("--live-restore=%v", live))
			f := setUp(t, func(c *docker.Config) { c.Host = d.Host() })
			e, err := engine.Open(d.Host())
			if err != nil {
				t.Fatal(err)
			}
			f.e.Close()
			f.e = e
			kept := f.create(backend.Spec{Keep: true, Lifetime: 10 * time.Minute})
			bound := f.create(backend.Spec{})
			p, err := bound.Start(t.Context(), backend.Command{Args: []string{"/bin/sleep", "300"}, Timeout: backend.UntilSandboxEnds})
			if err != nil {
				t.Fatal(err)
			}
			d.End(syscall.SIGTERM)
			if live {
				works(t, kept) // also while there is no daemon
			}
			d.Start()
			if live {
				works(t, kept)
				works(t, bound)
				if err := p.Signal(t.Context(), backend.SIGKILL); err != nil {
					t.Error(err)
				}
			}
			exit, err := p.Wait(t.Context())
			if live != (err == nil) || !live && backend.KindOf(err) != backend.ErrLost {
				t.Errorf("the command ended with %s, %v", exit, err)
			}
			t.Log(err)
			f.containers(t.Context())
			for _, sb := range []backend.Sandbox{kept, bound} {
				if err := sb.Destroy(t.Context()); err != nil {
					t.Error(err)
				}
			}
			works(t, f.create(backend.Spec{}))
		})
	}
}
