//go:build linux

package runsc

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
)

// Platforms that a Config may name. KVM is not offered: it wants /dev/kvm and
// hangs where that is emulated.
const (
	Systrap = "systrap"
	Ptrace  = "ptrace"
)

// Config is how runsc is called for one sandbox, always the same while it
// lives.
type Config struct {
	// ID names the sandbox to runsc.
	ID string
	// Dir is runsc's --root: private to the sandbox and its owner, existing,
	// removed with the sandbox. Its path must be short enough for a socket in
	// it, or runsc puts that into a directory shared by all.
	Dir string
	// Platform is Systrap when empty.
	Platform string
	// Network gives the sandbox the interfaces of its network namespace through
	// gVisor's own stack; otherwise it has a loopback alone.
	Network bool
	// Rootless is for callers that are not root.
	Rootless bool
	// Groups lets runsc put the sandbox into the v1 groups that the bundle
	// names, which exist already. From them it takes the memory size that the
	// sandbox sees. Never with Rootless.
	Groups bool
	// Overlay is the size, in bytes, of an overlay in memory on the root, which
	// can then be written and stays as it is; 0 for none.
	Overlay int64
	// SUID lets setuid programs raise privileges inside.
	SUID bool
}

func (c *Config) validate() error {
	switch {
	case !regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,80}$`).MatchString(c.ID):
		return fmt.Errorf("runsc: %q is no name for a sandbox", c.ID)
	case !filepath.IsAbs(c.Dir):
		return fmt.Errorf("runsc: directory %q is not absolute", c.Dir)
	case len(c.socket()) > maxSocketPath:
		return fmt.Errorf("runsc: directory %q: its path is too long for a socket", c.Dir)
	case c.Platform != "" && c.Platform != Systrap && c.Platform != Ptrace:
		return fmt.Errorf("runsc: platform %q, not systrap or ptrace", c.Platform)
	case c.Groups && c.Rootless:
		return errors.New("runsc: groups need root")
	}
	return nil
}

// socket is where the sandbox listens for runsc.
func (c *Config) socket() string { return filepath.Join(c.Dir, "runsc-"+c.ID+".sock") }

// flags are runsc's global flags. All commands on a sandbox get the same.
func (c *Config) flags(b Binary) []string {
	platform, network := c.Platform, "none"
	if platform == "" {
		platform = Systrap
	}
	if c.Network {
		network = "sandbox"
	}
	// What is read-only is read-only; nothing is hidden in an overlay whose size
	// nobody limits.
	overlay := "none"
	if c.Overlay > 0 {
		overlay = fmt.Sprintf("root:memory,size=%d", c.Overlay)
	}
	out := []string{
		"--root=" + c.Dir,
		"--platform=" + platform,
		"--network=" + network,
		// Security: the sentry opens no host file by itself but asks the gofer.
		// It then runs as nobody, without a capability, in an empty root.
		"--directfs=false",
		"--overlay2=" + overlay,
		// Security: no host socket or FIFO can be reached, even one that lies in
		// a bind mount.
		"--host-uds=none",
		"--host-fifo=none",
		// Security: a bundle's annotations change no flag.
		"--allow-flag-override=false",
		// Security: no raw or packet sockets for the guest's root.
		"--net-raw=false",
	}
	// Those that not every version has. Left out they have the value given here
	// already, by default or because there is no such thing.
	for _, f := range []struct{ name, value string }{
		{"allow-suid", strconv.FormatBool(c.SUID)},
		// Neither look at the host's settings, which takes time, nor change them.
		{"host-settings", "ignore"},
		// The filter of a container runtime is not ours; our agent sets its own.
		{"oci-seccomp", "false"},
		// A log would grow with what the guest does. Errors come on stderr.
		{"debug", "false"},
		{"strace", "false"},
		{"log", "/dev/null"},
	} {
		if b.knows(f.name) {
			out = append(out, "--"+f.name+"="+f.value)
		}
	}
	if c.Rootless {
		out = append(out, "--rootless")
	}
	if !c.Groups {
		out = append(out, "--ignore-cgroups")
	}
	return out
}
