package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// What of /proc tells about the host or is a way into its kernel. The lists
// are those that container runtimes cover, and more of the same.
var (
	procMasked = []string{ //nolint:gochecknoglobals // a constant table
		"acpi", "asound", "config.gz", "interrupts", "iomem", "ioports", "kallsyms", "kcore", "key-users", "keys", "kmsg", "kpagecgroup",
		"kpagecount", "kpageflags", "latency_stats", "mtrr", "sched_debug", "schedstat", "scsi", "slabinfo", "softirqs", "sysrq-trigger",
		"timer_list", "timer_stats", "vmallocinfo", "zoneinfo", "driver", "fs",
	}
	procReadOnly = []string{"bus", "irq", "sys"} //nolint:gochecknoglobals // a constant table
)

// MaskedPaths are what a container runtime has to cover for us: of /proc what is
// covered here too, and of /sys what names the machine's kernel.
func MaskedPaths() []string {
	out := []string{"/proc/sys/kernel/random/boot_id", "/sys/kernel/notes", "/sys/kernel/vmcoreinfo"}
	for _, name := range procMasked {
		out = append(out, "/proc/"+name)
	}
	return out
}

// mountProc mounts the pid namespace's own procfs and covers parts of it.
func mountProc(root string) error {
	at := filepath.Join(root, "proc")
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if err := unix.Mount("proc", at, "proc", flags, ""); err != nil {
		// A host that covers parts of its own procfs gives no full one away.
		if serr := unix.Mount("proc", at, "proc", flags, "subset=pid"); serr != nil {
			return fmt.Errorf("mount proc: %w", err)
		}
		return nil
	}
	empty := filepath.Join(root, emptyName)
	if err := os.Mkdir(empty, 0o555); err != nil {
		return err
	}
	for _, name := range procMasked {
		path := filepath.Join(at, name)
		st, err := os.Lstat(path)
		if err != nil || st.Mode().Perm()&0o006 == 0 {
			// What only the host's root may open is closed to every uid here.
			continue
		}
		source := "/dev/null"
		if st.IsDir() {
			source = empty
		}
		if err := cover(source, path); err != nil {
			return fmt.Errorf("cover proc/%s: %w", name, err)
		}
	}
	if err := ownBootID(root); err != nil {
		return err
	}
	for _, name := range procReadOnly {
		path := filepath.Join(at, name)
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		t, err := openTreeAttr(path, "", unix.MOUNT_ATTR_RDONLY, true)
		if err != nil {
			return err
		}
		if err := moveTo(t, path); err != nil {
			return fmt.Errorf("proc/%s read-only: %w", name, err)
		}
	}
	return nil
}

// ownBootID gives the sandbox a boot's id of its own: the host's would tell
// which machine it is on.
func ownBootID(root string) error {
	random := filepath.Join(root, "proc/sys/kernel/random")
	id, err := os.ReadFile(filepath.Join(random, "uuid"))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("boot id: %w", err)
	}
	file := filepath.Join(root, bootIDName)
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return fmt.Errorf("boot id: %w", err)
	}
	if _, err = f.Write(id); err == nil {
		err = cover(file, filepath.Join(random, "boot_id"))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("boot id: %w", err)
	}
	return nil
}

// cover shows source at path, which exists, and nobody can change it there:
// without that, what one program writes below a cover is another's to find, and
// counted nowhere.
func cover(source, path string) error {
	if err := unix.Mount(source, path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	return unix.MountSetattr(unix.AT_FDCWD, path, 0, &attr)
}

// moveTo attaches t at an absolute path that exists.
func moveTo(t tree, path string) error {
	defer unix.Close(t.fd) //nolint:errcheck // the mount lives on
	return unix.MoveMount(t.fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// devices are the host's nodes that a sandbox shows.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"} //nolint:gochecknoglobals // a constant table

func deviceTrees() ([]tree, error) {
	var out []tree
	for _, name := range devices {
		t, err := openTreeAttr(filepath.Join("/dev", name), filepath.Join("dev", name), unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, false)
		if err != nil {
			if errors.Is(err, os.ErrNotExist) && name == "tty" {
				continue
			}
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// mountDev fills /dev: a few of the host's nodes, terminals of the sandbox's
// own, and the usual links.
func mountDev(nodes []tree) error {
	if err := attachAll(nodes); err != nil {
		return err
	}
	pts := filepath.Join(newRoot, "dev/pts")
	if err := os.Mkdir(pts, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("devpts", pts, "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,max=64"); err != nil {
		return fmt.Errorf("mount devpts: %w", err)
	}
	for name, to := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(to, filepath.Join(newRoot, "dev", name)); err != nil {
			return err
		}
	}
	return nil
}
