package backend

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
)

// cleanupTimeout bounds the Destroy of Run, whose caller's context may be over.
const cleanupTimeout = 30 * time.Second

// RunSpec is a one-shot: a sandbox, files to put into it, one command.
type RunSpec struct {
	Spec    Spec
	Command Command
	// Files are written before the command starts; names as in Filesystem.
	Files map[string]File
	// Fetch names files to read after the command ended. One that is missing
	// is left out of the result.
	Fetch []string
	// FetchLimit bounds the bytes of all fetched files; 0 is DefaultOutput.
	FetchLimit int64
}

// File is a file to put into a sandbox.
type File struct {
	Data []byte
	// Reader is read to its end when Data is nil.
	Reader io.Reader
	Mode   fs.FileMode // 0 means 0o644
}

// Result is what a one-shot gave.
type Result struct {
	Exit    Exit
	Stdout  []byte // at most Limits.Output or DefaultOutput; see Exit.StdoutTruncated
	Stderr  []byte
	Files   map[string][]byte // the fetched ones
	Receipt Receipt
}

// Run makes a sandbox, writes files, runs one command to its end and destroys
// the sandbox, whatever happens. Output is collected up to the limit and, where
// the command names writers, streamed to them as well, unbounded. The result
// warns of the shares of limits that DefaultWarnings names. When ctx ends first the command is killed and the result's reason is ReasonCanceled, with
// ctx's error. On any error the Result holds what is known. A sandbox that could
// not be destroyed is an error too, joined to another. Spec.Keep is ErrInvalid.
func Run(ctx context.Context, ex Executor, rs RunSpec) (res Result, err error) {
	if err := rs.Command.Validate(); err != nil {
		return res, err
	}
	if rs.Spec.Keep {
		return res, &Error{
			Op: "run", Kind: ErrInvalid, Field: "keep",
			Err: errors.New("a one-shot destroys its sandbox"), Fix: "create a sandbox and start the command in it",
		}
	}
	if rs.FetchLimit < 0 {
		return res, &Error{Op: "run", Kind: ErrInvalid, Field: "fetch_limit", Err: fmt.Errorf("%d is negative", rs.FetchLimit)}
	}
	sb, err := ex.Create(ctx, rs.Spec)
	if err != nil {
		return res, err
	}
	defer func() {
		dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		if derr := sb.Destroy(dctx); derr != nil {
			err = join(err, derr)
		}
	}()
	res.Receipt = sb.Receipt()
	for _, name := range slices.Sorted(maps.Keys(rs.Files)) {
		f := rs.Files[name]
		r := f.Reader
		if f.Data != nil || r == nil {
			r = bytes.NewReader(f.Data)
		}
		if err := sb.Files().Write(ctx, name, r, f.Mode); err != nil {
			return res, err
		}
	}
	limit := cmp.Or(rs.Spec.Limits.Output, DefaultOutput)
	cmd := rs.Command
	stdout := &capture{limit: limit, also: cmd.Output.Stdout}
	stderr := &capture{limit: limit, also: cmd.Output.Stderr}
	cmd.Output = Output{Stdout: stdout, Stderr: stderr}
	res.Exit, err = RunIn(ctx, sb, cmd)
	res.Stdout, res.Exit.StdoutTruncated = stdout.end(res.Exit.StdoutTruncated)
	res.Stderr, res.Exit.StderrTruncated = stderr.end(res.Exit.StderrTruncated)
	if (res.Exit.StdoutTruncated || res.Exit.StderrTruncated) && !slices.Contains(res.Exit.Hits, HitOutput) {
		res.Exit.Hits = append(slices.Clip(res.Exit.Hits), HitOutput) // other waiters share the slice
	}
	timeout := cmp.Or(cmd.Timeout, DefaultTimeout)
	res.Exit.Warnings = append(slices.Clip(res.Exit.Warnings), DefaultWarnings().Check(rs.Spec.Limits.WithDefaults(), timeout, res.Exit)...)
	if err != nil {
		return res, err
	}
	res.Files, err = fetch(ctx, sb.Files(), rs.Fetch, rs.FetchLimit)
	return res, err
}

