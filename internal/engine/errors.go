package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"github.com/glovebox-dev/glovebox/backend"
)

// maxMessage bounds what of a daemon's message is kept, in bytes.
const maxMessage = 400

// oneLine makes a daemon's words fit to be shown: they can hold bytes from an
// image or a container. Security: no control characters, no unbounded length.
func oneLine(s string) string {
	var b strings.Builder
	space := false
	for _, r := range s {
		switch {
		case r == utf8.RuneError, !unicode.IsPrint(r) && !unicode.IsSpace(r):
			r = '?'
		case unicode.IsSpace(r):
			if space || b.Len() == 0 {
				continue
			}
			r = ' '
		}
		space = r == ' '
		if b.Len()+utf8.RuneLen(r) > maxMessage {
			return strings.TrimSpace(b.String()) + " …"
		}
		b.WriteRune(r)
	}
	return strings.TrimSpace(b.String())
}

// daemonError is what the daemon said, fit to be shown, around the error.
type daemonError struct {
	text string
	err  error
}

func (e *daemonError) Error() string { return e.text }
func (e *daemonError) Unwrap() error { return e.err }

func said(err error) error {
	text := strings.TrimPrefix(err.Error(), "Error response from daemon: ")
	return &daemonError{text: oneLine(text), err: err}
}

func invalid(op, field string, err error) error {
	return &backend.Error{Op: op, Kind: backend.ErrInvalid, Field: field, Err: said(err)}
}

// classify gives an error of call c, made for ctx, its kind. Here, and only
// here, the daemon's errors become the contract's.
func (e *Engine) classify(ctx context.Context, c call, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if ours, ok := errors.AsType[*backend.Error](err); ok {
		out := *ours
		if out.Op == "" {
			out.Op = c.op
		}
		return &out
	}
	out := &backend.Error{Op: c.op, Kind: kindOf(c, err), Err: said(err)}
	var dial *dialError
	switch {
	case errors.As(err, &dial):
		out.Err = dial
		out.Fix = dial.fix(e.host)
	case errors.Is(err, context.DeadlineExceeded):
		out.Err = fmt.Errorf("the Docker daemon at %s does not answer", e.host)
		out.Fix = "see its log, and restart it if it hangs"
	case out.Kind == backend.ErrNotFound:
		out.Field, out.Fix = c.field, c.fix
	case out.Kind == backend.ErrCapacity:
		out.Fix = "free space on the engine's host, or remove images and containers nobody needs"
	}
	return out
}

// undone adds to err that what was begun could not be undone.
func undone(err, undo error) error {
	if undo == nil {
		return err
	}
	if e, ok := errors.AsType[*backend.Error](err); ok {
		out := *e
		out.Err = errors.Join(e.Err, undo)
		return &out
	}
	return errors.Join(err, undo)
}

func kindOf(c call, err error) backend.Kind {
	var dial *dialError
	text := err.Error()
	switch {
	case errors.As(err, &dial):
		return backend.ErrUnavailable
	case errors.Is(err, context.DeadlineExceeded), client.IsErrConnectionFailed(err), broken(err):
		if c.changes {
			return backend.ErrLost
		}
		return backend.ErrUnavailable
	case full(text):
		return backend.ErrCapacity
	case errdefs.IsNotFound(err):
		return backend.ErrNotFound
	case errdefs.IsConflict(err):
		return backend.ErrConflict
	case errdefs.IsInvalidArgument(err):
		return backend.ErrInvalid
	case errdefs.IsPermissionDenied(err), errdefs.IsUnauthorized(err):
		return backend.ErrDenied
	case errdefs.IsNotImplemented(err):
		return backend.ErrUnsupported
	}
	// What is left is the daemon's own trouble, which it calls an internal
	// error or gives no status at all; it has refused, so nothing was done.
	return backend.ErrUnavailable
}

// full recognises that something of the host's is used up. The daemon has no
// status of its own for that, so its words are all there is.
func full(text string) bool {
	for _, s := range []string{
		"no space left on device", "disk quota exceeded", "cannot allocate memory", "resource temporarily unavailable",
		"too many open files", "pools have been fully subnetted", "could not find an available, non-overlapping",
	} {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}

// dialError is why the daemon could not be reached: nothing was sent.
type dialError struct {
	err error
}

// The words of the error itself are kept out: the SDK replaces errors by the
// words in them.
func (e *dialError) Error() string {
	switch {
	case errors.Is(e.err, fs.ErrPermission):
		return "the Docker daemon's socket may not be used"
	case errors.Is(e.err, fs.ErrNotExist):
		return "there is no Docker daemon"
	}
	return "the Docker daemon cannot be reached"
}

func (e *dialError) Unwrap() error { return e.err }

func (e *dialError) fix(host string) string {
	if errors.Is(e.err, fs.ErrPermission) {
		return fmt.Sprintf("run as root or as a user who may open %s", host)
	}
	return fmt.Sprintf("start Docker, or set DOCKER_HOST to its address; %s was tried", host)
}
