// Package boot is the agent's program: it turns the process into the sandbox
// it was told to be and serves until its owner leaves or its deadline passes.
package boot

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/agent"
	"github.com/glovebox-dev/glovebox/internal/agent/files"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

// Argv0 is the name by which a process knows that it is an agent.
const Argv0 = "glovebox-agent:sandbox"

// Wanted tells whether this process was started as an agent. A container
// runtime chooses the program's name by itself, so there the name is its first
// argument.
func Wanted() bool {
	return len(os.Args) > 0 && os.Args[0] == Argv0 || contained() != ""
}

// contained is how the agent reaches its launcher, in contained mode; "" in all
// others.
func contained() string {
	if len(os.Args) == 3 && os.Args[1] == Argv0 {
		return os.Args[2]
	}
	return ""
}

// Main runs the agent and returns its exit status. It is the first thing a
// program does.
func Main() int {
	if err := run(); err != nil {
		// Descriptor 2 goes to the launcher alone.
		fmt.Fprintf(os.Stderr, "agent: %v\n", err)
		return 1
	}
	return 0
}

func run() error {
	// A change of the main thread's file ids would clear its death signal, so
	// nothing else may run there (package asuser).
	runtime.LockOSThread()
	// E2B's files and directories have the modes of this mask.
	unix.Umask(0o022)
	// An agent lives in a small reserve; what its start leaves behind is not
	// worth a collection in the middle of it.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(48 << 20)
	link, cfg, err := connect()
	if err != nil {
		return err
	}
	err = serveSandbox(link, cfg)
	if err != nil {
		link.fail(err)
	}
	return err
}

// serveSandbox turns the process into the sandbox cfg describes and serves.
func serveSandbox(link link, cfg *launch.Config) error {
	go agent.Warm()
	sb, err := launch.Setup(cfg)
	if err != nil {
		return err
	}
	ignoreSignals()
	if cfg.ReadyFD > 0 {
		go awaitReady(cfg.ReadyFD)
	}
	srv, fs, err := newServer(cfg, sb)
	if err != nil {
		return err
	}
	if cfg.MemoryWatch > 0 {
		go watchMemory(cfg.MemoryWatch, srv)
	}
	if cfg.DeadlineNS > 0 {
		if err := srv.SetDeadline(time.Duration(cfg.DeadlineNS)); err != nil {
			return err
		}
	}
	if err := link.hello(measure(sb)); err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	debug.SetGCPercent(50) // from here on it should stay small
	err = link.serve(srv)
	// What still runs is killed here where no pid namespace does it.
	if cfg.Mode == launch.ModeRestricted || cfg.Mode == launch.ModePlain {
		endAll(srv)
	}
	_ = fs.Close()
	return err
}

// endAll kills everything below this process. A request that is still being
// answered may start one more: none can once the server is closed. That takes
// long when a process cannot die, and the owner may be waiting for this one to
// end, so it is not waited for without a limit.
func endAll(srv *agent.Server) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = srv.Close()
	}()
	killDescendants()
	t := time.NewTimer(lastWords)
	defer t.Stop()
	select {
	case <-closed:
	case <-t.C:
	}
	killDescendants()
}

// awaitReady ends the agent, and so its pid namespace, when its creator does
// before it has said that the sandbox is made.
func awaitReady(fd int) {
	var b [1]byte
	for {
		n, err := unix.Read(fd, b[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case n != 1:
			os.Exit(1)
		}
		unix.Close(fd) //nolint:errcheck // nothing to do about it
		return
	}
}

// ignoreSignals keeps the agent alive whatever it is sent that can be caught:
// it ends with its connection, its deadline or SIGKILL.
func ignoreSignals() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1,
		syscall.SIGUSR2, syscall.SIGPIPE, syscall.SIGALRM, syscall.SIGXFSZ, syscall.SIGXCPU, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU)
}

