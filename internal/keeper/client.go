//go:build linux

package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/unixsock"
)

// startTimeout bounds how long a keeper may take to start, and an older one to
// end.
const startTimeout = 15 * time.Second

// Keeper is how this process reaches its store's keeper. It is safe for
// concurrent use.
type Keeper struct {
	dir     string
	program func() (string, error)
	idle    time.Duration
}

// New is the way to the keeper of the store in dir. program names the
// executable that is started where there is none yet: one whose main begins
// with Wanted and Main. idle is how long it stays when it holds nothing; 0 is
// Idle.
func New(dir string, program func() (string, error), idle time.Duration) *Keeper {
	if idle <= 0 {
		idle = Idle
	}
	return &Keeper{dir: dir, program: program, idle: idle}
}

// Hold hands h to the keeper, which is started unless it runs. One that is held
// already is ErrConflict, one whose process has ended ErrNotFound.
func (k *Keeper) Hold(ctx context.Context, h Held) (*Holding, error) {
	var files []*os.File
	if h.Stream != nil {
		files = h.Stream.Files
	}
	if err := h.check(len(files)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		c, err := k.connect(ctx)
		if err != nil {
			return nil, err
		}
		_, err = k.ask(ctx, c, request{Op: opHold, ID: h.ID, Held: &h}, files)
		if err == nil {
			return &Holding{k: k, id: h.ID, c: c}, nil
		}
		c.Close() //nolint:errcheck // on the way out
		// One that was just ending has taken nothing. Nothing was said on a
		// stream before it is committed.
		if !gone(err) || !pause(ctx, wait) {
			return nil, outcome(ctx, h.ID, err)
		}
	}
}

// Holding is a sandbox that is being made. Its maker calls Commit or Close.
type Holding struct {
	k  *Keeper
	id string
	c  *net.UnixConn
}

// Commit has the keeper hold the sandbox from now on, whatever becomes of this
// process. When it returns commands that start have their network. On error
// nothing is held.
func (h *Holding) Commit(ctx context.Context) error {
	_, err := h.k.ask(ctx, h.c, request{Op: opCommit, ID: h.id}, nil)
	return outcome(ctx, h.id, errors.Join(err, h.c.Close()))
}

// Close lets the sandbox go unless it was committed.
func (h *Holding) Close() error {
	if err := h.c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Holds tells whether a keeper holds the sandbox. None is started for that.
func (k *Keeper) Holds(ctx context.Context, id string) (bool, error) {
	a, err := k.call(ctx, request{Op: opHolds, ID: id})
	if gone(err) {
		return false, nil
	}
	return a.Held, outcome(ctx, id, err)
}

// Release ends what is held for a sandbox. That nothing is held is fine.
func (k *Keeper) Release(ctx context.Context, id string) error {
	_, err := k.call(ctx, request{Op: opRelease, ID: id})
	if gone(err) {
		return nil
	}
	return outcome(ctx, id, err)
}

// SetNetwork replaces the rules of a sandbox that is held. ErrNotFound says
// that it is not.
func (k *Keeper) SetNetwork(ctx context.Context, id string, n backend.Network, secrets map[backend.SecretRef]string) error {
	_, err := k.call(ctx, request{Op: opNetwork, ID: id, Held: &Held{ID: id, Network: n, Secrets: secrets}})
	if gone(err) {
		return &backend.Error{Op: "network", Kind: backend.ErrNotFound, Sandbox: id, Err: errors.New("no keeper runs")}
	}
	return outcome(ctx, id, err)
}

// call asks a keeper that runs.
func (k *Keeper) call(ctx context.Context, r request) (answer, error) {
	c, err := k.dial(ctx)
	if err != nil {
		return answer{}, err
	}
	defer c.Close() //nolint:errcheck // read side
	return k.ask(ctx, c, r, nil)
}

func (k *Keeper) dial(ctx context.Context) (*net.UnixConn, error) {
	c, err := unixsock.Dial(ctx, filepath.Join(k.dir, socketFile))
	if err != nil {
		return nil, err
	}
	if err := sameUser(c); err != nil {
		c.Close() //nolint:errcheck // a stranger's
		return nil, err
	}
	return c, nil
}

// ask sends a request and awaits its answer.
func (k *Keeper) ask(ctx context.Context, c *net.UnixConn, r request, files []*os.File) (answer, error) {
	r.Protocol = protocol
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) }) //nolint:errcheck // a broken one shows at once
	defer stop()
	c.SetDeadline(time.Now().Add(openWithin + messageTimeout)) //nolint:errcheck // the same
	var a answer
	if err := send(c, r, files); err != nil {
		return a, err
	}
	files, err := receive(c, &a)
	closeAll(files)
	if err != nil {
		return a, err
	}
	return a, a.err(r.ID)
}

