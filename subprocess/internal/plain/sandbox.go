package plain

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/tree"
)

// patience bounds each step of a sandbox's end: the end of killed processes,
// and of their output's delivery to a caller's writer.
const patience = 2 * time.Second

// sandbox is a directory and the process groups that were started for it.
type sandbox struct {
	ex      *Executor
	id      string
	spec    backend.Spec
	receipt backend.Receipt

	base, home, tmp string
	root            *os.Root // of home
	escapes         error    // what root says of names that lead out of it

	mu     sync.Mutex
	why    backend.Kind // why it ended; "" while it lives
	seq    int
	procs  map[*process]struct{} // those with something left to end
	expiry *time.Timer

	starting sync.WaitGroup // Starts under way

	ending chan struct{} // closed when the end begins
	ended  chan struct{} // closed when nothing is left
	err    error         // what could not be ended; set before ended is closed
}

// makeDirs makes the sandbox's directory; on error nothing is left of it.
func (sb *sandbox) makeDirs() (err error) {
	defer func() {
		if err == nil {
			return
		}
		if sb.base != "" {
			err = errors.Join(err, os.RemoveAll(sb.base))
		}
		err = &backend.Error{
			Op: "create", Kind: kindOf(err, backend.ErrUnavailable), Backend: sb.ex.opts.Name,
			Err: fmt.Errorf("make the sandbox's directory: %w", err),
		}
	}()
	base, err := os.MkdirTemp(sb.ex.opts.Dir, "glovebox-"+sb.id+"-")
	if err != nil {
		return err
	}
	sb.base = base
	// Programs resolve links in their home's name, and callers compare.
	if base, err = filepath.EvalSymlinks(base); err != nil {
		return err
	}
	if sb.base, err = filepath.Abs(base); err != nil {
		return err
	}
	sb.home, sb.tmp = filepath.Join(sb.base, "home"), filepath.Join(sb.base, "tmp")
	for _, dir := range []string{sb.home, sb.tmp} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	if sb.root, err = os.OpenRoot(sb.home); err != nil {
		return err
	}
	// The error has no exported name, so it is learnt from a name that does it.
	_, escape := sb.root.Lstat("..")
	if pe, ok := errors.AsType[*fs.PathError](escape); ok {
		sb.escapes = pe.Err
	}
	return nil
}

// arm starts the lifetime.
func (sb *sandbox) arm(d time.Duration) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.why == "" {
		sb.expiry = time.AfterFunc(d, func() { _ = sb.end(nil, backend.ErrExpired) })
	}
}

// ID implements backend.Sandbox.
func (sb *sandbox) ID() string { return sb.id }

// Receipt implements backend.Sandbox.
func (sb *sandbox) Receipt() backend.Receipt { return sb.receipt }

// Files implements backend.Sandbox.
func (sb *sandbox) Files() backend.Filesystem { return &files{sb: sb} }

// Start implements backend.Sandbox.
func (sb *sandbox) Start(ctx context.Context, cmd backend.Command) (backend.Process, error) {
	id, err := sb.enter()
	if err != nil {
		return nil, err
	}
	defer sb.starting.Done()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir, err := sb.admit(cmd)
	if err != nil {
		return nil, err
	}
	p, err := sb.newProcess(context.WithoutCancel(ctx), id, dir, cmd)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// admit checks a command and finds its working directory.
func (sb *sandbox) admit(cmd backend.Command) (dir string, err error) {
	if err := cmd.Validate(); err != nil {
		return "", err
	}
	refuse := func(field, why, fix string) error {
		return sb.fault("start", backend.ErrUnsupported, field, errors.New(why), fix)
	}
	advisory := false
	for _, c := range sb.spec.Advisory {
		advisory = advisory || c == backend.ControlCPUTime
	}
	switch {
	case cmd.Terminal != nil:
		return "", refuse("command.terminal", "there are no terminals at isolation none", "run it without one")
	case cmd.User != "" && cmd.User != backend.DefaultUser:
		return "", refuse("command.user", "there is one account only, the one that glovebox runs as", "leave it empty")
	case cmd.CPUTime > 0 && !advisory:
		return "", refuse("command.cpu_time", "cannot be enforced here", "leave it unset, or name cpu_time in advisory")
	}
	dir = cmd.Dir
	switch {
	case dir == "":
		return sb.home, nil
	case !filepath.IsAbs(dir):
		dir = filepath.Join(sb.home, dir)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return "", sb.fault("start", backend.ErrInvalid, "command.dir", fmt.Errorf("%q is not a directory", cmd.Dir), "")
	}
	return dir, nil
}

// enter holds up the sandbox's end until starting.Done, and gives a command
// its ID.
func (sb *sandbox) enter() (string, error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.why != "" {
		return "", sb.fault("start", sb.why, "", nil, "")
	}
	sb.starting.Add(1)
	sb.seq++
	return "p" + strconv.Itoa(sb.seq), nil
}

// adopt makes p one that ends with the sandbox.
func (sb *sandbox) adopt(p *process) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.procs[p] = struct{}{}
}

func (sb *sandbox) drop(p *process) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	delete(sb.procs, p)
}

// Destroy implements backend.Sandbox.
func (sb *sandbox) Destroy(ctx context.Context) error { return sb.end(ctx.Done(), backend.ErrClosed) }

// end ends the sandbox once; further calls wait for that, or for stop.
func (sb *sandbox) end(stop <-chan struct{}, why backend.Kind) error {
	if !sb.begin(why) {
		select {
		case <-sb.ended:
			return sb.err
		case <-stop:
			return sb.fault("destroy", backend.ErrUnavailable, "", errors.New("not ended yet"), "call again to wait for it")
		}
	}
	// Once begun the end is carried through, whatever became of the caller.
	sb.err = sb.finish()
	sb.ex.forget(sb.id)
	close(sb.ended)
	return sb.err
}

func (sb *sandbox) begin(why backend.Kind) bool {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.why != "" {
		return false
	}
	sb.why = why
	if sb.expiry != nil {
		sb.expiry.Stop()
	}
	close(sb.ending)
	return true
}

// finish kills what runs and removes the directory.
func (sb *sandbox) finish() error {
	sb.starting.Wait()
	sb.mu.Lock()
	procs := make([]*process, 0, len(sb.procs))
	for p := range sb.procs {
		procs = append(procs, p)
	}
	reason := backend.Reason("")
	if sb.why == backend.ErrExpired {
		reason = backend.ReasonExpired
	}
	sb.mu.Unlock()
	for _, p := range procs {
		p.kill(reason)
	}
	errs := make([]error, len(procs))
	var wg sync.WaitGroup
	for i, p := range procs {
		wg.Go(func() { errs[i] = p.bury() })
	}
	wg.Wait()
	err := errors.Join(append(errs, sb.root.Close(), tree.Remove(sb.base))...)
	if err != nil {
		return sb.fault("destroy", backend.ErrUnavailable, "", err, "")
	}
	return nil
}

// alive is nil while the sandbox lives.
func (sb *sandbox) alive(op string) error {
	sb.mu.Lock()
	why := sb.why
	sb.mu.Unlock()
	if why == "" {
		return nil
	}
	return sb.fault(op, why, "", nil, "")
}

func (sb *sandbox) fault(op string, kind backend.Kind, field string, err error, fix string) error {
	return &backend.Error{Op: op, Kind: kind, Backend: sb.ex.opts.Name, Sandbox: sb.id, Field: field, Err: err, Fix: fix}
}

var _ backend.Sandbox = (*sandbox)(nil)
