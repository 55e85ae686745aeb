package backendtest

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// The types below carry the optional interfaces, so that what is not claimed
// is not there.

// As implements what backend.As asks for.
func (f *Fake) As(target any) bool {
	switch t := target.(type) {
	case *backend.Prober:
		return give[backend.Prober](t, prober{f}, f.caps.Has(backend.FeatureProbe))
	case *backend.Finder:
		return give[backend.Finder](t, finder{f}, f.caps.Has(backend.FeatureFind))
	}
	return false
}

// As implements what backend.As asks for.
func (sb *sandbox) As(target any) bool {
	caps := sb.fake.caps
	switch t := target.(type) {
	case *backend.Pauser:
		return give[backend.Pauser](t, pauser{sb}, caps.Has(backend.FeaturePause))
	case *backend.Extender:
		return give[backend.Extender](t, extender{sb}, caps.Has(backend.FeatureExtend))
	case *backend.Dialer:
		return give[backend.Dialer](t, dialer{sb}, caps.Has(backend.FeatureDial))
	case *backend.Meter:
		return give[backend.Meter](t, meter{sb}, caps.Has(backend.FeatureUsage))
	case *backend.ProcessFinder:
		return give[backend.ProcessFinder](t, processes{sb}, caps.Has(backend.FeatureProcesses))
	}
	return false
}

// As implements what backend.As asks for.
func (p *process) As(target any) bool {
	caps := p.sb.fake.caps
	switch t := target.(type) {
	case *backend.TreeKiller:
		return give[backend.TreeKiller](t, treeKiller{p}, caps.Claim(backend.ControlKillTree).Enforcement == backend.Enforced)
	case *backend.Resizer:
		return give[backend.Resizer](t, resizer{p}, p.cmd.Terminal != nil && caps.Has(backend.FeatureTerminal))
	case *backend.Inputter:
		return give[backend.Inputter](t, inputter{p}, p.input != nil && caps.Has(backend.FeatureInput))
	}
	return false
}

// As implements what backend.As asks for.
func (f *files) As(target any) bool {
	if t, ok := target.(*backend.RangeOpener); ok {
		return give[backend.RangeOpener](t, ranges{f}, f.sb.fake.caps.Has(backend.FeatureRange))
	}
	return false
}

func give[T any](target *T, v T, claimed bool) bool {
	if claimed {
		*target = v
	}
	return claimed
}

type prober struct{ f *Fake }

func (p prober) Probe(ctx context.Context) (h backend.Health, err error) {
	err = p.f.host.do(ctx, Call{Op: OpProbe}, func() error {
		h = backend.Health{Available: true, Isolation: p.f.caps.Isolation}
		return nil
	})
	return h, err
}

type finder struct{ f *Fake }

