package backend

import (
	"cmp"
	"context"
	"errors"
	"strings"
)

// Kind classifies an error, in Go, on the wire and in reports alike. A Kind is
// an error itself: errors.Is(err, backend.ErrNotFound) works. Kinds are
// append-only.
type Kind string

// The kinds of errors.
const (
	ErrInvalid         Kind = "invalid"         // the request is wrong; the same again fails again
	ErrNotFound        Kind = "not_found"       // no such thing, or not yours
	ErrClosed          Kind = "closed"          // destroyed or closed by its owner
	ErrExpired         Kind = "expired"         // its lifetime ended
	ErrConflict        Kind = "conflict"        // the thing is in another state
	ErrUnauthenticated Kind = "unauthenticated" // credentials missing or wrong
	ErrDenied          Kind = "denied"          // policy said no
	ErrQuota           Kind = "quota"           // the caller has used up their share
	ErrCapacity        Kind = "capacity"        // the host or service is full
	ErrTooLarge        Kind = "too_large"       // over a size limit
	ErrUnsupported     Kind = "unsupported"     // this backend cannot; matches errors.ErrUnsupported too
	ErrUnavailable     Kind = "unavailable"     // transient, and nothing happened: the only kind to retry
	ErrLost            Kind = "lost"            // what happened is not known: never repeated automatically
	ErrInternal        Kind = "internal"        // a defect of ours
)

// Error implements error.
func (k Kind) Error() string { return string(k) }

// Is lets ErrUnsupported match errors.ErrUnsupported.
func (k Kind) Is(target error) bool {
	return k == ErrUnsupported && target == errors.ErrUnsupported
}

// Error is an error with its class and where it comes from. Its text never
// holds a secret; host paths only where the caller gave them.
type Error struct {
	Op      string // what was being done, such as "create"
	Kind    Kind
	Backend string // the backend's name, where one is meant
	Sandbox string // the sandbox's ID, where one is meant
	Field   string // the field of Spec or Command at fault, such as "limits.memory"
	Fix     string // what the caller can do, one sentence
	Err     error  // the cause; may be nil
}

// Error implements error: op, sandbox, field, cause or kind, backend, fix.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op)
	}
	if e.Sandbox != "" {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(e.Sandbox)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	switch {
	case e.Err != nil:
		b.WriteString(e.Err.Error())
	default:
		b.WriteString(strings.ReplaceAll(string(cmp.Or(e.Kind, ErrInternal)), "_", " "))
	}
	if e.Backend != "" {
		b.WriteString(" (backend " + e.Backend + ")")
	}
	if e.Fix != "" {
		b.WriteString("; " + e.Fix)
	}
	return b.String()
}

// Unwrap gives the kind and the cause, where there are any.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.Kind != "" {
		errs = append(errs, e.Kind)
	}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}

// KindOf is the outermost classification of err: "" for nil and for context
// errors, ErrInternal for an error nobody classified. An Error without a Kind
// only adds words: the classification is its cause's. Decisions use KindOf and
// not errors.Is, since a lost call stays lost though its cause was unavailable.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	if k, ok := kindOf(err); ok {
		return k
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return ""
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return ErrUnsupported
	}
	return ErrInternal
}

func kindOf(err error) (Kind, bool) {
	for err != nil {
		switch e := err.(type) { //nolint:errorlint // walks the chain itself, outermost first
		case *Error:
			if e.Kind != "" {
				return e.Kind, true
			}
			err = e.Err
		case Kind:
			return e, true
		case interface{ Unwrap() []error }:
			for _, inner := range e.Unwrap() {
				if k, ok := kindOf(inner); ok {
					return k, true
				}
			}
			return "", false
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		default:
			return "", false
		}
	}
	return "", false
}
