//go:build linux

package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/unixsock"
)

// Argv0 is the name by which a process knows that it is a keeper. Its argument
// is the stage.
const Argv0 = "glovebox-keeper"

// A keeper is started by a process that ends at once, so that it is nobody's
// child.
const (
	stageStart = "start"
	stageRun   = "run"
)

// Descriptors of a keeper at its start.
const (
	configFD = 3 // a startConfig as JSON
	readyFD  = 4 // told one of the bytes below
)

const (
	saysReady = 'r'
	saysTaken = 't' // another keeper has the store
)

// maxLog bounds the keeper's log.
const maxLog = 256 << 10

// startConfig is what a keeper is told at its start.
type startConfig struct {
	Dir  string        `json:"dir"` // the store's
	Idle time.Duration `json:"idle"`
}

// Wanted tells whether this process was started as a keeper.
func Wanted() bool { return len(os.Args) == 2 && os.Args[0] == Argv0 }

// Main runs the keeper and returns its exit status. It is the first thing a
// program does.
func Main() int {
	var err error
	switch os.Args[1] {
	case stageStart:
		err = detach()
	case stageRun:
		err = keep()
	default:
		err = fmt.Errorf("unknown stage %q", os.Args[1])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "keeper: %v\n", err)
		return 1
	}
	return 0
}

// detach starts the keeper and leaves it.
func detach() error {
	if err := closeStrays(); err != nil {
		return err
	}
	_, err := os.StartProcess("/proc/self/exe", []string{Argv0, stageRun}, &os.ProcAttr{
		Dir: "/", Env: os.Environ(),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, os.NewFile(configFD, "config"), os.NewFile(readyFD, "ready")},
	})
	if err != nil {
		return err
	}
	// At once: who awaits this end awaits the keeper, which has begun its wait
	// for something to do.
	unix.Exit(0)
	return nil
}

// closeStrays closes what this process inherited by chance: a keeper would hold
// it (a lock, say, of the script that ran us) for as long as it lives.
func closeStrays() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= readyFD {
			continue
		}
		// Those of our own are closed on exec, which inherited ones cannot be.
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd) //nolint:errcheck // nothing to do about it
		}
	}
	return nil
}

// keep is the keeper.
func keep() error {
	unix.CloseOnExec(configFD)
	unix.CloseOnExec(readyFD)
	unix.Umask(0o077)
	// Security: it has secrets, and user code of weak backends may run as this
	// same user.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	config, ready := os.NewFile(configFD, "config"), os.NewFile(readyFD, "ready")
	var cfg startConfig
	err := json.NewDecoder(io.LimitReader(config, 64<<10)).Decode(&cfg)
	config.Close() //nolint:errcheck // read side
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	// A terminal's end and what is sent to its processes is not ours.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM) //nolint:forbidigo // the program's own
	defer stop()
	lock, err := takeLock(cfg.Dir)
	if errors.Is(err, errTaken) {
		_, err = ready.Write([]byte{saysTaken})
		return err
	}
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // it ends with the process
	if err := os.Remove(filepath.Join(cfg.Dir, socketFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := unixsock.Listen(cfg.Dir, socketFile, 0o600)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(&bounded{w: os.Stderr, left: maxLog}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s := newServer(ctx, cfg.Dir, cfg.Idle, log)
	if _, err := ready.Write([]byte{saysReady}); err != nil {
		log.Debug("nobody awaits it", slog.Any("err", err))
	}
	ready.Close() //nolint:errcheck // it was told
	return s.run(l)
}

var errTaken = errors.New("another keeper has this store")

// takeLock has the store for one keeper, as long as the file is open.
func takeLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil {
		return f, nil
	}
	f.Close() //nolint:errcheck // on the way out
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errTaken
	}
	return nil, err
}

// openLog is where a keeper's last words go. What is long is begun anew.
func openLog(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, logFile), os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err == nil && st.Size() > maxLog {
		f.Truncate(0) //nolint:errcheck // it is only long
	}
	return f, nil
}

// bounded drops what is too much.
type bounded struct {
	w    io.Writer
	mu   sync.Mutex
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(p) > b.left {
		return len(p), nil
	}
	b.left -= len(p)
	return b.w.Write(p)
}
