//go:build linux

package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const dialTimeout = 5 * time.Second

// serveDial joins the request's body and the answer's to a loopback port. When
// the port's side ends, both do.
func (s *Server) serveDial(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || port == 0 {
		writeError(w, http.StatusBadRequest, "dial: port must be 1 to 65535")
		return
	}
	if s.dials.Add(1) > maxDials {
		s.dials.Add(-1)
		writeError(w, http.StatusTooManyRequests, fmt.Sprintf("dial: %d connections are open already", maxDials))
		return
	}
	defer s.dials.Add(-1)
	conn, err := dialLoopback(r.Context(), uint16(port))
	if err != nil {
		writeError(w, http.StatusBadGateway, fmt.Sprintf("dial: nothing listens on port %d", port))
		return
	}
	rc := http.NewResponseController(w)
	// HTTP/2 is full duplex already and says so with an error.
	_ = rc.EnableFullDuplex()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	_ = rc.Flush()

	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := io.Copy(conn, r.Body); err != nil {
			_ = conn.Close()
			return
		}
		_ = conn.CloseWrite()
	})
	stop := context.AfterFunc(r.Context(), func() { _ = conn.Close() })
	copyFlushing(w, rc, conn)
	stop()
	_ = conn.Close()
	_ = r.Body.Close() // ends the copy from it
	wg.Wait()
}

// dialLoopback tries IPv4, then IPv6.
func dialLoopback(ctx context.Context, port uint16) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var d net.Dialer
	var err error
	for _, host := range []string{"127.0.0.1", "::1"} {
		var c net.Conn
		c, err = d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if tcp, ok := c.(*net.TCPConn); ok {
			return tcp, nil
		}
	}
	return nil, err
}

// copyFlushing sends what it reads at once.
func copyFlushing(w io.Writer, rc *http.ResponseController, r io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return
			}
			if rc.Flush() != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
