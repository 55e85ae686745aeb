//go:build linux

package runsc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Binary is a runsc executable that was asked for its version.
type Binary struct {
	Path    string
	Version string // as it says itself
}

// oldest is the first release with systrap as it is used here; before it the
// default platform is ptrace and --directfs and --host-fifo are unknown.
const oldest = 20230801

// findTimeout bounds one question to a binary.
const findTimeout = 10 * time.Second

// Find looks for runsc at path, which may be a bare name, or, when path is
// empty, in PATH and then in /usr/local/bin. Its error says what was wrong with
// what was found.
func Find(ctx context.Context, path string) (Binary, error) {
	if path == "" {
		path = "runsc"
		if _, err := exec.LookPath(path); err != nil {
			path = "/usr/local/bin/runsc"
		}
	}
	full, err := exec.LookPath(path)
	if err != nil {
		return Binary{}, fmt.Errorf("runsc: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, full, "--version") //nolint:gosec // the operator's choice
	cmd.Env = []string{}
	var out bytes.Buffer
	cmd.Stdout, cmd.WaitDelay = &limited{buf: &out, left: tailSize}, time.Second
	if err := cmd.Run(); err != nil {
		return Binary{}, fmt.Errorf("runsc: %s --version: %w", full, err)
	}
	b := Binary{Path: full}
	if b.Version, err = parseVersion(out.String()); err != nil {
		return Binary{}, fmt.Errorf("runsc: %s: %w", full, err)
	}
	return b, nil
}

// parseVersion takes the version from the first line, such as "runsc version
// release-20260224.0", and refuses what is too old. A build without one says
// VERSION_MISSING; it is as new as the module it was built from, which nobody
// can tell, so it is accepted: a flag it does not know stops it at its start.
func parseVersion(out string) (string, error) {
	m := regexp.MustCompile(`(?m)^runsc version (\S{1,100})$`).FindStringSubmatch(out)
	if m == nil {
		return "", errors.New("it does not tell a version, so it is not gVisor's runsc")
	}
	date := regexp.MustCompile(`\b(20\d{6})\b`).FindString(m[1])
	if date == "" {
		return m[1], nil
	}
	if n, err := strconv.Atoi(date); err != nil || n < oldest {
		return "", fmt.Errorf("version %s is too old: systrap and --directfs=false need %d or later", m[1], oldest)
	}
	return m[1], nil
}

// limited keeps the first bytes that are written to it.
type limited struct {
	buf  *bytes.Buffer
	left int
}

// Write implements io.Writer; it never fails.
func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.buf.Write(p[:n])
	l.left -= n
	return len(p), nil
}

// maxSocketPath is what fits into sun_path.
const maxSocketPath = len(unix.RawSockaddrUnix{}.Path) - 1