func fetch(ctx context.Context, files Filesystem, names []string, limit int64) (map[string][]byte, error) {
	if len(names) == 0 {
		return nil, nil
	}
	limit = cmp.Or(limit, DefaultOutput)
	out := make(map[string][]byte, len(names))
	for _, name := range names {
		data, err := ReadFile(ctx, files, name, limit)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return out, err
		}
		limit -= int64(len(data))
		out[name] = data
	}
	return out, nil
}

// join is err, or errs both when there are two, the first deciding the Kind.
func join(err, second error) error {
	if err == nil {
		return second
	}
	return errors.Join(err, second)
}

// ReadFile reads a file of at most limit bytes; a larger one is ErrTooLarge.
func ReadFile(ctx context.Context, files Filesystem, name string, limit int64) ([]byte, error) {
	rc, err := files.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	limit = min(max(limit, 0), math.MaxInt64-1) // one more must be a number
	data, err := io.ReadAll(io.LimitReader(rc, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, &Error{Op: "read", Kind: ErrTooLarge, Field: name, Err: errors.New("the file is larger than the limit")}
	}
	return data, nil
}

// WriteFile writes data to a file; perm 0 means 0o644.
func WriteFile(ctx context.Context, files Filesystem, name string, data []byte, perm fs.FileMode) error {
	return files.Write(ctx, name, bytes.NewReader(data), perm)
}

// RunIn runs cmd in sb and ties it to ctx: when ctx ends first the command is
// killed (its tree where the backend tracks it) and the Exit's reason is
// ReasonCanceled, together with ctx's error. A command that ended by itself
// before the kill reached it keeps its own Exit, without an error. When waiting
// fails for another reason the command is killed as well, since nobody else
// holds it, and that error returned. The sandbox lives on.
func RunIn(ctx context.Context, sb Sandbox, cmd Command) (Exit, error) {
	p, err := sb.Start(ctx, cmd)
	if err != nil {
		return Exit{}, err
	}
	exit, err := p.Wait(ctx)
	if err == nil {
		return exit, nil
	}
	kctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	kill := func(ctx context.Context) error { return p.Signal(ctx, SIGKILL) }
	if tk, ok := As[TreeKiller](p); ok {
		kill = tk.KillTree
	}
	kerr := kill(kctx)
	if ctx.Err() == nil {
		return exit, err
	}
	ended := errors.Is(kerr, ErrNotFound)
	if kerr != nil && !ended {
		return Exit{}, errors.Join(kerr, ctx.Err())
	}
	exit, err = p.Wait(kctx)
	if err != nil || ended {
		return exit, err
	}
	exit.Reason = ReasonCanceled
	return exit, ctx.Err()
}

// TreeKiller is on processes whose whole tree can be killed at once.
type TreeKiller interface {
	// KillTree kills the command and its descendants, as a timeout would.
	KillTree(ctx context.Context) error
}

// capture keeps the first limit bytes and passes everything on until its end.
// A command that could not be waited for may write later than that.
type capture struct {
	mu        sync.Mutex
	limit     int64
	buf       bytes.Buffer
	truncated bool
	ended     bool
	also      io.Writer
}

func (c *capture) Write(p []byte) (int, error) {
	also := c.keep(p)
	if also != nil {
		if _, err := also.Write(p); err != nil {
			c.mu.Lock()
			c.also = nil
			c.mu.Unlock()
		}
	}
	return len(p), nil
}

func (c *capture) keep(p []byte) io.Writer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil
	}
	room := max(c.limit-int64(c.buf.Len()), 0)
	if int64(len(p)) > room {
		c.truncated = true
		p = p[:room]
	}
	c.buf.Write(p)
	return c.also
}

// end gives what was kept; later writes are dropped.
func (c *capture) end(truncated bool) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	return slices.Clip(c.buf.Bytes()), c.truncated || truncated
}
