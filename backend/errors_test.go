package backend_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
)

func TestKindOf_isTheOutermostClass(t *testing.T) {
	t.Parallel()
	unavailable := &backend.Error{Op: "dial", Kind: backend.ErrUnavailable}
	tests := []struct {
		name string
		err  error
		want backend.Kind
	}{
		{"nil", nil, ""},
		{"a kind", backend.ErrQuota, backend.ErrQuota},
		{"an error", unavailable, backend.ErrUnavailable},
		{"wrapped", fmt.Errorf("a: %w", fmt.Errorf("b: %w", unavailable)), backend.ErrUnavailable},
		{"lost, though its cause was unavailable", &backend.Error{Kind: backend.ErrLost, Err: unavailable}, backend.ErrLost},
		{"joined", errors.Join(io.EOF, &backend.Error{Kind: backend.ErrLost}, unavailable), backend.ErrLost},
		{"two wrapped", fmt.Errorf("%w and %w", io.EOF, unavailable), backend.ErrUnavailable},
		{"cancelled", context.Canceled, ""},
		{"a deadline, wrapped", fmt.Errorf("wait: %w", context.DeadlineExceeded), ""},
		{"a classified deadline", &backend.Error{Kind: backend.ErrLost, Err: context.DeadlineExceeded}, backend.ErrLost},
		{"no class of its own, the cause's", &backend.Error{Op: "a", Err: unavailable}, backend.ErrUnavailable},
		{"no class at all", &backend.Error{Op: "a", Err: io.EOF}, backend.ErrInternal},
		{"only words around a cancellation", &backend.Error{Op: "a", Err: context.Canceled}, ""},
		{"nothing in it", &backend.Error{}, backend.ErrInternal},
		{"not supported", fmt.Errorf("x: %w", errors.ErrUnsupported), backend.ErrUnsupported},
		{"a stranger", io.ErrUnexpectedEOF, backend.ErrInternal},
		{"a kind of a newer peer", backend.Kind("sleepy"), "sleepy"},
	}
	for _, tt := range tests {
		if got := backend.KindOf(tt.err); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestError_text(t *testing.T) {
	t.Parallel()
	cause := errors.New("no space")
	tests := []struct {
		err  backend.Error
		want string
	}{
		{backend.Error{}, "internal"},
		{backend.Error{Kind: backend.ErrTooLarge}, "too large"},
		{backend.Error{Op: "create", Kind: backend.ErrLost, Err: cause}, "create: no space"},
		{backend.Error{Sandbox: "s1", Kind: backend.ErrNotFound}, "s1: not found"},
		{
			backend.Error{
				Op: "create", Sandbox: "s1", Kind: backend.ErrUnsupported, Backend: "box", Field: "limits.disk", Fix: "leave it unset", Err: cause,
			},
			"create s1: limits.disk: no space (backend box); leave it unset",
		},
	}
	for _, tt := range tests {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

func TestError_unwrapsToKindAndCause(t *testing.T) {
	t.Parallel()
	err := error(&backend.Error{Kind: backend.ErrUnsupported, Err: &fs.PathError{Op: "open", Path: "a", Err: fs.ErrNotExist}})
	for _, target := range []error{backend.ErrUnsupported, errors.ErrUnsupported, fs.ErrNotExist} {
		if !errors.Is(err, target) {
			t.Errorf("is not %v", target)
		}
	}
	for _, target := range []error{backend.ErrInvalid, fs.ErrExist, context.Canceled} {
		if errors.Is(err, target) {
			t.Errorf("is %v", target)
		}
	}
	if pe, ok := errors.AsType[*fs.PathError](err); !ok || pe.Path != "a" {
		t.Errorf("AsType: %v %v", pe, ok)
	}
	if errors.Is(backend.ErrInvalid, errors.ErrUnsupported) {
		t.Error("every kind is unsupported")
	}
}
