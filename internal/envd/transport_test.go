package envd_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
)

func TestTransport_dialsOnce(t *testing.T) {
	t.Parallel()
	f := &fake{}
	c := f.serve(t, nil, envd.Options{})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := c.Hello(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := f.dials.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

func TestTransport_redialsABrokenConnection(t *testing.T) {
	t.Parallel()
	f := &fake{}
	c := f.serve(t, nil, envd.Options{})
	for i := range 6 {
		_, err := c.Hello(t.Context())
		for n := 0; err != nil; n++ {
			// The break is noticed in the background; a call that meets it first
			// is lost, and the next one must get through.
			if k := backend.KindOf(err); i == 0 || n > 1 || k != backend.ErrLost && k != backend.ErrUnavailable {
				t.Fatalf("call %d after break %d: %v", n, i, err)
			}
			_, err = c.Hello(t.Context())
		}
		_ = (<-f.conns).Close()
	}
}

func TestTransport_failedDialIsUnavailable(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	c := envd.New(envd.NewTransport(func(context.Context) (net.Conn, error) { return nil, refused }), envd.Options{})
	t.Cleanup(func() { _ = c.Close() })
	_, err := c.Hello(t.Context())
	if backend.KindOf(err) != backend.ErrUnavailable || !errors.Is(err, refused) {
		t.Errorf("%v", err)
	}
	if _, err := c.Start(t.Context(), backend.Command{Args: []string{"x"}}); backend.KindOf(err) != backend.ErrUnavailable {
		t.Errorf("%v", err)
	}
	err = c.Files().Write(t.Context(), "x", nil, 0)
	if backend.KindOf(err) != backend.ErrUnavailable {
		t.Errorf("%v", err)
	}
}

func TestTransport_silentPeerIsBoundedByContext(t *testing.T) { //nolint:paralleltest // looks at all goroutines
	noLeaks(t)
	c := envd.New(envd.NewTransport(func(context.Context) (net.Conn, error) {
		near, far := net.Pipe() // nobody reads far
		t.Cleanup(func() { _ = far.Close() })
		return near, nil
	}), envd.Options{})
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := c.Hello(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || backend.KindOf(err) != "" {
			t.Errorf("%v", err)
		}
	}
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Close hangs")
	}
}

func TestControl(t *testing.T) {
	t.Parallel()
	var armed time.Duration
	f := &fake{box: box{
		measure: func() (*gloveboxv1.Usage, error) { return &gloveboxv1.Usage{MemoryBytes: 3, CpuNs: 4}, nil },
		deadline: func(d time.Duration) error {
			armed = d
			return nil
		},
	}}
	c := f.serve(t, nil, envd.Options{})
	if h, err := c.Hello(t.Context()); err != nil || h.GetVersion() != "test" {
		t.Errorf("%v, %v", h, err)
	}
	if u, err := c.Usage(t.Context()); err != nil || u.Memory != 3 || u.CPU != 4 {
		t.Errorf("%v, %v", u, err)
	}
	if err := c.SetDeadline(t.Context(), time.Minute); err != nil || armed != time.Minute {
		t.Errorf("%v, %v", armed, err)
	}
	if err := c.SetDeadline(t.Context(), -1); backend.KindOf(err) != backend.ErrInvalid {
		t.Errorf("%v", err)
	}
}

// stuck is a connection whose peer stops reading.
type stuck struct {
	net.Conn
	on     atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (s *stuck) Write(p []byte) (int, error) {
	if s.on.Load() {
		<-s.closed
		return 0, net.ErrClosed
	}
	return s.Conn.Write(p)
}

func (s *stuck) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Conn.Close()
}

func TestTransport_peerThatStopsReading(t *testing.T) { //nolint:paralleltest // looks at all goroutines
	noLeaks(t)
	f := &fake{}
	f.serve(t, nil, envd.Options{})
	var conn *stuck
	c := envd.New(envd.NewTransport(func(context.Context) (net.Conn, error) {
		raw, err := net.Dial("tcp", f.addr)
		conn = &stuck{Conn: raw, closed: make(chan struct{})}
		return conn, err
	}), envd.Options{})
	if _, err := c.Hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn.on.Store(true)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := c.Hello(ctx)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestTransport_aRequestThatGivesUpLosesNoConnection(t *testing.T) {
	t.Parallel()
	f := &fake{}
	f.serve(t, nil, envd.Options{})
	entered, goOn := make(chan struct{}), make(chan struct{})
	var dials atomic.Int64
	c := envd.New(envd.NewTransport(func(ctx context.Context) (net.Conn, error) {
		if dials.Add(1) > 1 {
			return nil, errors.New("it was to be had once")
		}
		close(entered)
		<-goOn
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return net.Dial("tcp", f.addr)
	}), envd.Options{})
	t.Cleanup(func() { _ = c.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-entered
		cancel()
	}()
	if _, err := c.Hello(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	close(goOn)
	if _, err := c.Hello(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := c.Hello(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := c.Hello(t.Context()); err != nil {
		t.Error(err)
	}
}
