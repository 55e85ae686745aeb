package conformance_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/backend/backendtest"
	"github.com/glovebox-dev/glovebox/conformance"
	"github.com/glovebox-dev/glovebox/subprocess"
)

// mutation breaks one behaviour of an executor; nil fields break nothing.
type mutation struct {
	caps   func(backend.Capabilities) backend.Capabilities
	create func(ctx context.Context, next backend.Executor, spec backend.Spec) (backend.Sandbox, error)
	hide   bool // no optional interface of a sandbox is found

	id      string
	receipt func(backend.Receipt) backend.Receipt
	start   func(ctx context.Context, next backend.Sandbox, cmd backend.Command) (backend.Process, error)
	destroy func(ctx context.Context, next backend.Sandbox) error
	wait    func(ctx context.Context, next backend.Process) (backend.Exit, error)
	write   func(r io.Reader) io.Reader
	failed  func(error) error // of every call on files
	perm    fs.FileMode       // of every file
}

type mutant struct {
	backend.Executor
	m mutation
}

func (x mutant) Unwrap() any { return x.Executor }

func (x mutant) Capabilities() backend.Capabilities {
	caps := x.Executor.Capabilities()
	if x.m.caps != nil {
		return x.m.caps(caps)
	}
	return caps
}

func (x mutant) Create(ctx context.Context, spec backend.Spec) (sb backend.Sandbox, err error) {
	if x.m.create != nil {
		sb, err = x.m.create(ctx, x.Executor, spec)
	} else {
		sb, err = x.Executor.Create(ctx, spec)
	}
	if err != nil {
		return nil, err
	}
	if x.m.hide {
		return hidden{mutantSandbox{sb, x.m}}, nil
	}
	return mutantSandbox{sb, x.m}, nil
}

type mutantSandbox struct {
	backend.Sandbox
	m mutation
}

// hidden is a sandbox without optional interfaces.
type hidden struct{ backend.Sandbox }

func (hidden) As(any) bool { return false }

func (s mutantSandbox) Unwrap() any { return s.Sandbox }

func (s mutantSandbox) ID() string {
	if s.m.id != "" {
		return s.m.id
	}
	return s.Sandbox.ID()
}

func (s mutantSandbox) Receipt() backend.Receipt {
	if s.m.receipt != nil {
		return s.m.receipt(s.Sandbox.Receipt())
	}
	return s.Sandbox.Receipt()
}

func (s mutantSandbox) Start(ctx context.Context, cmd backend.Command) (p backend.Process, err error) {
	if s.m.start != nil {
		p, err = s.m.start(ctx, s.Sandbox, cmd)
	} else {
		p, err = s.Sandbox.Start(ctx, cmd)
	}
	if err != nil || s.m.wait == nil {
		return p, err
	}
	return mutantProcess{p, s.m}, nil
}

func (s mutantSandbox) Destroy(ctx context.Context) error {
	if s.m.destroy != nil {
		return s.m.destroy(ctx, s.Sandbox)
	}
	return s.Sandbox.Destroy(ctx)
}

func (s mutantSandbox) Files() backend.Filesystem { return mutantFiles{s.Sandbox.Files(), s.m} }

type mutantProcess struct {
	backend.Process
	m mutation
}

func (p mutantProcess) Unwrap() any { return p.Process }

func (p mutantProcess) Wait(ctx context.Context) (backend.Exit, error) {
	return p.m.wait(ctx, p.Process)
}

type mutantFiles struct {
	backend.Filesystem
	m mutation
}

func (f mutantFiles) Unwrap() any { return f.Filesystem }

