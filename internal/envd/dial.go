package envd

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

// DialContext connects to a port on the sandbox's loopback. network is "tcp",
// addr a port or a loopback host and port. ctx bounds the connecting; the
// caller closes the connection, which has a CloseWrite. A port that nobody
// listens on is ErrUnavailable; over E2B's envd it is ErrUnsupported.
func (c *Client) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	w := where{op: opDial, field: addr, ext: true}
	port, err := portOf(network, addr)
	if err != nil {
		return nil, c.error(w, backend.ErrInvalid, err)
	}
	if err := c.require(ctx, w.op); err != nil {
		return nil, err
	}
	cctx, done, err := c.begin(context.WithoutCancel(ctx))
	if err != nil {
		return nil, c.fail(ctx, w, err)
	}
	cctx, cancel := context.WithCancelCause(cctx)
	quiet := time.AfterFunc(callTimeout, func() { cancel(errNoAnswer) })
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	near, far := net.Pipe()
	conn := &conn{Conn: near, far: far, remote: address(net.JoinHostPort("127.0.0.1", port))}
	conn.fail = func(err error) error { return c.fail(cctx, w, err) }
	conn.end = sync.OnceFunc(func() { cancel(nil); done() })
	res, err := c.dial(cctx, port, conn)
	quiet.Stop()
	if !stop() && err == nil { // ctx ended as the answer came
		_ = res.Body.Close()
		err = ctx.Err()
	}
	if err == nil && !c.spawn(func() { conn.receive(res.Body) }) {
		_ = res.Body.Close()
		err = errClosed
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		} else {
			err = c.fail(cctx, w, err)
		}
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

func (c *Client) dial(ctx context.Context, port string, conn *conn) (*http.Response, error) {
	url := c.opts.BaseURL + wire.DialPath + "?port=" + port
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, sending{conn})
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, responseError(res)
	}
	return res, nil
}

func portOf(network, addr string) (string, error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return "", errors.New("the network must be tcp")
	}
	host, port := "", addr
	if strings.Contains(addr, ":") {
		var err error
		if host, port, err = net.SplitHostPort(addr); err != nil {
			return "", err
		}
	}
	ip, err := netip.ParseAddr(host)
	if host != "" && host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return "", errors.New("the host must be a loopback one")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", errors.New("the port must be 1 to 65535")
	}
	return port, nil
}

// conn is a connection into the sandbox. The caller holds one end of a pipe,
// for its deadlines; the request reads the other and receive writes to it.
type conn struct {
	net.Conn
	far    net.Conn
	remote address
	end    func()
	fail   func(error) error
	half   atomic.Bool // CloseWrite was called
	broken error       // why the stream ended early; set before far is closed
}

// receive copies what comes from the port, then ends the connection.
func (c *conn) receive(body io.ReadCloser) {
	if _, err := io.Copy(c.far, body); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		c.broken = c.fail(err)
	}
	_ = c.far.Close()
	c.end()
	_ = body.Close()
}

// Read implements [net.Conn]. io.EOF is the port's own end of the connection.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, io.EOF) && c.broken != nil {
		return n, c.broken
	}
	return n, err
}

// CloseWrite ends what is sent; what comes can still be read.
func (c *conn) CloseWrite() error {
	c.half.Store(true)
	return c.far.SetReadDeadline(time.Unix(1, 0)) // wakes the request's reader
}

// Write implements [net.Conn].
func (c *conn) Write(p []byte) (int, error) {
	if c.half.Load() {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	err := c.Conn.Close()
	_ = c.far.Close()
	c.end()
	return err
}

// RemoteAddr implements [net.Conn].
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// LocalAddr implements [net.Conn].
func (c *conn) LocalAddr() net.Addr { return address("sandbox") }

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// sending is the request's side of a connection.
type sending struct{ c *conn }

// Read implements [io.Reader].
func (s sending) Read(p []byte) (int, error) {
	n, err := s.c.far.Read(p)
	if err != nil && s.c.half.Load() {
		return n, io.EOF
	}
	return n, err
}

// Close ends a read that waits for the caller, whom the transport does not
// wait for. What the port sends may outlast what it takes.
func (s sending) Close() error { return s.c.CloseWrite() }

var _ net.Conn = (*conn)(nil)
