//go:build linux

package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
)

// rpcError is err with a code, its text made valid for every protocol.
func rpcError(code connect.Code, err error) error {
	if text := err.Error(); valid(text) != text {
		err = errors.New(valid(text))
	}
	return connect.NewError(code, err)
}

// fail classifies err, which came from the kernel, and puts E2B's words for
// the operation before it.
func fail(op string, err error) error {
	if ce := new(connect.Error); errors.As(err, &ce) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return rpcError(code(err), fmt.Errorf("%s: %w", op, err))
}

func code(err error) connect.Code {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return connect.CodeInternal
	}
	switch errno { //nolint:exhaustive // the rest is internal, as E2B has it
	case unix.ENOENT:
		return connect.CodeNotFound
	case unix.EACCES, unix.EPERM, unix.EROFS:
		return connect.CodePermissionDenied
	case unix.ENAMETOOLONG, unix.ELOOP, unix.EINVAL, unix.ENOTDIR, unix.EISDIR, unix.ENXIO:
		return connect.CodeInvalidArgument
	case unix.ENOTEMPTY, unix.EEXIST, unix.EBUSY, unix.EXDEV, unix.EAGAIN, unix.ETXTBSY:
		return connect.CodeFailedPrecondition
	}
	return connect.CodeInternal
}

// httpError is a refusal of /files with its status.
type httpError struct {
	status int
	err    error
}

func (e *httpError) Error() string { return e.err.Error() }
func (e *httpError) Unwrap() error { return e.err }

func refuse(status int, format string, args ...any) error {
	return &httpError{status, fmt.Errorf(format, args...)}
}

// status is the HTTP status that err deserves.
func status(err error) int {
	if he := new(httpError); errors.As(err, &he) {
		return he.status
	}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return http.StatusInternalServerError
	}
	switch errno { //nolint:exhaustive // the rest is internal
	case unix.ENOSPC, unix.EDQUOT:
		return http.StatusInsufficientStorage
	case unix.EFBIG:
		return http.StatusRequestEntityTooLarge
	}
	switch code(err) { //nolint:exhaustive // code gives no others
	case connect.CodeNotFound:
		return http.StatusNotFound
	case connect.CodePermissionDenied:
		return http.StatusForbidden
	case connect.CodeInvalidArgument:
		return http.StatusBadRequest
	case connect.CodeFailedPrecondition:
		return http.StatusConflict
	}
	return http.StatusInternalServerError
}

// writeError answers with E2B's REST error body.
func writeError(w http.ResponseWriter, err error) {
	h := w.Header()
	for _, name := range []string{"Content-Encoding", "Content-Disposition", "Accept-Ranges", "Last-Modified"} {
		h.Del(name)
	}
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	st := status(err)
	w.WriteHeader(st)
	_ = json.NewEncoder(w).Encode(struct { // the client is gone if this fails
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{st, valid(err.Error())})
}
