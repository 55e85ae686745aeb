//go:build linux

package runsc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Binary is a runsc executable that was asked for its version and its flags.
type Binary struct {
	Path    string
	Version string // as it says itself
	// Flags are the global flags it knows, sorted.
	Flags []string
}

// needed are the flags without which a sandbox would be less than it claims:
// the releases that lack one are older than 2023-08.
func needed() []string {
	return []string{
		"allow-flag-override", "directfs", "host-fifo", "host-uds", "ignore-cgroups", "net-raw", "network",
		"overlay2", "platform", "root", "rootless",
	}
}

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
	b := Binary{Path: full}
	out, err := ask(ctx, full, "--version")
	if err == nil {
		b.Version, err = parseVersion(out)
	}
	if err == nil {
		out, err = ask(ctx, full, "flags")
	}
	if err == nil {
		b.Flags, err = parseFlags(out)
	}
	if err != nil {
		return Binary{}, fmt.Errorf("runsc: %s: %w", full, err)
	}
	return b, nil
}

// ask gives the beginning of what a binary says.
func ask(ctx context.Context, path, arg string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, arg)
	cmd.Env = []string{}
	var out bytes.Buffer
	// Some versions list their flags on the one, some on the other.
	cmd.Stdout = &limited{buf: &out, left: 256 << 10}
	cmd.Stderr, cmd.WaitDelay = cmd.Stdout, time.Second
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w", arg, err)
	}
	return out.String(), nil
}

// parseVersion takes the version from the first line, such as "runsc version
// release-20260224.0"; a build that was not told one says VERSION_MISSING.
func parseVersion(out string) (string, error) {
	m := regexp.MustCompile(`(?m)^runsc version (\S{1,100})$`).FindStringSubmatch(out)
	if m == nil {
		return "", errors.New("it tells no version, so it is not gVisor's runsc")
	}
	return m[1], nil
}

// parseFlags takes the names from the list of flags and refuses a binary that
// lacks what is needed. Flags and not dates decide, as builds tell none.
func parseFlags(out string) ([]string, error) {
	var flags []string
	for _, m := range regexp.MustCompile(`(?m)^  -([a-zA-Z0-9_-]{1,100})`).FindAllStringSubmatch(out, -1) {
		flags = append(flags, m[1])
	}
	slices.Sort(flags)
	flags = slices.Compact(flags)
	for _, n := range needed() {
		if _, ok := slices.BinarySearch(flags, n); !ok {
			return nil, fmt.Errorf("it is too old: it does not know --%s, as releases since August 2023 do", n)
		}
	}
	if !strings.Contains(out, Systrap) {
		return nil, errors.New("it is too old: it does not know the platform systrap")
	}
	return flags, nil
}

// knows tells whether it has a flag.
func (b Binary) knows(flag string) bool {
	_, ok := slices.BinarySearch(b.Flags, flag)
	return ok
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
