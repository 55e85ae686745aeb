package backendtest

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"

	"github.com/glovebox-dev/glovebox/backend"
)

// listener is an open port of a sandbox.
type listener struct {
	port   uint16
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	remove func()
}

func (sb *sandbox) listen(port uint16) (net.Listener, error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if err := sb.aliveLocked("listen"); err != nil {
		return nil, err
	}
	if sb.listeners[port] != nil {
		return nil, &backend.Error{Op: "listen", Kind: backend.ErrConflict, Sandbox: sb.id}
	}
	l := &listener{port: port, conns: make(chan net.Conn), closed: make(chan struct{})}
	l.remove = func() {
		sb.mu.Lock()
		defer sb.mu.Unlock()
		delete(sb.listeners, port)
	}
	sb.listeners[port] = l
	return l, nil
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.remove()
	})
	return nil
}

func (l *listener) Addr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(l.port)}
}

type dialer struct{ sb *sandbox }

func (d dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	var conn net.Conn
	err := d.sb.do(ctx, OpDial, addr, func() (err error) {
		conn, err = d.dial(ctx, network, addr)
		return err
	})
	if err != nil {
		return nil, err
	}
	return conn, nil
}

func (d dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	text := addr
	if host, port, err := net.SplitHostPort(addr); err == nil {
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return nil, &backend.Error{Op: "dial", Kind: backend.ErrInvalid, Sandbox: d.sb.id, Err: errors.New("not a loopback address")}
		}
		text = port
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || network != "tcp" {
		return nil, &backend.Error{Op: "dial", Kind: backend.ErrInvalid, Sandbox: d.sb.id, Err: errors.New("not a TCP port")}
	}
	d.sb.mu.Lock()
	l := d.sb.listeners[uint16(port)]
	d.sb.mu.Unlock()
	if l == nil {
		return nil, d.refused()
	}
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return &countedConn{Conn: ours, closed: d.sb.host.opened("connection to port " + text)}, nil
	case <-l.closed:
		return nil, d.refused()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (d dialer) refused() error {
	return &backend.Error{Op: "dial", Kind: backend.ErrUnavailable, Sandbox: d.sb.id, Err: errors.New("nothing listens on the port")}
}

type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}
