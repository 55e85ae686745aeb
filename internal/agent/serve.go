//go:build linux

package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// pingAfter is how long a peer may be silent before it is asked whether it is
// there, and then has to answer.
const pingAfter = 15 * time.Second

// newHTTPServer speaks HTTP/2 with prior knowledge, and HTTP/1.1 to peers that
// know no better.
func newHTTPServer(s *Server) *http.Server {
	ping := time.Duration(0)
	if s.opts.Heartbeat {
		ping = pingAfter
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{ //nolint:gosec // the one peer is the sandbox's owner; streams last as long as it likes
		Handler:   s.Handler(),
		Protocols: protocols,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: ping, PingTimeout: ping,
			MaxConcurrentStreams:          4 * maxRunning,
			MaxReadFrameSize:              256 << 10,
			MaxReceiveBufferPerConnection: 4<<20 - 1,
			MaxReceiveBufferPerStream:     2 << 20,
		},
		MaxHeaderBytes: 256 << 10,
		ErrorLog:       slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		BaseContext:    func(net.Listener) context.Context { return s.ctx },
	}
}

// Serve answers the connections of l until Close, which closes l. It returns
// nil then.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(l)
	s.drained(err)
	if errors.Is(err, http.ErrServerClosed) || s.ctx.Err() != nil {
		return nil
	}
	return err
}

// ServeConn answers one connection, over whatever byte stream, until the peer
// leaves, ctx ends or the server is closed. It closes conn and returns nil, or
// ctx's error. Commands live on.
func (s *Server) ServeConn(ctx context.Context, conn net.Conn) error {
	l := &oneConn{conn: conn, done: make(chan struct{})}
	c := &watchedConn{Conn: conn, closed: l.finish}
	l.conn = c
	defer c.Close() //nolint:errcheck // whoever closed it first has the error
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if err := s.Serve(l); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return ctx.Err()
}

// oneConn is a listener with one connection. It ends when that does.
type oneConn struct {
	mu   sync.Mutex
	conn net.Conn
	once sync.Once
	done chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	l.mu.Lock()
	c := l.conn
	l.conn = nil
	l.mu.Unlock()
	if c != nil {
		return c, nil
	}
	<-l.done
	return nil, io.EOF
}

func (l *oneConn) finish() { l.once.Do(func() { close(l.done) }) }

func (l *oneConn) Close() error {
	l.finish()
	return nil
}

func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "glovebox", Net: "unix"} }

// watchedConn says when it is closed.
type watchedConn struct {
	net.Conn
	closed func()
}

func (c *watchedConn) Close() error {
	defer c.closed()
	return c.Conn.Close()
}

// Close ends every connection, kills every command with its tree, remembered
// descendants included, and waits for all goroutines. A process the kernel
// does not let die is given up after five seconds. Close is idempotent.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	if s.deadline != nil {
		s.deadline.Stop()
	}
	s.mu.Unlock()
	s.cancel()
	err := s.http.Close()
	all := s.table.close()
	killSessions(all)
	for _, c := range all {
		c.shut()
	}
	s.wg.Wait()
	return err
}