// gone tells that no keeper was there, or that it ended before it answered.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET) ||
		errors.Is(err, unix.EPIPE) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// outcome classifies what is no answer.
func outcome(ctx context.Context, id string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ctx.Err()
	}
	if _, ok := errors.AsType[*backend.Error](err); ok {
		return err
	}
	return &backend.Error{Op: "keeper", Kind: backend.ErrUnavailable, Sandbox: id, Err: fmt.Errorf("the keeper: %w", err)}
}

// connect reaches the keeper, starting it if need be.
func (k *Keeper) connect(ctx context.Context) (*net.UnixConn, error) {
	wait := 2 * time.Millisecond
	for {
		c, err := k.dial(ctx)
		if err == nil || !gone(err) {
			return c, outcome(ctx, "", err)
		}
		ready, err := k.start(ctx)
		if err != nil {
			return nil, outcome(ctx, "", err)
		}
		if ready {
			continue
		}
		// Another has the store, and is about to listen or to end.
		if !pause(ctx, wait) {
			return nil, &backend.Error{Op: "keeper", Kind: backend.ErrUnavailable, Err: errors.New("the keeper neither answers nor ends")}
		}
		wait = min(2*wait, 200*time.Millisecond)
	}
}

// pause waits, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// start starts a keeper; false when another has the store.
func (k *Keeper) start(ctx context.Context) (bool, error) {
	program, err := k.program()
	if err != nil {
		return false, err
	}
	log, err := openLog(k.dir)
	if err != nil {
		return false, err
	}
	defer log.Close() //nolint:errcheck // the keeper writes it
	cfg, err := json.Marshal(startConfig{Dir: k.dir, Idle: k.idle})
	if err != nil {
		return false, err
	}
	cr, cw, err := os.Pipe()
	if err != nil {
		return false, err
	}
	defer cr.Close() //nolint:errcheck // read side
	_, err = cw.Write(cfg)
	if err = errors.Join(err, cw.Close()); err != nil {
		return false, err
	}
	rr, rw, err := os.Pipe()
	if err != nil {
		return false, err
	}
	defer rr.Close() //nolint:errcheck // read side
	cmd := exec.CommandContext(ctx, program)
	cmd.Args = []string{Argv0, stageStart}
	cmd.Dir, cmd.Env, cmd.Stderr = "/", environment(os.Environ()), log
	cmd.ExtraFiles = []*os.File{cr, rw}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Run()
	rw.Close() //nolint:errcheck // the keeper has its own
	if err != nil {
		return false, fmt.Errorf("start %s as a keeper: %w (see %s/%s)", program, err, k.dir, logFile)
	}
	defer context.AfterFunc(ctx, func() { rr.SetReadDeadline(time.Now()) })() //nolint:errcheck // it ends by itself then
	var b [1]byte
	if _, err := io.ReadFull(rr, b[:]); err != nil {
		return false, fmt.Errorf("%s did not become a keeper (see %s/%s)", program, k.dir, logFile)
	}
	return b[0] == saysReady, nil
}

// environment is what of env a keeper needs. Security: the rest may be secrets
// of who happened to start it.
func environment(env []string) []string {
	var out []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "PATH", "HOME", "TZ", "GODEBUG", "GOMAXPROCS", "GOMEMLIMIT", "SSL_CERT_FILE", "SSL_CERT_DIR", "RES_OPTIONS", "LOCALDOMAIN", "GOCOVERDIR":
			out = append(out, kv)
		}
	}
	return out
}
