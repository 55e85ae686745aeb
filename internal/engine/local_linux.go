package engine

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/unixsock"
)

// local tells whether the engine is a daemon on this machine that sees the same
// processes and files: who listens on its socket says so. When in doubt it is
// not, which costs speed only.
func (e *Engine) local(ctx context.Context, info Info) bool {
	if e.socket() == "" {
		return false
	}
	var uts unix.Utsname
	if unix.Uname(&uts) != nil || unix.ByteSliceToString(uts.Release[:]) != info.Kernel {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, e.limits.ping)
	defer cancel()
	pid, ok := listener(ctx, e.socket())
	if !ok {
		return false
	}
	// Who forwards a socket listens too; the daemon does itself, or has systemd
	// do so.
	comm := string(procFile(pid, "comm"))
	if !strings.HasPrefix(comm, "dockerd") && !strings.HasPrefix(comm, "systemd") {
		return false
	}
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	pidNS, err := os.Readlink(filepath.Join(proc, "ns", "pid"))
	if err != nil {
		// Others than root may not look; the daemon's own words must do.
		host, _ := os.Hostname()
		return host == info.Name
	}
	own, _ := os.Readlink("/proc/self/ns/pid")
	return pidNS == own && sameRoot(proc)
}

// listener is the process that listens on a Unix socket, as this process's pid
// namespace numbers it.
func listener(ctx context.Context, path string) (int, bool) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return 0, false
	}
	defer conn.Close() //nolint:errcheck // nothing was sent
	cred, err := unixsock.Peer(conn)
	if err != nil {
		return 0, false
	}
	return int(cred.Pid), cred.Pid > 0
}

// sameRoot tells whether a process has this process's root directory.
func sameRoot(proc string) bool {
	own, err := os.Stat("/")
	if err != nil {
		return false
	}
	its, err := os.Stat(filepath.Join(proc, "root") + "/")
	return err == nil && os.SameFile(own, its)
}
