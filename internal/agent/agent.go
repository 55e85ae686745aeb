//go:build linux

package agent

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1/gloveboxv1connect"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/process/processconnect"
	"github.com/glovebox-dev/glovebox/internal/launch/spawn"
)

// Options is what a Server is made from. It is not changed after New.
type Options struct {
	Version string
	// DefaultUser is the account of requests that name none; "user" when empty.
	DefaultUser string
	// OnlyUser is the one account of a sandbox whose agent cannot switch users:
	// commands keep the agent's own ids, any other name is refused. Nil reads
	// accounts from PasswdPath and GroupPath.
	OnlyUser *Account
	// PasswdPath and GroupPath default to /etc/passwd and /etc/group. They are
	// read again when they change; at most 1 MiB each.
	PasswdPath, GroupPath string
	// Scratch is a path on the file system that user code fills: how full it is
	// tells what a command ran into, and is /metrics' disk. With "" no command
	// ran into anything, and / is measured.
	Scratch string
	// Token is the access token from the start on, as if /init had set it; ""
	// leaves that to /init.
	Token string
	// Env is the sandbox's own environment. /init's variables come on top of it
	// and never remove it.
	Env map[string]string
	// MoreEnv is asked for the variables of each command, below Env; nil for
	// none.
	MoreEnv func() map[string]string
	// Reaper starts the commands. Required.
	Reaper *spawn.Reaper
	// Confine is what every command is held to; nil for nothing.
	Confine *spawn.Confinement
	// Groups gives every command a group of its own; nil for none, and a kill
	// then reaches the command's session.
	Groups CommandGroups
	// SignalResize: the kernel does not tell a terminal's programs of its new
	// size, as gVisor's, so the agent does.
	SignalResize bool
	// Hello is the answer to Hello; nil for version, pid and uid only.
	Hello *gloveboxv1.HelloResponse
	// Totals are what /metrics gives as the sandbox's size; zero fields are
	// the host's.
	Totals Totals
	// Heartbeat closes connections whose peer has not answered for half a
	// minute.
	Heartbeat bool
	// OnDeadline is called once, when the sandbox's deadline has passed and
	// its commands were killed. It may call Close.
	OnDeadline func()
}

// Totals are the sandbox's own limits, for /metrics.
type Totals struct {
	CPUs   float64
	Memory int64 // bytes
}

// CommandGroups makes a group (a cgroup) for each command. It is safe for
// concurrent use.
type CommandGroups interface {
	// New makes an empty group; id names no other command of the sandbox. An
	// error fails the command.
	New(id string) (Group, error)
}

// Group is what a command and all its descendants are counted in. Its methods
// are safe for concurrent use and work after Close too.
type Group interface {
	// Cgroup is the descriptor of the v2 directory the child is born in; 0 for
	// none. It stays open until Close.
	Cgroup() int
	// Kill ends every process of the group.
	Kill() error
	// CPU is the time used by all that were ever in it.
	CPU() (time.Duration, error)
	// Close lets the group be removed once it is empty.
	Close() error
}

// Server is the agent. Its methods are safe for concurrent use.
type Server struct {
	opts     Options
	accounts *accounts
	mux      *http.ServeMux
	http     *http.Server
	table    table
	chunks   sync.Pool
	drains   atomic.Int64
	dials    atomic.Int64
	pending  atomic.Int64
	metrics  sampler
	scratch  scratch

	ctx    context.Context //nolint:containedctx // the server's life
	cancel context.CancelFunc
	wg     sync.WaitGroup // requests, and what commands run in the background

	mu       sync.Mutex
	closed   bool
	expired  bool
	deadline *time.Timer
	once     sync.Once // OnDeadline
	init     settings
	renewed  *Renewal // never nil; see Renew
	selfAuth map[string]bool

	swept       time.Time // the last KillAll
	sweepReason gloveboxv1.End_Reason
}