func (f mutantFiles) Write(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error {
	if f.m.write != nil {
		r = f.m.write(r)
	}
	if f.m.perm != 0 {
		perm = f.m.perm
	}
	return f.Filesystem.Write(ctx, name, r, perm)
}

func (f mutantFiles) Stat(ctx context.Context, name string) (fs.FileInfo, error) {
	info, err := f.Filesystem.Stat(ctx, name)
	if err != nil && f.m.failed != nil {
		err = f.m.failed(err)
	}
	return info, err
}

// exits changes how commands end.
func exits(change func(*backend.Exit)) mutation {
	return mutation{wait: func(ctx context.Context, next backend.Process) (backend.Exit, error) {
		exit, err := next.Wait(ctx)
		change(&exit)
		return exit, err
	}}
}

// starts changes what is started.
func starts(change func(*backend.Command)) mutation {
	return mutation{start: func(ctx context.Context, next backend.Sandbox, cmd backend.Command) (backend.Process, error) {
		change(&cmd)
		return next.Start(ctx, cmd)
	}}
}

// specs changes what is made.
func specs(change func(*backend.Spec)) mutation {
	return mutation{create: func(ctx context.Context, next backend.Executor, spec backend.Spec) (backend.Sandbox, error) {
		change(&spec)
		return next.Create(ctx, spec)
	}}
}

// TestMutants_ofTheFake shows that cases fail when their behaviour is broken,
// and pass when it is not.
func TestMutants_ofTheFake(t *testing.T) {
	t.Parallel()
	mutants := map[string]mutation{
		"LC-02 one ID for all": {id: "same1"},
		"LC-03 destroy fails when it was destroyed": {destroy: func(ctx context.Context, next backend.Sandbox) error {
			if _, err := next.Files().Stat(ctx, "."); backend.KindOf(err) == backend.ErrClosed {
				return backend.ErrNotFound
			}
			return next.Destroy(ctx)
		}},
		"LC-04 another kind after destroy": {failed: func(error) error { return backend.ErrNotFound }},
		"LC-07 expired is called closed": {failed: func(err error) error {
			if backend.KindOf(err) == backend.ErrExpired {
				return backend.ErrClosed
			}
			return err
		}},
		"LC-08 expiry is called a signal": exits(func(e *backend.Exit) {
			if e.Reason == backend.ReasonExpired {
				e.Reason = backend.ReasonSignaled
			}
		}),
		"LC-17 create ignores its context": {create: func(ctx context.Context, next backend.Executor, spec backend.Spec) (backend.Sandbox, error) {
			return next.Create(context.WithoutCancel(ctx), spec)
		}},
		"LC-20 a cancelled Wait kills": {wait: func(ctx context.Context, next backend.Process) (backend.Exit, error) {
			exit, err := next.Wait(ctx)
			if err != nil {
				_ = next.Signal(context.WithoutCancel(ctx), backend.SIGKILL)
			}
			return exit, err
		}},
		"LC-21 Start's context kills": {start: func(ctx context.Context, next backend.Sandbox, cmd backend.Command) (backend.Process, error) {
			p, err := next.Start(ctx, cmd)
			if err == nil {
				context.AfterFunc(ctx, func() { _ = p.Signal(context.WithoutCancel(ctx), backend.SIGKILL) })
			}
			return p, err
		}},
		"LC-40 nothing is kept":       specs(func(s *backend.Spec) { s.Keep = false }),
		"MT-05 the level is undercut": specs(func(s *backend.Spec) { s.MinIsolation = backend.IsolationNone }),
		"MT-04 the level is claimed too high": {caps: func(c backend.Capabilities) backend.Capabilities {
			c.Isolation = 99
			return c
		}},
		"MT-22 pause is claimed and not there": {hide: true},
		"MT-23 snapshots are claimed and not there": {caps: func(c backend.Capabilities) backend.Capabilities {
			c.Features = append(c.Features, backend.FeatureSnapshot)
			return c
		}},
		"MT-24 extend is there and not claimed": {caps: func(c backend.Capabilities) backend.Capabilities {
			c.Features = without(c.Features, backend.FeatureExtend)
			return c
		}},
		"MT-50 a limit that is not claimed is accepted": {caps: func(c backend.Capabilities) backend.Capabilities {
			delete(c.Claims, backend.ControlMemory)
			return c
		}},
		"MT-55 a limit is dropped": specs(func(s *backend.Spec) { s.Limits.Pids = 0 }),
		"ER-01 limits are mended":  specs(func(s *backend.Spec) { s.Limits = backend.Limits{} }),
		"ER-02 the field is not named": {create: func(ctx context.Context, next backend.Executor, spec backend.Spec) (backend.Sandbox, error) {
			sb, err := next.Create(ctx, spec)
			if err != nil {
				err = backend.KindOf(err)
			}
			return sb, err
		}},
		"ER-13 fs.ErrNotExist is lost":         {failed: func(err error) error { return backend.KindOf(err) }},
		"ER-19 the reader's error is replaced": {write: func(r io.Reader) io.Reader { return swallow{r} }},
		"RC-02 a limit is missing": {receipt: func(r backend.Receipt) backend.Receipt {
			r.Limits = r.Limits[1:]
			return r
		}},
		"RC-01 the network is another": {receipt: func(r backend.Receipt) backend.Receipt {
			r.Network = "bridge"
			return r
		}},
	}
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newFake()
			runMutant(t, name, m, func(m mutation) conformance.Target {
				target := fakesTarget(fake, nil)
				target.Open = func(context.Context) (backend.Executor, error) { return mutant{fake.Reopen(), m}, nil }
				return target
			})
		})
	}
}

// runMutant runs the case that a mutant's name begins with, broken and whole.
func runMutant(t *testing.T, name string, m mutation, target func(mutation) conformance.Target) {
	t.Helper()
	id, _, _ := strings.Cut(name, " ")
	only := func(c conformance.Case) bool { return c.ID == id }
	for _, broken := range []bool{false, true} {
		want, used := conformance.Pass, mutation{}
		if broken {
			want, used = conformance.Fail, m
		}
		report, err := conformance.Run(t.Context(), target(used), conformance.Options{Filter: only, Timeout: 30 * time.Second})
		if err != nil || len(report.Results) != 1 {
			t.Fatalf("%d results, %v", len(report.Results), err)
		}
		got := report.Results[0]
		if !broken && got.Verdict == conformance.Unsupported {
			continue // what is not claimed is refused
		}
		if got.Verdict != want {
			t.Errorf("broken %v: %s, %s\n%s", broken, got.Verdict, got.Reason, strings.Join(got.Log, "\n"))
		}
	}
}

