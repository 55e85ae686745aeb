package boot

import (
	"github.com/glovebox-dev/glovebox/internal/agent"
	"github.com/glovebox-dev/glovebox/internal/agent/egress"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

// newEgress listens on the sandbox's loopback before any command runs, where
// the sandbox is to have a way out. It ends with the program.
func newEgress(cfg *launch.Config, sb *launch.Sandbox, opts *agent.Options) (*egress.Service, error) {
	if !cfg.Egress && sb.Device == nil {
		return nil, nil //nolint:nilnil // no way out, and nothing wrong
	}
	svc, err := egress.New(egress.Options{Dir: "/tmp", Device: sb.Device})
	if err == nil {
		opts.MoreEnv = svc.Env
	}
	return svc, err
}

// mountEgress lets the host reach what newEgress made.
func mountEgress(srv *agent.Server, svc *egress.Service) {
	if svc == nil {
		return
	}
	h := svc.Handler()
	srv.Mount(wire.NetOpenPath, h, false)
	srv.Mount(wire.NetAcceptPath, h, false)
	srv.Mount(wire.NetPacketsPath, h, false)
}
