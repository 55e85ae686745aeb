package backend_test

import (
	"context"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

type plain struct{}

type extender struct{ name string }

func (extender) SetLifetime(context.Context, time.Duration) error { return nil }

// transparent shows what it wraps.
type transparent struct{ inner any }

func (t transparent) Unwrap() any { return t.inner }

// answering hands out a wrapped Extender if the inner one has one.
type answering struct{ inner any }

func (a answering) As(target any) bool {
	t, ok := target.(*backend.Extender)
	if !ok {
		return false
	}
	if _, ok := backend.As[backend.Extender](a.inner); !ok {
		return false
	}
	*t = extender{"wrapped"}
	return true
}

// answering's Unwrap must not be asked: its answer is final.
func (a answering) Unwrap() any { return a.inner }

func TestAs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		v    any
		want string // the extender's name; "" when there is none
	}{
		{"nil", nil, ""},
		{"nil inside", transparent{nil}, ""},
		{"absent", plain{}, ""},
		{"present", extender{"direct"}, "direct"},
		{"through a layer", transparent{transparent{extender{"inner"}}}, "inner"},
		{"absent through layers", transparent{transparent{plain{}}}, ""},
		{"wrapped stays wrapped", transparent{answering{extender{"inner"}}}, "wrapped"},
		{"absent stays absent", answering{transparent{plain{}}}, ""},
		{"the outermost answer", answering{answering{transparent{extender{"inner"}}}}, "wrapped"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, ok := backend.As[backend.Extender](tt.v)
			if ok != (tt.want != "") {
				t.Fatalf("found %v", ok)
			}
			if e, _ := got.(extender); ok && e.name != tt.want {
				t.Errorf("found %q, want %q", e.name, tt.want)
			}
		})
	}
	if _, ok := backend.As[backend.Pauser](transparent{answering{transparent{plain{}}}}); ok {
		t.Error("a layer's no was not final")
	}
}
