package boot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/internal/agent"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

// seam is a byte stream on which a copy of this process that wakes up elsewhere
// finds another owner (wire.Seam). The original notices nothing: what it reads
// and writes goes on.
type seam struct {
	conn net.Conn

	mu   sync.Mutex
	keys wire.Seam // zero until it is told
}

func newSeam(c net.Conn) *seam { return &seam{conn: c} }

// serve answers until the peer leaves, one owner after the other. hello says
// what the launcher was told.
func (s *seam) serve(srv *agent.Server, hello func() error) error {
	srv.Mount(wire.SeamPath, http.HandlerFunc(s.tell), false)
	for {
		e := &epoch{s: s}
		err := srv.ServeConn(context.Background(), e) //nolint:forbidigo // the program's own
		if !e.over.Load() {
			return err
		}
		if err := s.renew(srv, e); err != nil {
			return fmt.Errorf("renewal: %w", err)
		}
		if err := hello(); err != nil {
			return err
		}
	}
}

// maxTold bounds the body of a request to SeamPath.
const maxTold = 4 << 10

// tell takes the secrets of the next snapshot.
func (s *seam) tell(w http.ResponseWriter, r *http.Request) {
	var keys wire.Seam
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxTold)).Decode(&keys)
	if err != nil || r.Method != http.MethodPost || !keys.Valid() {
		agent.WriteError(w, http.StatusBadRequest, "seam: two secrets are needed")
		return
	}
	s.mu.Lock()
	s.keys = keys
	s.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

// taken tells whether another owner's stream begins in p, and what of p comes
// after its secret.
func (s *seam) taken(p []byte) (rest []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys.Take == "" {
		return nil, false
	}
	_, rest, ok = bytes.Cut(p, []byte(s.keys.Take+"\n"))
	return rest, ok
}

// renew answers a new owner and becomes what it wants.
func (s *seam) renew(srv *agent.Server, e *epoch) error {
	s.mu.Lock()
	answer := s.keys.Answer
	s.keys = wire.Seam{}
	s.mu.Unlock()
	// Security: what was being written ends within, so the answer stands on a
	// line of its own.
	if _, err := s.conn.Write([]byte("\n" + answer + "\n")); err != nil {
		return err
	}
	s.conn.SetReadDeadline(time.Now().Add(greetTimeout)) //nolint:errcheck // at worst it waits for longer
	line, rest, err := launch.ReadLine(io.MultiReader(bytes.NewReader(e.rest), s.conn))
	s.conn.SetReadDeadline(time.Time{}) //nolint:errcheck // the same
	if err == nil && len(rest) > 0 {
		err = errors.New("the launcher did not wait")
	}
	if err != nil {
		return err
	}
	var r launch.Renewal
	if err := json.Unmarshal(line, &r); err != nil {
		return err
	}
	if r.Protocol != launch.Protocol {
		return fmt.Errorf("protocol %d, not %d", launch.Protocol, r.Protocol)
	}
	return srv.Renew(agent.Renewal{
		Token: r.Token, Env: r.Env, Deadline: time.Duration(r.DeadlineNS),
		Totals: agent.Totals{CPUs: r.LimitCPUs, Memory: r.LimitMemory},
	})
}

// readSize is how much is read at once. gVisor's kernel keeps what was in the
// former pipe and gives it out together with the first bytes of the new one:
// both fit, so that the secret always comes in one piece.
const readSize = 192 << 10

// epoch is the stream of one owner.
type epoch struct {
	s    *seam
	over atomic.Bool // another owner has taken it
	rest []byte      // what that has sent; set before over

	buf     []byte // read, not yet asked for
	scratch []byte
	writing sync.Mutex
}

// Read implements net.Conn. It is called by one goroutine at a time.
func (e *epoch) Read(p []byte) (int, error) {
	if e.over.Load() {
		return 0, io.EOF
	}
	if len(e.buf) > 0 {
		n := copy(p, e.buf)
		e.buf = e.buf[n:]
		return n, nil
	}
	if e.scratch == nil {
		e.scratch = make([]byte, readSize)
	}
	n, err := e.s.conn.Read(e.scratch)
	if rest, ok := e.s.taken(e.scratch[:n]); ok {
		e.end(rest)
		return 0, io.EOF
	}
	e.buf = e.scratch[:n]
	n = copy(p, e.buf)
	e.buf = e.buf[n:]
	if n > 0 {
		err = nil // it comes again
	}
	return n, err
}

// end ends what the former owner's connection still writes, and returns when
// nothing of it can come any more.
func (e *epoch) end(rest []byte) {
	e.rest = bytes.Clone(rest)
	e.over.Store(true)
	e.s.conn.SetWriteDeadline(time.Unix(1, 0)) //nolint:errcheck // a stuck one would be seen by the launcher
	e.writing.Lock()
	defer e.writing.Unlock()
	e.s.conn.SetDeadline(time.Time{}) //nolint:errcheck // the same
}

// Write implements net.Conn.
func (e *epoch) Write(p []byte) (int, error) {
	e.writing.Lock()
	defer e.writing.Unlock()
	if e.over.Load() {
		return 0, net.ErrClosed
	}
	return e.s.conn.Write(p)
}

// Close implements net.Conn. A stream that another has taken stays open.
func (e *epoch) Close() error {
	if e.over.Load() {
		return nil
	}
	return e.s.conn.Close()
}

// LocalAddr implements net.Conn.
func (e *epoch) LocalAddr() net.Addr { return e.s.conn.LocalAddr() }

// RemoteAddr implements net.Conn.
func (e *epoch) RemoteAddr() net.Addr { return e.s.conn.RemoteAddr() }

// SetDeadline implements net.Conn.
func (e *epoch) SetDeadline(t time.Time) error {
	return errors.Join(e.SetReadDeadline(t), e.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (e *epoch) SetReadDeadline(t time.Time) error {
	if e.over.Load() {
		return nil
	}
	return e.s.conn.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (e *epoch) SetWriteDeadline(t time.Time) error {
	if e.over.Load() {
		return nil
	}
	return e.s.conn.SetWriteDeadline(t)
}

var _ net.Conn = (*epoch)(nil)
