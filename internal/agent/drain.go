//go:build linux

package agent

import (
	"context"
	"net/http"
)

// Drain takes no more requests and returns when those under way were answered,
// the ends of commands delivered among them, or ctx is over. Serve and
// ServeConn go on until Close.
func (s *Server) Drain(ctx context.Context) error {
	return s.http.Shutdown(ctx)
}

// drained waits, where it is Drain that has ended http's Serve, for Close.
func (s *Server) drained(err error) {
	if err == http.ErrServerClosed { //nolint:errorlint // documented to be returned as it is
		<-s.ctx.Done()
	}
}
