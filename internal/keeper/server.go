//go:build linux

package keeper

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

const (
	// maxClients bounds the processes that ask for something at once.
	maxClients = 256
	// messageTimeout bounds a message, and an answer.
	messageTimeout = 10 * time.Second
	// commitTimeout bounds how long a sandbox may take from being held to being
	// made.
	commitTimeout = 2 * time.Minute
)

// server is a keeper. Whoever made it calls run, once.
type server struct {
	dir  string
	idle time.Duration
	log  *slog.Logger

	ctx    context.Context //nolint:containedctx // the server's life
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	held    map[string]*holding
	clients int
	closing bool
	timer   *time.Timer // runs while there is nothing to do
}

func newServer(ctx context.Context, dir string, idle time.Duration, log *slog.Logger) *server {
	s := &server{dir: dir, idle: idle, log: log, held: map[string]*holding{}}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s
}

// run serves on l until there is nothing to hold any more, or the context of
// newServer ends. Then it holds nothing.
func (s *server) run(l net.Listener) error {
	stop := context.AfterFunc(s.ctx, func() {
		s.mu.Lock()
		s.closing = true
		s.mu.Unlock()
		// Nobody finds it from here on, while its lock keeps another from
		// starting: the socket is removed by who has the lock.
		os.Remove(filepath.Join(s.dir, socketFile)) //nolint:errcheck // the next keeper does
		l.Close()                                   //nolint:errcheck // its end is what is wanted
	})
	defer stop()
	s.mu.Lock()
	s.timer = time.AfterFunc(s.idle, s.leave)
	s.mu.Unlock()
	slots := make(chan struct{}, maxClients)
	var err error
	for {
		select {
		case slots <- struct{}{}:
		case <-s.ctx.Done():
		}
		var c net.Conn
		if c, err = (owners{l}).Accept(); err != nil {
			break
		}
		if !s.enter() {
			c.Close() //nolint:errcheck // it asks another one
			break
		}
		s.wg.Go(func() { defer func() { s.exit(); <-slots }(); s.serve(c) })
	}
	if s.ctx.Err() != nil {
		err = nil
	}
	s.cancel()
	s.mu.Lock()
	s.closing = true
	s.timer.Stop()
	s.mu.Unlock()
	s.wg.Wait()
	return err
}

// leave ends an idle keeper.
func (s *server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held) == 0 && s.clients == 0 {
		s.closing = true
		s.cancel()
	}
}

func (s *server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.clients++
	s.timer.Stop()
	return true
}

func (s *server) exit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients--
	s.rest()
}

// rest has the keeper end after a while unless there is something to do. s.mu
// is held.
func (s *server) rest() {
	if len(s.held) == 0 && s.clients == 0 && !s.closing {
		s.timer.Reset(s.idle)
	}
}

// serve answers what one process asks for.
func (s *server) serve(conn net.Conn) {
	defer conn.Close() //nolint:errcheck // the client notices
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return
	}
	defer context.AfterFunc(s.ctx, func() { c.Close() })() //nolint:errcheck // the client notices
	for {
		var r request
		c.SetDeadline(time.Now().Add(messageTimeout)) //nolint:errcheck // a broken one shows at once
		files, err := receive(c, &r)
		if err != nil {
			if backend.KindOf(err) == backend.ErrInvalid {
				send(c, failed(err), nil) //nolint:errcheck // it may have gone
			}
			return
		}
		if r.Op != opHold && len(files) > 0 {
			closeAll(files)
			err = invalid("descriptors that nobody asked for")
		}
		var a answer
		switch {
		case err != nil:
			a = failed(err)
		case r.Protocol != protocol:
			closeAll(files)
			a = failed(&backend.Error{
				Op: "keeper", Kind: backend.ErrConflict, Err: errors.New("the keeper is of another build"),
				Fix: "end the sandboxes that the other one made, or give this one a state directory of its own",
			})
		case r.Op == opHold:
			s.hold(c, &r, files)
			return
		default:
			a = s.answer(&r)
		}
		c.SetDeadline(time.Now().Add(messageTimeout)) //nolint:errcheck // as above
		if send(c, a, nil) != nil {
			return
		}
	}
}

// answer does what needs no descriptors.
func (s *server) answer(r *request) answer {
	switch r.Op {
	case opHolds:
		s.mu.Lock()
		ho := s.held[r.ID]
		s.mu.Unlock()
		return answer{Held: ho != nil && ho.ctx.Err() == nil}
	case opRelease:
		s.release(r.ID)
		return answer{}
	case opNetwork:
		if r.Held == nil {
			return failed(invalid("no rules"))
		}
		s.mu.Lock()
		ho := s.held[r.Held.ID]
		s.mu.Unlock()
		if ho == nil {
			return failed(&backend.Error{Op: "network", Kind: backend.ErrNotFound, Err: errors.New("the sandbox is not held")})
		}
		if err := ho.setNetwork(r.Held); err != nil {
			return failed(err)
		}
		return answer{}
	default:
		return failed(invalid("the operation %.40q", r.Op))
	}
}

// release ends what is held for a sandbox and waits for that.
func (s *server) release(id string) {
	s.mu.Lock()
	ho := s.held[id]
	s.mu.Unlock()
	if ho == nil {
		return
	}
	ho.end()
	<-ho.ended
}

// hold holds a sandbox, which counts once its creator commits it and is let go
// when that goes before.
func (s *server) hold(c *net.UnixConn, r *request, files []*os.File) {
	ho, err := s.take(r.Held, files)
	if err != nil {
		send(c, failed(err), nil) //nolint:errcheck // it may have gone
		return
	}
	err = send(c, answer{}, nil)
	if err == nil {
		c.SetDeadline(time.Now().Add(commitTimeout)) //nolint:errcheck // a broken one shows at once
		var next request
		files, err = receive(c, &next)
		closeAll(files)
		if err == nil && next.Op != opCommit {
			err = invalid("the operation %.40q instead of %q", next.Op, opCommit)
		}
	}
	if err == nil {
		c.SetDeadline(time.Time{}) //nolint:errcheck // the commit has its own
		err = ho.commit()
		c.SetDeadline(time.Now().Add(messageTimeout)) //nolint:errcheck // as above
		a := answer{}
		if err != nil {
			a = failed(err)
		}
		if serr := send(c, a, nil); err == nil {
			err = serr // who made it is not sure of it, and undoes it
		}
	}
	if err != nil {
		s.log.Debug("not held", slog.String("sandbox", ho.id), slog.Any("err", err))
		ho.end()
		<-ho.ended
	}
}

// take makes a holding, which is forgotten when it has ended.
func (s *server) take(h *Held, files []*os.File) (*holding, error) {
	if h == nil {
		closeAll(files)
		return nil, invalid("nothing to hold")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		closeAll(files)
		return nil, &backend.Error{Op: "keeper", Kind: backend.ErrUnavailable, Err: errors.New("the keeper is ending")}
	}
	if s.held[h.ID] != nil {
		closeAll(files)
		return nil, &backend.Error{Op: "keeper", Kind: backend.ErrConflict, Err: errors.New("the sandbox is held already")}
	}
	ho, err := newHolding(s.ctx, s.dir, h, files)
	if err != nil {
		return nil, err
	}
	s.held[h.ID] = ho
	s.wg.Go(func() {
		<-ho.ctx.Done()
		ho.close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.held, h.ID)
		s.rest()
	})
	return ho, nil
}
