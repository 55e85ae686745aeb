package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// scratchParts are the places that can be written, with their directories below
// the scratch.
var scratchParts = []struct { //nolint:gochecknoglobals // a constant table
	Name, Target string
	Mode         os.FileMode
	Own          bool // user's
}{
	{"tmp", "/tmp", 0o777 | os.ModeSticky, false},
	{"vartmp", "/var/tmp", 0o777 | os.ModeSticky, false},
	{"shm", "/dev/shm", 0o777 | os.ModeSticky, false},
	{"home", "", 0o755, true},
}

// Part is a directory of the scratch and where it is shown.
type Part struct{ Source, Target string }

// MakeScratch makes the parts of a scratch in dir, an empty directory, for a
// sandbox whose user has uid and lives in home.
func MakeScratch(dir, home string, uid int) ([]Part, error) {
	parts := make([]Part, 0, len(scratchParts))
	for _, p := range scratchParts {
		path := filepath.Join(dir, p.Name)
		if err := os.Mkdir(path, 0o755); err != nil {
			return nil, err
		}
		if err := os.Chmod(path, p.Mode); err != nil {
			return nil, err
		}
		part := Part{Source: path, Target: p.Target}
		if p.Own {
			part.Target = home
			if err := os.Chown(path, uid, uid); err != nil {
				return nil, err
			}
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// mountContained mounts the scratch inside a container whose runtime lets the
// agent do that.
func mountContained(cfg *Config) error {
	base := cfg.Scratch.Mount
	opts := fmt.Sprintf("mode=755,size=%d", cfg.Scratch.Bytes)
	if err := mountTmpfs(base, unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return err
	}
	parts, err := MakeScratch(base, cfg.Root.Home, cfg.UserUID)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if err := unix.Mount(p.Source, p.Target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", p.Target, err)
		}
	}
	// The parts keep it.
	return unix.Unmount(base, unix.MNT_DETACH)
}

// keepDevices keeps uid 0 of a sandbox under gVisor from filling its /dev, which
// has no size there, nor can be made read-only without losing the devices.
func (sb *Sandbox) keepDevices(cfg *Config) error {
	if !sb.Sentry {
		return nil
	}
	for _, dir := range []string{"/dev", "/dev/net"} {
		if err := os.Lchown(dir, cfg.AgentUID, cfg.AgentUID); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Accounts are /etc/passwd and /etc/group of a root without accounts of its own
// that are known, with user as uid.
func Accounts(home string, uid int) (passwd, group []byte) {
	return WithUser([]byte(systemPasswd), []byte(systemGroup), home, uid)
}

// WithUser puts user with uid into the accounts of an image, in place of its
// own user of that name.
func WithUser(passwd, group []byte, home string, uid int) (newPasswd, newGroup []byte) {
	p := setLine(string(passwd), "user:", fmt.Sprintf("user:x:%d:%d:user:%s:/bin/bash", uid, uid, home))
	g := setLine(string(group), "user:", fmt.Sprintf("user:x:%d:", uid))
	return []byte(p), []byte(g)
}

// MachineFiles are the files of /etc that name the machine and its network.
func MachineFiles(hostname string) map[string][]byte { return machineFiles(hostname) }