func (fi finder) Find(ctx context.Context, id string) (backend.Sandbox, error) {
	var found *sandbox
	err := fi.f.host.do(ctx, Call{Op: OpFind, Sandbox: id}, func() error {
		fi.f.host.mu.Lock()
		sb := fi.f.host.sandboxes[id]
		fi.f.host.mu.Unlock()
		if sb == nil || !sb.spec.Keep || sb.alive("find") != nil {
			return &backend.Error{Op: "find", Kind: backend.ErrNotFound, Backend: fi.f.name, Sandbox: id}
		}
		found = sb
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

func (fi finder) Sandboxes(ctx context.Context) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		var infos []backend.Info
		err := fi.f.host.do(ctx, Call{Op: OpList}, func() error {
			fi.f.host.mu.Lock()
			all := slices.Collect(maps.Values(fi.f.host.sandboxes))
			fi.f.host.mu.Unlock()
			for _, sb := range all {
				if sb.alive("list") == nil {
					infos = append(infos, sb.info())
				}
			}
			return nil
		})
		slices.SortFunc(infos, func(a, b backend.Info) int { return cmp.Compare(a.ID, b.ID) })
		for _, info := range infos {
			if !yield(info, nil) {
				return
			}
		}
		if err != nil {
			yield(backend.Info{}, err)
		}
	}
}

func (sb *sandbox) info() backend.Info {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	info := backend.Info{
		ID: sb.id, Backend: sb.fake.name, State: backend.StateRunning, Started: sb.started, Deadline: sb.deadline,
		Template: sb.spec.Template, Labels: sb.spec.Labels, Limits: sb.spec.Limits,
		Isolation: sb.fake.caps.Isolation, Network: sb.spec.Network.Mode, Keep: sb.spec.Keep,
	}
	if sb.paused {
		info.State, info.Deadline = backend.StatePaused, time.Time{}
	}
	return info
}

// pauser disarms the deadline and refuses commands; Go functions cannot be
// frozen, so programs go on.
type pauser struct{ sb *sandbox }

func (p pauser) Pause(ctx context.Context, opts backend.PauseOptions) error {
	return p.sb.do(ctx, OpPause, opts, func() error { return p.set(true) })
}

func (p pauser) Resume(ctx context.Context) error {
	return p.sb.do(ctx, OpResume, nil, func() error { return p.set(false) })
}

func (p pauser) set(paused bool) error {
	p.sb.mu.Lock()
	defer p.sb.mu.Unlock()
	if p.sb.paused == paused {
		return &backend.Error{Op: "pause or resume", Kind: backend.ErrConflict, Sandbox: p.sb.id}
	}
	p.sb.paused = paused
	if paused {
		p.sb.disarm()
	} else {
		p.sb.arm(p.sb.spec.Lifetime)
	}
	return nil
}

type extender struct{ sb *sandbox }

func (e extender) SetLifetime(ctx context.Context, d time.Duration) error {
	return e.sb.do(ctx, OpLifetime, d, func() error {
		if d <= 0 || d > backend.MaxLifetime {
			return &backend.Error{Op: "set lifetime", Kind: backend.ErrInvalid, Field: "lifetime", Sandbox: e.sb.id}
		}
		e.sb.mu.Lock()
		defer e.sb.mu.Unlock()
		e.sb.arm(d)
		return nil
	})
}

type meter struct{ sb *sandbox }

func (m meter) Usage(ctx context.Context) (u backend.Usage, err error) {
	err = m.sb.do(ctx, OpUsage, nil, func() error {
		m.sb.files.mu.Lock()
		defer m.sb.files.mu.Unlock()
		u = backend.Usage{Wall: m.sb.host.clock.Now().Sub(m.sb.started), Disk: m.sb.files.used()}
		return nil
	})
	return u, err
}

type processes struct{ sb *sandbox }

func (ps processes) Processes(ctx context.Context) (infos []backend.ProcessInfo, err error) {
	err = ps.sb.do(ctx, OpProcesses, nil, func() error {
		for _, p := range ps.all() {
			infos = append(infos, p.info())
		}
		return nil
	})
	return infos, err
}

func (ps processes) all() []*process {
	ps.sb.mu.Lock()
	defer ps.sb.mu.Unlock()
	return slices.Clone(ps.sb.processes)
}

func (ps processes) Attach(ctx context.Context, id string, opts backend.AttachOptions) (backend.Process, error) {
	var found *process
	err := ps.sb.do(ctx, OpAttach, id, func() error {
		all := ps.all()
		i := slices.IndexFunc(all, func(p *process) bool { return p.id == id })
		if i < 0 {
			return &backend.Error{Op: "attach", Kind: backend.ErrNotFound, Sandbox: ps.sb.id, Err: errors.New("no command " + id)}
		}
		found = all[i]
		found.stdout.attach(opts.Output.Stdout, opts.Replay)
		if found.stderr != found.stdout {
			found.stderr.attach(opts.Output.Stderr, opts.Replay)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found, nil
}

type treeKiller struct{ p *process }

func (k treeKiller) KillTree(ctx context.Context) error {
	return k.p.sb.do(ctx, OpKillTree, k.p.id, func() error { return k.p.signal(backend.SIGKILL) })
}

type resizer struct{ p *process }

func (r resizer) Resize(ctx context.Context, size backend.TerminalSize) error {
	return r.p.sb.do(ctx, OpResize, size, func() error {
		r.p.mu.Lock()
		defer r.p.mu.Unlock()
		r.p.size = size
		return nil
	})
}

type inputter struct{ p *process }

func (in inputter) WriteInput(ctx context.Context, b []byte) error {
	return in.p.sb.do(ctx, OpWriteInput, len(b), func() error {
		stop := context.AfterFunc(ctx, func() { _ = in.p.input.CloseWithError(ctx.Err()) })
		defer stop()
		if _, err := in.p.input.Write(b); err != nil {
			return &backend.Error{Op: "write input", Kind: backend.ErrNotFound, Sandbox: in.p.sb.id, Err: err}
		}
		return nil
	})
}

func (in inputter) CloseInput(ctx context.Context) error {
	return in.p.sb.do(ctx, OpCloseInput, nil, func() error {
		if in.p.cmd.Terminal != nil {
			return &backend.Error{Op: "close input", Kind: backend.ErrUnsupported, Sandbox: in.p.sb.id}
		}
		return in.p.input.Close()
	})
}

type ranges struct{ f *files }

func (r ranges) OpenRange(ctx context.Context, name string, off, n int64) (io.ReadCloser, error) {
	return r.f.openRange(ctx, name, off, n)
}
