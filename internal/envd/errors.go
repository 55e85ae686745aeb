package envd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"

	"connectrpc.com/connect"

	"github.com/glovebox-dev/glovebox/backend"
)

// where says what a call was about, for its error.
type where struct {
	op    string
	field string      // a file's name or a field of Command
	files bool        // errors satisfy fs.ErrNotExist and the like
	ext   bool        // of the glovebox service, which a real envd lacks
	mode  fs.FileMode // to send along
}

// protocolError says that the peer broke the protocol.
type protocolError struct{ what string }

func (e *protocolError) Error() string { return "protocol: " + e.what }

func protocolf(format string, args ...any) error {
	return &protocolError{printable(fmt.Sprintf(format, args...))}
}

// peerError is what the sandbox gave as the reason, marked as its words.
type peerError struct {
	message string
	is      error // an error of io/fs, or nil
}

func (e *peerError) Error() string { return "sandbox: " + e.message }
func (e *peerError) Unwrap() error { return e.is }

// printable makes words of the sandbox safe to show: one line, bounded.
func printable(s string) string {
	s = strings.ToValidUTF8(strings.TrimSpace(s), "?")
	if len(s) > 512 {
		s = strings.ToValidUTF8(s[:512], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// fail classifies err, once, where it enters. ctx is the call's own: when it
// is over its error is returned as it is, unless the client ended it.
func (c *Client) fail(ctx context.Context, w where, err error) error {
	var done *backend.Error
	switch cause := context.Cause(ctx); {
	case err == nil:
		return nil
	case errors.Is(cause, errClosed) || errors.Is(err, errClosed):
		return c.lost(c.error(w, backend.ErrClosed, errClosed))
	case errors.Is(cause, errNoAnswer):
		return c.lost(c.error(w, backend.ErrLost, errNoAnswer))
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &done):
		return err
	}
	if connect.IsWireError(err) && connect.CodeOf(err) == connect.CodeDeadlineExceeded && soonOver(ctx) {
		return c.fail(ctx, w, err)
	}
	kind, cause := classify(w, err)
	e := c.error(w, kind, cause)
	var status *statusError
	answered := errors.As(err, &status)
	gone := answered && status.status == http.StatusBadGateway && w.op != opDial
	if w.op == opDial && answered {
		return e // by the agent, so nothing is lost
	}
	if gone || kind == backend.ErrLost || kind == backend.ErrUnavailable {
		return c.lost(e)
	}
	return e
}

// soonOver waits for a deadline that the peer's clock, which was told it,
// reached just before ours.
func soonOver(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < time.Second && wait(ctx, nil, 2*time.Second)
}

func (c *Client) error(w where, kind backend.Kind, err error) error {
	return &backend.Error{
		Op: w.op, Kind: kind, Backend: c.opts.Backend, Sandbox: c.opts.Sandbox,
		Field: printable(w.field), Err: err,
	}
}

// lost gives the backend the word on what became of the sandbox.
func (c *Client) lost(err error) error {
	if c.opts.Lost != nil {
		if e := c.opts.Lost(err); e != nil {
			return e
		}
	}
	return err
}

func classify(w where, err error) (backend.Kind, error) {
	var (
		status  *statusError
		dial    *dialError
		op      *net.OpError
		broken  *protocolError
		wireErr *connect.Error
	)
	switch {
	case errors.As(err, &status):
		return ofStatus(w, status)
	case errors.As(err, &broken):
		return backend.ErrLost, broken
	case errors.As(err, &dial), errors.As(err, &op) && op.Op == "dial":
		return backend.ErrUnavailable, err
	case !errors.As(err, &wireErr):
		return backend.ErrLost, err
	case connect.IsWireError(err):
		return ofCode(w, wireErr)
	case wireErr.Code() == connect.CodeResourceExhausted:
		return backend.ErrTooLarge, errors.New("the answer is over the limit")
	case wireErr.Code() == connect.CodeUnavailable, wireErr.Code() == connect.CodeCanceled,
		wireErr.Code() == connect.CodeDeadlineExceeded:
		return backend.ErrLost, wireErr.Unwrap()
	default:
		return backend.ErrLost, protocolf("%v", wireErr.Unwrap())
	}
}

// ofCode classifies an error that the peer sent over connect.
func ofCode(w where, e *connect.Error) (backend.Kind, error) {
	p := &peerError{message: printable(e.Message())}
	switch e.Code() {
	case connect.CodeInvalidArgument, connect.CodeOutOfRange:
		return backend.ErrInvalid, p
	case connect.CodeNotFound:
		return backend.ErrNotFound, w.as(p, fs.ErrNotExist)
	case connect.CodeAlreadyExists:
		return backend.ErrConflict, w.as(p, fs.ErrExist)
	case connect.CodePermissionDenied:
		return backend.ErrDenied, w.as(p, fs.ErrPermission)
	case connect.CodeUnauthenticated:
		// envd answers a bad token in plain HTTP; over connect this code means
		// an account that does not exist.
		return backend.ErrNotFound, p
	case connect.CodeFailedPrecondition, connect.CodeAborted:
		return backend.ErrConflict, p
	case connect.CodeResourceExhausted:
		if w.files {
			return backend.ErrTooLarge, p
		}
		return backend.ErrCapacity, p
	case connect.CodeUnimplemented:
		return backend.ErrUnsupported, p
	case connect.CodeUnavailable:
		return backend.ErrUnavailable, p
	case connect.CodeCanceled, connect.CodeDeadlineExceeded:
		return backend.ErrLost, p
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeDataLoss:
		return backend.ErrInternal, p
	default:
		return backend.ErrLost, p
	}
}

// ofStatus classifies a plain HTTP answer: those of /files, of envd's token
// check and of the proxies before a sandbox.
func ofStatus(w where, e *statusError) (backend.Kind, error) {
	p := &peerError{message: e.Error()}
	switch e.status {
	case http.StatusBadRequest, http.StatusRequestedRangeNotSatisfiable, http.StatusUnprocessableEntity:
		return backend.ErrInvalid, p
	case http.StatusUnauthorized:
		// E2B tells a missing account from a bad token in words only.
		if w.files && strings.HasPrefix(e.message, "error looking up user") {
			return backend.ErrNotFound, p
		}
		return backend.ErrUnauthenticated, p
	case http.StatusForbidden:
		return backend.ErrDenied, w.as(p, fs.ErrPermission)
	case http.StatusNotFound:
		if w.ext {
			return backend.ErrUnsupported, p
		}
		return backend.ErrNotFound, w.as(p, fs.ErrNotExist)
	case http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusUnsupportedMediaType:
		return backend.ErrUnsupported, p
	case http.StatusConflict:
		return backend.ErrConflict, w.as(p, fs.ErrExist)
	case http.StatusGone:
		return backend.ErrExpired, p
	case http.StatusRequestEntityTooLarge, http.StatusInsufficientStorage:
		return backend.ErrTooLarge, p
	case http.StatusTooManyRequests:
		return backend.ErrQuota, p
	case http.StatusServiceUnavailable:
		return backend.ErrUnavailable, p
	case http.StatusBadGateway:
		if w.op == opDial {
			return backend.ErrUnavailable, p
		}
		return ofProxy(e), p
	}
	if e.status == http.StatusInternalServerError {
		return backend.ErrInternal, p
	}
	return backend.ErrLost, p
}

// ofProxy reads the 502 of E2B's proxy, whose cases differ in words only.
func ofProxy(e *statusError) backend.Kind {
	switch {
	case strings.Contains(e.message, "was not found"):
		return backend.ErrNotFound
	case strings.Contains(e.message, "port is not open"):
		return backend.ErrUnavailable
	default:
		return backend.ErrLost
	}
}

func (w where) as(p *peerError, is error) error {
	if w.files {
		p.is = is
	}
	return p
}