// swallow ends where its reader fails.
type swallow struct{ r io.Reader }

func (s swallow) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil {
		err = io.EOF
	}
	return n, err
}

func without(features []backend.Feature, f backend.Feature) (out []backend.Feature) {
	for _, have := range features {
		if have != f {
			out = append(out, have)
		}
	}
	return out
}

// TestMutants_ofSubprocess does the same to real programs.
func TestMutants_ofSubprocess(t *testing.T) {
	privilege := subprocess.PrivilegeRoot
	if os.Geteuid() != 0 {
		privilege = subprocess.PrivilegeRestricted
	}
	mutants := map[string]mutation{
		"CM-01 codes above 127 are cut":        exits(func(e *backend.Exit) { e.Code &= 127 }),
		"CM-02 a signal is an exit code":       exits(func(e *backend.Exit) { e.Reason = backend.ReasonExited }),
		"CM-07 the sandbox's environment wins": starts(func(c *backend.Command) { c.Env = nil }),
		"CM-11 the directory is ignored":       starts(func(c *backend.Command) { c.Dir = "" }),
		"CM-40 the streams are mixed":          starts(func(c *backend.Command) { c.Output.Stderr = c.Output.Stdout }),
		"CM-43 output is taken without bound":  starts(func(c *backend.Command) { c.Output.Stdout = &bytes.Buffer{} }),
		"CM-48 the code is another": exits(func(e *backend.Exit) {
			if e.Code == 6 {
				e.Code++
			}
		}),
		"SI-01 input is cut": starts(func(c *backend.Command) {
			if c.Stdin != nil {
				c.Stdin = io.LimitReader(c.Stdin, 1000)
			}
		}),
		"EN-01 a timeout is a signal": exits(func(e *backend.Exit) {
			if e.Reason == backend.ReasonTimeout {
				e.Reason = backend.ReasonSignaled
			}
		}),
		"EN-04 a timeout ends the sandbox": {wait: func(ctx context.Context, next backend.Process) (backend.Exit, error) {
			exit, err := next.Wait(ctx)
			if exit.Reason == backend.ReasonTimeout {
				err = errors.New("the sandbox is gone")
			}
			return exit, err
		}},
		"EN-12 held output is not told": exits(func(e *backend.Exit) { e.OutputHeld = false }),
		"LM-09 dropped output is not told": exits(func(e *backend.Exit) {
			e.StdoutTruncated, e.Hits = false, nil
		}),
		"FS-01 a byte is lost":      {write: func(r io.Reader) io.Reader { return io.LimitReader(r, 3<<20) }},
		"FS-11 the mode is ignored": {perm: 0o644},
	}
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			target, _ := subprocessTarget(privilege, backend.IsolationNone)(t)
			open := target.Open
			target.Witness = nil // TestMutants_thatLeak is about it
			runMutant(t, name, m, func(m mutation) conformance.Target {
				target.Open = func(ctx context.Context) (backend.Executor, error) {
					ex, err := open(ctx)
					return mutant{ex, m}, err
				}
				return target
			})
		})
	}
}

// TestMutants_thatLeak: a sandbox that its destroy forgets is found by the
// witness, whatever the backend says.
func TestMutants_thatLeak(t *testing.T) {
	t.Parallel()
	for _, broken := range []bool{false, true} {
		fake := newFake()
		m := mutation{}
		if broken {
			m.destroy = func(context.Context, backend.Sandbox) error { return nil }
		}
		target := fakesTarget(fake, nil)
		target.Open = func(context.Context) (backend.Executor, error) { return lasting{mutant{fake, m}}, nil }
		target.Witness = fakesWitness(fake)
		report, err := conformance.Run(t.Context(), target, conformance.Options{Filter: func(c conformance.Case) bool { return c.ID == "LK-01" }})
		if err != nil || len(report.Results) != 1 {
			t.Fatalf("%+v, %v", report, err)
		}
		if got := report.Results[0].Verdict == conformance.Fail; got != broken || report.OK() == broken || broken != (len(report.Left) > 0) {
			t.Errorf("broken %v: %+v, left %q", broken, report.Results, report.Left)
		}
	}
}

// lasting is an executor whose Close forgets its sandboxes too.
type lasting struct{ mutant }

func (lasting) Close() error { return nil }

func fakesWitness(fake *backendtest.Fake) conformance.Witness {
	return conformance.WitnessFunc(func(context.Context) (map[string]string, error) {
		out := map[string]string{}
		for _, l := range fake.Leaked() {
			out[l] = "of the fake"
		}
		return out, nil
	})
}
