package plain

import (
	"context"
	"errors"
	"fmt"

	"github.com/glovebox-dev/glovebox/backend"
)

// ID implements backend.Process.
func (p *process) ID() string { return p.id }

// Wait implements backend.Process. A command's end is known after its
// sandbox's.
func (p *process) Wait(ctx context.Context) (backend.Exit, error) {
	select {
	case <-p.done:
		return p.exit, p.err
	default:
	}
	select {
	case <-p.done:
		return p.exit, p.err
	case <-ctx.Done():
		return backend.Exit{}, ctx.Err()
	}
}

// Signal implements backend.Process.
func (p *process) Signal(_ context.Context, sig backend.Signal) error {
	if sig < 0 || sig > 64 {
		return p.sb.fault("signal", backend.ErrInvalid, "signal", fmt.Errorf("%d is not between 0 and 64", sig), "")
	}
	if err := p.sb.alive("signal"); err != nil {
		return err
	}
	if p.hasEnded() {
		return p.ended("signal")
	}
	err := p.send(sig)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errors.ErrUnsupported):
		return p.sb.fault("signal", backend.ErrUnsupported, "signal", fmt.Errorf("%d cannot be sent on this system", sig), "send 9 (kill)")
	case p.hasEnded() || isGone(err):
		return p.ended("signal")
	}
	return p.sb.fault("signal", kindOf(err, backend.ErrInternal), "", causeOf(err), "")
}

// send sends sig to the child alone, not to its group.
func (p *process) send(sig backend.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sig == backend.SIGKILL {
		p.killed = true // where a process's end does not tell it
	}
	return sendSignal(p.cmd.Process, sig)
}

func (p *process) hasEnded() bool {
	select {
	case <-p.reaped:
		return true
	default:
		return p.cmd == nil
	}
}

func (p *process) ended(op string) error {
	return p.sb.fault(op, backend.ErrNotFound, "", errors.New("the command has ended"), "")
}

// As implements what backend.As asks for.
func (p *process) As(target any) bool {
	switch t := target.(type) {
	case *backend.Inputter:
		if !p.keep {
			return false
		}
		*t = inputter{p}
	case *backend.TreeKiller:
		if killScope == "" {
			return false
		}
		*t = treeKiller{p}
	default:
		return false
	}
	return true
}

type treeKiller struct{ p *process }

// KillTree implements backend.TreeKiller for the command's group.
func (k treeKiller) KillTree(context.Context) error {
	if k.p.hasEnded() || !k.p.kill("") {
		return k.p.ended("kill")
	}
	return nil
}

var (
	_ backend.Process    = (*process)(nil)
	_ backend.TreeKiller = treeKiller{}
	_ backend.Inputter   = inputter{}
)
