//go:build !linux

// Package testengine starts Docker engines of a test's own, on Linux.
package testengine

import "testing"

// Remote is an engine that is reached over TCP, as if on another machine.
type Remote struct {
	Addr string // tcp://…
	TLS  string // directory of certificates for its users; "" without TLS
}

// NewRemote skips the test: no engine can be started here.
func NewRemote(t testing.TB, _ bool) *Remote {
	t.Helper()
	t.Skip("engines are started on Linux alone")
	return nil
}
