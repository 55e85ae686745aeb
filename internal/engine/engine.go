// Package engine speaks to a Docker engine: containers, images and networks
// for the drivers, with a deadline for every call, and errors of the contract's
// kinds. It looks at the host too, below what the daemon says, since a failed
// start can leave processes that the daemon does not know. It is the only
// package that knows the Docker SDK, and speaks to engines from 20.10 on.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"

	"github.com/glovebox-dev/glovebox/backend"
)

// EnvHost names the environment variable with the engine's address, for those
// who give none.
const EnvHost = client.EnvOverrideHost

// oldestAPI is Docker 20.10's, the first with private cgroup namespaces for
// all and one-shot statistics.
const oldestAPI = "1.41"

// limits are how long calls may take.
type limits struct {
	ping   time.Duration // negotiation, and whether the daemon is alive
	quick  time.Duration // inspect, kill, pause
	normal time.Duration // lists, removal
	long   time.Duration // create, start
	idle   time.Duration // transfers, without any progress
	fresh  time.Duration // how long after an answer the daemon counts as alive
}

// Engine is a Docker engine. Its methods are safe for concurrent use. A call's
// error is the caller's context's when that ended, and otherwise a
// *backend.Error.
type Engine struct {
	api     *client.Client
	host    string
	remote  bool
	refusal error // of every call; nil for none
	limits  limits

	turn chan struct{} // held by who negotiates; a channel, so waiting has a deadline

	mu       sync.Mutex
	version  string // negotiated; "" before
	answered time.Time
}

// Open makes an Engine for the daemon at host, such as
// "unix:///var/run/docker.sock" or "tcp://10.0.0.1:2376"; "" takes DOCKER_HOST,
// then the default socket. It connects to nothing.
func Open(host string) (*Engine, error) { return OpenWith(host, Options{}) }

// OpenWith is Open of an engine that is reached in a way of its own. Where that
// way is not safe, or certificates cannot be read, every call says so.
func OpenWith(host string, o Options) (*Engine, error) {
	host = cmp.Or(host, os.Getenv(EnvHost), client.DefaultDockerHost)
	u, err := client.ParseHostURL(host)
	if err != nil {
		return nil, invalid("open", "host", err)
	}
	if err := checkHost(u); err != nil {
		return nil, invalid("open", "host", err)
	}
	secure, refusal := o.reach(u)
	opts := []client.Opt{client.WithHost(plainScheme(host, u))}
	if u.Scheme != "npipe" {
		dial := dialer()
		// TLS is spoken below the SDK, which for streams would dial by itself.
		opts = append(opts, client.WithDialContext(func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialHost(ctx, dial, u, secure)
		}))
	}
	api, err := client.NewClientWithOpts(opts...)
	if err != nil {
		return nil, invalid("open", "host", err)
	}
	return &Engine{
		api: api, host: host, turn: make(chan struct{}, 1), refusal: refusal,
		remote: o.Elsewhere || u.Scheme != "unix" && u.Scheme != "npipe",
		limits: limits{
			ping: 5 * time.Second, quick: 10 * time.Second, normal: 30 * time.Second, long: time.Minute,
			idle: 5 * time.Minute, fresh: time.Second,
		},
	}, nil
}

// plainScheme is host as the SDK is told it.
func plainScheme(host string, u *url.URL) string {
	if u.Scheme == "https" {
		return "tcp" + strings.TrimPrefix(host, "https")
	}
	return host
}

func checkHost(u *url.URL) error {
	switch u.Scheme {
	case "unix", "tcp", "http", "https", "npipe":
		return nil
	case "ssh":
		return errors.New("an engine behind ssh cannot be used; forward its socket and name that")
	default:
		return fmt.Errorf("the scheme %q is not known; use unix or tcp", u.Scheme)
	}
}

// Host is the engine's address.
func (e *Engine) Host() string { return e.host }

// Close closes idle connections. Streams that Attach and others gave stay open.
func (e *Engine) Close() error { return e.api.Close() }

// socket is the path of the engine's Unix socket, "" when it has none.
func (e *Engine) socket() string {
	path, ok := strings.CutPrefix(e.host, "unix://")
	if !ok {
		return ""
	}
	return path
}

// Ping tells whether the daemon answers.
func (e *Engine) Ping(ctx context.Context) error {
	return e.do(ctx, call{op: "ping", within: e.limits.ping}, func(ctx context.Context) error {
		_, err := e.api.Ping(ctx)
		return err
	})
}

// call describes one call of the daemon.
type call struct {
	op     string
	within time.Duration
	// changes says that the call changes something, so that without an answer
	// nobody knows whether it did.
	changes bool
	// field is what is at fault when something is not found.
	field string
	// fix is advice for when something is not found.
	fix string
}

// do makes one call of the daemon: it has c.within in all, negotiation
// included.
func (e *Engine) do(ctx context.Context, c call, f func(context.Context) error) error {
	inner, cancel := context.WithTimeout(ctx, c.within)
	defer cancel()
	// Security: a call that changes something is sent only to a daemon that has
	// just answered, so that one that hangs is found out with nothing done.
	if err := e.alive(inner, c.changes); err != nil {
		return e.classify(ctx, call{op: c.op}, err)
	}
	err := f(inner)
	if err == nil {
		e.heard()
		return nil
	}
	return e.classify(ctx, c, err)
}

// alive negotiates the version of the API once, and where the daemon has not
// answered lately asks whether it is there.
func (e *Engine) alive(ctx context.Context, recently bool) error {
	if e.refusal != nil {
		return e.refusal
	}
	known := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.version != "" && (!recently || time.Since(e.answered) < e.limits.fresh)
	}
	if known() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.limits.ping)
	defer cancel()
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if known() {
		return nil
	}
	ping, err := e.api.Ping(ctx)
	if err != nil {
		return err
	}
	if versions.LessThan(cmp.Or(ping.APIVersion, "1.24"), oldestAPI) {
		return &backend.Error{
			Kind: backend.ErrUnavailable, Err: fmt.Errorf("the engine's API is %s", oneLine(ping.APIVersion)),
			Fix: "use Docker 20.10 or newer",
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.version == "" {
		e.api.NegotiateAPIVersionPing(ping)
		e.version = e.api.ClientVersion()
	}
	e.answered = time.Now()
	return nil
}

// heard notes that the daemon has just answered.
func (e *Engine) heard() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answered = time.Now()
}