// New makes a server that has started nothing. The caller closes it.
func New(o Options) (*Server, error) {
	if o.Reaper == nil {
		return nil, errors.New("agent: Options.Reaper is required")
	}
	if o.DefaultUser == "" {
		o.DefaultUser = "user"
	}
	if o.OnlyUser != nil {
		o.DefaultUser = o.OnlyUser.Name
	}
	if o.PasswdPath == "" {
		o.PasswdPath = "/etc/passwd"
	}
	if o.GroupPath == "" {
		o.GroupPath = "/etc/group"
	}
	s := &Server{
		opts:     o,
		accounts: &accounts{passwd: o.PasswdPath, group: o.GroupPath, only: o.OnlyUser, self: uint32(os.Geteuid())},
		mux:      http.NewServeMux(),
		selfAuth: map[string]bool{"/health": true, "/init": true},
		init:     settings{token: o.Token},
		renewed:  &Renewal{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // the server's own life
	s.http = newHTTPServer(s)
	opts := []connect.HandlerOption{
		// Compression would cost more than it saves on a local stream.
		connect.WithCompression("gzip", nil, nil),
		connect.WithReadMaxBytes(maxMessage),
	}
	// Made at their first request: an agent's start is part of every command's.
	s.mux.Handle("/"+processconnect.ProcessName+"/", lazy(func() (string, http.Handler) {
		return processconnect.NewProcessHandler(&processService{s: s}, opts...)
	}))
	s.mux.Handle("/"+gloveboxv1connect.SandboxName+"/", lazy(func() (string, http.Handler) {
		return gloveboxv1connect.NewSandboxHandler(&sandboxService{s: s}, opts...)
	}))
	s.mux.HandleFunc("GET /health", s.health)
	s.mux.HandleFunc("GET /metrics", s.serveMetrics)
	s.mux.HandleFunc("GET /envs", s.serveEnvs)
	s.mux.HandleFunc("POST /init", s.serveInit)
	s.mux.HandleFunc("POST "+wire.DialPath, s.serveDial)
	return s, nil
}

// lazy is a handler that is made when it is first needed.
func lazy(make func() (string, http.Handler)) http.Handler {
	get := sync.OnceValue(func() http.Handler { _, h := make(); return h })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { get().ServeHTTP(w, r) })
}

// Mount serves path (no method, "/x" or "/x/") with h. With selfAuth h decides
// on access itself; otherwise requests need the access token once one is set.
// It must be called before the first request.
func (s *Server) Mount(path string, h http.Handler, selfAuth bool) {
	s.mux.Handle(path, h)
	if selfAuth {
		s.selfAuth[path] = true
	}
}

// Handler is everything the server answers. After Close it answers 503.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(s.serve)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		writeError(w, http.StatusServiceUnavailable, "the sandbox is ending")
		return
	}
	defer s.wg.Done()
	if !s.authorized(r) {
		writeError(w, http.StatusUnauthorized,
			"unauthorized access, please provide a valid access token or method signing if supported")
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)() //nolint:contextcheck // the server's end is every request's
	s.mux.ServeHTTP(w, r.WithContext(ctx))
}

// authorized tells whether r may pass: always before a token is set, and
// always to what decides itself.
func (s *Server) authorized(r *http.Request) bool {
	token := s.AccessToken()
	if token == "" {
		return true
	}
	if s.selfAuth[r.URL.Path] {
		return true
	}
	return equalToken(r.Header.Get(wire.HeaderAccessToken), token)
}

// equalToken compares in a time that depends on the lengths only.
func equalToken(a, b string) bool {
	return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

// enter counts the caller among what Close waits for; false after Close.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.wg.Add(1)
	return true
}

// Account finds the account a request names; "" is the default one. The error
// is the text for the client.
func (s *Server) Account(name string) (Account, error) {
	if name == "" {
		name = s.DefaultUser()
	}
	return s.accounts.lookup(name)
}

// fail makes a Connect error.
func fail(code connect.Code, format string, args ...any) error {
	return connect.NewError(code, fmt.Errorf(format, args...))
}
