//go:build linux

package egress

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

var (
	errNoHost = errors.New("egress: nobody decides on connections")
	errEnded  = errors.New("egress: the host has ended")
)

// offer is something for the host to take.
type offer struct {
	kind, name, addr string
	// serve has the stream until it returns.
	serve func(*wire.NetStream)
	done  chan struct{} // closed after serve
}

// hand gives o to the host and waits until it is served.
func (s *Service) hand(o *offer, wait time.Duration) error {
	o.done = make(chan struct{})
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case s.offers <- o:
		<-o.done
		return nil
	case <-t.C:
		return errNoHost
	case <-s.ctx.Done():
		return errEnded
	}
}

// serveAccept waits for something that the host should take.
func (s *Service) serveAccept(w http.ResponseWriter, r *http.Request) {
	own := s.owned(r.Header.Get(wire.HeaderNetSession))
	if own == nil {
		http.Error(w, "accept: another session decides", http.StatusConflict)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(own, cancel)() //nolint:contextcheck // the owner's end is every request's
	select {
	case o := <-s.offers:
		defer close(o.done)
		s.join(o, w, r.WithContext(ctx))
	case <-ctx.Done():
		http.Error(w, "accept: another session decides, or the sandbox is ending", http.StatusConflict)
	}
}

func (s *Service) join(o *offer, w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex() // HTTP/2 is already and says so with an error
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set(wire.HeaderNetKind, o.kind)
	if o.name != "" {
		h.Set(wire.HeaderNetName, o.name)
	}
	if o.addr != "" {
		h.Set(wire.HeaderNetAddr, o.addr)
	}
	w.WriteHeader(http.StatusOK)
	if rc.Flush() != nil {
		return
	}
	stream := wire.NewNetStream(r.Body, flushing{w, rc}, nil, func() { _ = r.Body.Close() })
	stop := context.AfterFunc(r.Context(), func() { _ = stream.Close() })
	o.serve(stream)
	stop()
	_ = stream.Close()
	stream.Wait()
}

// flushing sends what it is given at once.
type flushing struct {
	w  io.Writer
	rc *http.ResponseController
}

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		err = f.rc.Flush()
	}
	return n, err
}

// accept serves l's connections until it is closed.
func (s *Service) accept(l net.Listener, serve func(*net.TCPConn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || s.ctx.Err() != nil {
				return
			}
			// Out of descriptors, or a connection that has gone again.
			select {
			case <-time.After(retryAccept):
				continue
			case <-s.ctx.Done():
				return
			}
		}
		tcp, ok := c.(*net.TCPConn)
		if !ok || s.conns.Add(1) > maxConns {
			if ok {
				s.conns.Add(-1)
			}
			_ = c.Close()
			continue
		}
		s.wg.Go(func() {
			defer s.conns.Add(-1)
			defer tcp.Close() //nolint:errcheck // nobody is left to tell
			defer context.AfterFunc(s.ctx, func() { _ = tcp.Close() })()
			serve(tcp)
		})
	}
}

// serveProxy hands a connection to the proxy's port over once it has said
// something, so that those that never do cost the host nothing.
func (s *Service) serveProxy(c *net.TCPConn) {
	br := bufio.NewReaderSize(c, 512)
	_ = c.SetReadDeadline(time.Now().Add(firstByte))
	first, err := br.Peek(1)
	if err != nil {
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	err = s.hand(&offer{kind: wire.NetProxy, serve: func(st *wire.NetStream) { relay(c, br, st) }}, acceptWait)
	if err != nil && first[0] != 5 {
		const text = "glovebox: the sandbox's network is closed: nobody decides on its connections.\n"
		_, _ = io.WriteString(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"+text)
	}
}

// serveNamed hands over a connection to an address that stands for a name.
func (s *Service) serveNamed(n *name, c *net.TCPConn) {
	addr := c.LocalAddr().String()
	_ = s.hand(&offer{
		kind: wire.NetNamed, name: n.text, addr: addr,
		serve: func(st *wire.NetStream) { relay(c, c, st) },
	}, acceptWait)
}

// relay joins a program's connection, read through from, to a stream until both
// have ended or the host has left.
func relay(c *net.TCPConn, from io.Reader, st *wire.NetStream) {
	var wg sync.WaitGroup
	received, sent := make(chan struct{}), make(chan struct{})
	wg.Go(func() {
		defer close(sent)
		if _, err := io.Copy(onlyWriter{st}, from); err == nil {
			_ = st.CloseWrite()
			return
		}
		// The host takes no more. What it said must not be lost to a reset,
		// which unread bytes would cause.
		_, _ = io.Copy(io.Discard, c)
		_ = st.Close()
	})
	wg.Go(func() {
		defer close(received)
		if _, err := io.Copy(onlyWriter{c}, onlyReader{st}); err != nil {
			// A broken stream must not look like a complete one.
			_ = c.SetLinger(0)
			_ = c.Close()
			_ = st.Close()
			return
		}
		_ = c.CloseWrite()
	})
	wg.Go(func() {
		st.Wait() // the host says nothing more, and takes nothing
		<-received
		_ = c.SetReadDeadline(time.Now().Add(lingering))
	})
	<-received
	<-sent
	_ = st.Close()
	wg.Wait()
}

// The copies keep to their buffers.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)