func newServer(cfg *launch.Config, sb *launch.Sandbox) (*agent.Server, *files.Service, error) {
	var srv *agent.Server
	opts := agent.Options{
		Reaper: sb.Reaper, Confine: sb.Confine, Env: cfg.Env, Hello: hello(cfg, sb), Token: cfg.Token,
		Scratch: cfg.Root.Home, SignalResize: sb.Sentry, Totals: agent.Totals{CPUs: cfg.LimitCPUs, Memory: cfg.LimitMemory},
		Heartbeat:  cfg.Heartbeat,
		OnDeadline: func() { atDeadline(cfg, srv) },
	}
	own := !cfg.SeparateIDs()
	if own {
		opts.OnlyUser = &agent.Account{Name: "user", UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Home: cfg.Root.Home}
	}
	if cfg.GroupFD != 0 {
		opts.Groups = newGroups(cfg.GroupFD)
	}
	way, err := newEgress(cfg, sb, &opts)
	if err != nil {
		return nil, nil, err
	}
	if srv, err = agent.New(opts); err != nil {
		return nil, nil, err
	}
	mountEgress(srv, way)
	fs := files.New(files.Options{
		Lookup: func(name string) (files.Account, error) {
			a, err := srv.Account(name)
			if err != nil {
				return files.Account{}, fmt.Errorf("user: unknown user %s", name)
			}
			return files.Account{Name: a.Name, UID: a.UID, GID: a.GID, Groups: a.Groups, Home: a.Home}, nil
		},
		OwnUID: own, OwnerName: srv.UserName, GroupName: srv.GroupName, Workdir: srv.DefaultDir,
	})
	mux := lazyMux(fs)
	srv.Mount("/filesystem.Filesystem/", mux, false)
	srv.Mount("/files/compose", mux, false)
	srv.Mount("/files", signed(srv, mux), true)
	return srv, fs, nil
}

// lastWords is how long the ends of commands may take to reach their owner when
// the sandbox's time is up.
const lastWords = 500 * time.Millisecond

// atDeadline ends the sandbox, whose commands were killed, and the program.
func atDeadline(cfg *launch.Config, srv *agent.Server) {
	if cfg.Mode == launch.ModeRestricted || cfg.Mode == launch.ModePlain {
		killDescendants()
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastWords) //nolint:forbidigo // the program's own
	defer cancel()
	srv.Drain(ctx) //nolint:errcheck // what was not delivered is lost with the sandbox
	if cfg.Mode == launch.ModeRestricted || cfg.Mode == launch.ModePlain {
		endAll(srv)
	}
	os.Exit(0)
}

// lazyMux serves files once somebody asks for one.
func lazyMux(fs *files.Service) http.Handler {
	get := sync.OnceValue(func() http.Handler {
		mux := http.NewServeMux()
		fs.Mount(mux)
		return mux
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { get().ServeHTTP(w, r) })
}

// signed lets a request for /files pass with the access token or a signature.
func signed(srv *agent.Server, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := srv.AuthorizeFiles(r, files.VerifySignature); err != nil {
			agent.WriteError(w, http.StatusUnauthorized, err.Error())
			return
		}
		next.ServeHTTP(w, r)
	})
}

// measure is what the agent finds of its own confinement.
func measure(sb *launch.Sandbox) launch.Hello {
	nnp, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	return launch.Hello{
		PID: os.Getpid(), LandlockABI: sb.LandlockABI, Seccomp: sb.Seccomp, NoNewPrivs: nnp == 1,
		Kernel: kernelName(), Sentry: sb.Sentry,
	}
}

// hello is the same for callers that come later, and more.
func hello(cfg *launch.Config, sb *launch.Sandbox) *gloveboxv1.HelloResponse {
	m := measure(sb)
	h := &gloveboxv1.HelloResponse{
		AgentPid: int32(m.PID), AgentUid: uint32(os.Geteuid()), LandlockAbi: int32(m.LandlockABI), Seccomp: m.Seccomp,
		NoNewPrivs: m.NoNewPrivs, OwnPidNamespace: m.PID == 1, CommandCgroups: cfg.GroupFD != 0,
		Kernel: m.Kernel,
	}
	if !cfg.SeparateIDs() {
		h.OnlyUids = []uint32{uint32(os.Geteuid())}
	}
	return h
}

// kernelName is what the kernel calls itself.
func kernelName() string {
	var u unix.Utsname
	unix.Uname(&u) //nolint:errcheck // cannot fail on a valid buffer
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Version[:])
}
