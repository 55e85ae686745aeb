//go:build linux

package docker_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/docker"
)

// fault is what a stand-in does to a call.
type fault int

const (
	hang   fault = iota // it is taken and never answered, nor done
	lose                // it is done, and never answered
	cut                 // it is done, and the connection ends
	refuse              // it is refused
	stop                // the daemon hangs from then on
	gone                // the daemon has gone from then on
)

// standIn is a daemon in front of the real one that has faults.
type standIn struct {
	path string

	mu     sync.Mutex
	call   *regexp.Regexp // nil: none
	fault  fault
	met    bool
	then   func() // runs before a call that has no other fault, once
	server *http.Server
	healed chan struct{}
}

func newStandIn(t *testing.T) *standIn {
	t.Helper()
	d := &standIn{path: filepath.Join(t.TempDir(), "d.sock"), healed: make(chan struct{})}
	d.listen(t)
	t.Cleanup(func() {
		d.heal(t)
		d.server.Close()
	})
	return d
}

func (d *standIn) listen(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", d.path)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: "engine"}) },
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", socket)
		}},
	}
	d.server = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { d.serve(proxy, w, r) })}
	go func() { _ = d.server.Serve(l) }()
}

// on lets calls have a fault; they are matched as "METHOD path".
func (d *standIn) on(call string, f fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.call, d.fault, d.met = regexp.MustCompile(call), f, false
}

// meanwhile runs f before a call is done.
func (d *standIn) meanwhile(call string, f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.call, d.then, d.met = regexp.MustCompile(call), f, false
}

// heal takes the fault away.
func (d *standIn) heal(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.fault
	met := d.met
	d.call, d.met, d.then = nil, false, nil
	close(d.healed)
	d.healed = make(chan struct{})
	if was == gone && met {
		d.fault = hang
		d.listen(t)
	}
}

