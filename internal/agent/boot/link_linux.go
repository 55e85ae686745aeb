package boot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/agent"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

// link is how the agent and its launcher reach each other.
type link interface {
	// hello tells the launcher, before any user code exists, what was measured.
	hello(h launch.Hello) error
	// fail tells it why there is no sandbox.
	fail(err error)
	// serve answers until the owner's connection, or the sandbox's time, ends.
	serve(srv *agent.Server) error
}

// connect finds the launcher and what it wants.
func connect() (link, *launch.Config, error) {
	switch contained() {
	case "":
		cfg, err := readConfig()
		return &inherited{cfg}, cfg, err
	case launch.OverSocket:
		// Through the directory's own path: it is short.
		c, err := net.Dial("unix", filepath.Join(launch.ContainedDir, launch.HostSocket)) //nolint:noctx // nobody would end it
		if err != nil {
			return nil, nil, fmt.Errorf("the launcher: %w", err)
		}
		return lineLink(c)
	case launch.OverStdio:
		return lineLink(newStdio())
	default:
		return nil, nil, fmt.Errorf("unknown way to reach the launcher: %q", contained())
	}
}

func check(cfg *launch.Config) error {
	if cfg.Protocol != launch.Protocol {
		return fmt.Errorf("this agent is of another build than its launcher (protocol %d, not %d): build both again", launch.Protocol, cfg.Protocol)
	}
	return nil
}

// inherited is a launcher that passed descriptors.
type inherited struct{ cfg *launch.Config }

func readConfig() (*launch.Config, error) {
	f, err := launch.ReadConfig()
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read side
	var cfg launch.Config
	if err := json.NewDecoder(f).Decode(&cfg); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if err := check(&cfg); err != nil {
		return nil, err
	}
	for _, fd := range append(append([]int{launch.ConnFD, cfg.GroupFD, cfg.ReadyFD}, cfg.JoinFDs...), cfg.HoldFDs...) {
		if fd > 0 {
			unix.CloseOnExec(fd)
		}
	}
	return &cfg, nil
}

// hello goes over the pipe that only the launcher reads. A call would do the
// same and cost more.
func (l *inherited) hello(h launch.Hello) error {
	line, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if _, err := os.Stderr.Write(append(line, '\n')); err != nil {
		return err
	}
	if l.cfg.Listen {
		// The launcher will leave; what is said later goes nowhere.
		return unix.Dup3(0, 2, 0)
	}
	return nil
}

// fail does nothing: Main says it on the same pipe.
func (l *inherited) fail(error) {}

func (l *inherited) serve(srv *agent.Server) error {
	conn := os.NewFile(launch.ConnFD, "connection")
	if l.cfg.Listen {
		ln, err := net.FileListener(conn)
		if err != nil {
			return fmt.Errorf("listener: %w", err)
		}
		conn.Close() //nolint:errcheck // duplicated
		return srv.Serve(ln)
	}
	c, err := net.FileConn(conn)
	if err != nil {
		return fmt.Errorf("connection: %w", err)
	}
	conn.Close()                                  //nolint:errcheck // duplicated
	return srv.ServeConn(context.Background(), c) //nolint:forbidigo // the program's own
}

// lines is a launcher at the other end of a connection, which exchanges lines
// first and then calls.
type lines struct {
	conn net.Conn
	cfg  *launch.Config
	ln   net.Listener // of a kept sandbox
	said launch.Hello
}

// greetTimeout bounds how long a launcher may take to say what it wants.
const greetTimeout = 30 * time.Second

func lineLink(c net.Conn) (link, *launch.Config, error) {
	c.SetReadDeadline(time.Now().Add(greetTimeout)) //nolint:errcheck // at worst it waits for longer
	line, rest, err := launch.ReadLine(c)
	if err == nil && len(rest) > 0 {
		err = errors.New("it did not wait")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("the launcher: %w", err)
	}
	c.SetReadDeadline(time.Time{}) //nolint:errcheck // the same
	l := &lines{conn: c, cfg: &launch.Config{}}
	if err = json.Unmarshal(line, l.cfg); err == nil {
		err = check(l.cfg)
	}
	if err == nil && l.cfg.Mode != launch.ModeContained {
		err = errors.New("the launcher wants another mode")
	}
	if err == nil && l.cfg.Listen {
		// While the agent is still allowed to write there.
		l.ln, err = listen(filepath.Join(launch.ContainedDir, launch.AgentSocket))
	}
	if err != nil {
		l.fail(err)
		return nil, nil, err
	}
	return l, l.cfg, nil
}

// listen binds a socket that whoever reaches its directory can connect to.
func listen(path string) (net.Listener, error) {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false)
	return ln, os.Chmod(path, 0o666)
}

func (l *lines) hello(h launch.Hello) error {
	l.said = h
	line, err := json.Marshal(h)
	if err != nil {
		return err
	}
	_, err = l.conn.Write(append(line, '\n'))
	return err
}

func (l *lines) fail(err error) {
	l.hello(launch.Hello{Error: err.Error()}) //nolint:errcheck // the launcher notices the end
}

func (l *lines) serve(srv *agent.Server) error {
	if l.ln == nil {
		return newSeam(l.conn).serve(srv, func() error { return l.hello(l.said) })
	}
	// The launcher answers that the sandbox is made, and may outlive it, by a
	// line; its end before that is the sandbox's.
	go func() {
		if _, _, err := launch.ReadLine(l.conn); err != nil {
			os.Exit(1)
		}
		l.conn.Close() //nolint:errcheck // nothing to do about it
	}()
	return srv.Serve(l.ln)
}
