package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/url"
	"syscall"
)

// hookKey is the key of a hook in a context.
type hookKey struct{}

// hook is told of the connection that a call makes. The SDK reads the answer to
// a request for a stream without looking at its context, so whoever makes one
// ends it through the connection.
type hook func(net.Conn)

// dialHost connects to the engine. Its errors are *dialError.
func dialHost(ctx context.Context, d *net.Dialer, u *url.URL, secure *tls.Config) (net.Conn, error) {
	network, addr := "tcp", u.Host
	if u.Scheme == "unix" {
		network = "unix"
	}
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &dialError{err: err}
	}
	if secure != nil {
		over := tls.Client(conn, secure)
		hctx, cancel := context.WithTimeout(ctx, d.Timeout)
		defer cancel()
		if err := over.HandshakeContext(hctx); err != nil {
			conn.Close() //nolint:errcheck // on the way out
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, &dialError{err: err}
		}
		conn = over
	}
	if h, ok := ctx.Value(hookKey{}).(hook); ok {
		h(conn)
	}
	return conn, nil
}

// broken tells that a connection ended before the answer did.
func broken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