func (d *standIn) serve(proxy http.Handler, w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	hit := d.call != nil && d.call.MatchString(r.Method+" "+r.URL.Path) || d.met && d.fault >= stop
	d.met = d.met || hit
	f, healed, server := d.fault, d.healed, d.server
	then := d.then
	if hit && then != nil {
		hit, d.then, d.call = false, nil, nil
	} else {
		then = nil
	}
	d.mu.Unlock()
	if then != nil {
		then()
	}
	wait := func() {
		select {
		case <-healed:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	}
	switch {
	case !hit:
		proxy.ServeHTTP(w, r)
	case f == refuse:
		http.Error(w, `{"message":"layer not found"}`, http.StatusNotFound)
	case f == gone:
		_ = os.Remove(d.path)
		go server.Close()
		panic(http.ErrAbortHandler)
	case f == lose:
		proxy.ServeHTTP(nowhere{http.Header{}}, r.WithContext(context.WithoutCancel(r.Context())))
		wait()
	case f == cut:
		proxy.ServeHTTP(nowhere{http.Header{}}, r.WithContext(context.WithoutCancel(r.Context())))
		panic(http.ErrAbortHandler)
	default:
		wait()
	}
}

// nowhere is where a lost answer goes.
type nowhere struct{ h http.Header }

func (n nowhere) Header() http.Header         { return n.h }
func (n nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (n nowhere) WriteHeader(int)             {}

// A daemon that fails at any call of a creation: the error is classified in
// time, and nothing is left once the daemon works.
func TestCreate_daemonFails(t *testing.T) {
	calls := map[string]string{
		"info": "GET .*/info$", "image": "GET .*/images/.*/json", "create": "POST .*/containers/create", "start": "POST .*/start$",
	}
	faults := map[string]fault{"hang": hang, "lose": lose, "cut": cut, "stop": stop, "gone": gone}
	for call, pattern := range calls {
		for how, fault := range faults {
			t.Run(call+" "+how, func(t *testing.T) {
				t.Parallel()
				d := newStandIn(t)
				f := setUp(t, func(c *docker.Config) { c.Host = "unix://" + d.path })
				d.on(pattern, fault)
				const patience = 6 * time.Second
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				began := time.Now()
				sb, err := f.ex.Create(ctx, backend.Spec{})
				took := time.Since(began)
				f.containers(t.Context())
				d.mu.Lock()
				met := d.met
				d.mu.Unlock()
				d.heal(t)
				if err == nil {
					if fault == cut && call == "start" {
						t.Errorf("inconclusive: the fault was not met: %v", met)
					}
					t.Fatalf("a sandbox was made: %s", sb.ID())
				}
				if !met {
					t.Error("inconclusive: the fault was not met")
				}
				kind := backend.KindOf(err)
				if !errors.Is(err, context.DeadlineExceeded) && kind != backend.ErrUnavailable {
					t.Errorf("it is %q: %v", kind, err)
				}
				// What was made is undone before the error is told, and the daemon
				// has its time for that too.
				if took > patience+25*time.Second {
					t.Errorf("it took %v", took)
				}
				if strings.Contains(err.Error(), f.cfg.StateDir) {
					t.Errorf("the error has a path of the host: %v", err)
				}
			})
		}
	}
}

// A daemon that hangs or goes while a sandbox lives changes nothing about it;
// its end is told to be incomplete, and is completed later.
func TestDestroy_daemonFails(t *testing.T) {
	for how, fault := range map[string]fault{"hangs": stop, "is gone": gone} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			d := newStandIn(t)
			f := setUp(t, func(c *docker.Config) { c.Host = "unix://" + d.path })
			sb := f.create(backend.Spec{})
			id := f.container(sb.ID()).ID
			d.on(".", fault)
			works(t, sb)
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
			defer cancel()
			began := time.Now()
			err := sb.Destroy(ctx)
			if backend.KindOf(err) != backend.ErrUnavailable {
				t.Errorf("destroy: %v", err)
			}
			if took := time.Since(began); took > 25*time.Second {
				t.Errorf("it took %v", took)
			}
			if n := inside(t, id); n > 0 {
				t.Errorf("%d processes live", n)
			}
			d.heal(t)
			if err := f.ex.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
			if list := f.containers(t.Context()); len(list) > 0 {
				t.Errorf("the sweep leaves %v", list)
			}
		})
	}
}

// A kept sandbox that is paused can be ended by another process though the
// daemon hangs.
func TestDestroy_pausedAndDaemonHangs(t *testing.T) {
	d := newStandIn(t)
	f := setUp(t, func(c *docker.Config) { c.Host = "unix://" + d.path })
	h := f.helper("kept-paused")
	st := f.container(h.id)
	if !st.Paused {
		t.Fatalf("inconclusive: it is %s", st.Status)
	}
	finder, _ := backend.As[backend.Finder](f.ex)
	d.on(".", stop)
	sb, err := finder.Find(t.Context(), h.id)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	if err := sb.Destroy(ctx); backend.KindOf(err) != backend.ErrUnavailable {
		t.Errorf("destroy: %v", err)
	}
	if n := inside(t, st.ID); n > 0 {
		t.Errorf("%d processes live", n)
	}
	d.heal(t)
}

// A call of a sandbox whose container and daemon are gone says so.
func TestLost_daemonHangs(t *testing.T) {
	d := newStandIn(t)
	f := setUp(t, func(c *docker.Config) { c.Host = "unix://" + d.path })
	sb := f.create(backend.Spec{})
	p, err := sb.Start(t.Context(), backend.Command{Args: []string{"/bin/sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	d.on(".", stop)
	behind(t, http.MethodPost, "/containers/"+f.name(sb.ID())+"/kill", nil, nil)
	began := time.Now()
	if _, err = p.Wait(t.Context()); backend.KindOf(err) != backend.ErrLost || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("Wait says %v", err)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
	d.heal(t)
}
