package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// newRoot is where the new root is put together; nothing of the host's own
// needs to be reached below it any more by then.
const newRoot = "/tmp"

// systemDirs are the host's directories that a root made of the host shows.
var systemDirs = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32"} //nolint:gochecknoglobals // a constant table

// etcEntries are what programs need of the host's /etc and what tells nothing
// about the host.
var etcEntries = []string{ //nolint:gochecknoglobals // a constant table
	"alternatives", "bash.bashrc", "ca-certificates", "crypto-policies", "debian_version", "default/locale", "fonts", "gai.conf",
	"inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "localtime", "magic", "magic.mime", "mailcap",
	"mime.types", "networks", "nodejs", "openssl", "os-release", "pki/tls/certs", "pki/ca-trust", "profile", "profile.d", "protocols", "python3",
	"python3.11", "python3.12", "python3.13", "rpc", "services", "shells", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone",
}

// maxCopy bounds what is copied rather than bound.
const maxCopy = 256 << 10

// Names at the top of the new root that are taken while it is made.
const (
	scratchName = ".scratch"
	etcName     = ".etc"
	emptyName   = ".empty"
	bootIDName  = ".boot_id"
)

// sources are what the new root is made of, taken before it hides what lies
// under it.
type sources struct {
	trees, binds, devices []tree
	links                 map[string]string
	etc                   *tree
	etcFiles              map[string][]byte
}

func gather(cfg *Config) (src sources, err error) {
	image := cfg.Root.Dir != ""
	root, err := openFileTree(filepath.Join("/", cfg.Root.Dir))
	if err != nil {
		return src, fmt.Errorf("root file system: %w", err)
	}
	defer root.close()
	if src.trees, src.links, err = rootTrees(root, image); err != nil {
		return src, err
	}
	if src.binds, err = bindTrees(cfg.Mounts); err != nil {
		return src, err
	}
	if src.etc, src.etcFiles, err = etcTree(cfg, root); err != nil {
		return src, err
	}
	src.devices, err = deviceTrees()
	return src, err
}

// buildRoot puts the sandbox's root together and moves into it.
func buildRoot(cfg *Config) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if cfg.Root.DirFD > 0 {
		// It stands where the new root will, until that covers it.
		if err := moveTo(tree{fd: cfg.Root.DirFD}, newRoot); err != nil {
			return fmt.Errorf("root file system: %w", err)
		}
		cfg.Root.Dir = newRoot
	}
	src, err := gather(cfg)
	if err != nil {
		return err
	}
	if err := mountTmpfs(newRoot, unix.MS_NOSUID|unix.MS_NODEV, "size=4m,nr_inodes=4096,mode=755"); err != nil {
		return err
	}
	for _, dir := range []string{"proc", "dev", "etc", "home", "tmp", "run", "var/tmp", "var/lib", "var/cache", "root", "mnt", "opt", scratchName} {
		if err := os.MkdirAll(filepath.Join(newRoot, dir), 0o755); err != nil {
			return err
		}
	}
	if err := attachAll(src.trees); err != nil {
		return err
	}
	for name, to := range src.links {
		if err := os.Symlink(to, filepath.Join(newRoot, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	if err := attachAll([]tree{*src.etc}); err != nil {
		return err
	}
	if err := coverEtc(newRoot, src.etcFiles); err != nil {
		return err
	}
	// While the host's procfs is still there: the kernel allows a new one only
	// to who sees the old one in full.
	if err := mountProc(newRoot); err != nil {
		return err
	}
	if err := mountScratch(cfg); err != nil {
		return err
	}
	if err := mountDev(src.devices); err != nil {
		return err
	}
	if err := attachAll(src.binds); err != nil {
		return err
	}
	return enterRoot()
}

func attachAll(trees []tree) error {
	for _, t := range trees {
		if err := t.attach(newRoot); err != nil {
			return err
		}
	}
	return nil
}

// enterRoot makes newRoot the root, drops the old one and makes it read-only.
func enterRoot() error {
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the old root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", 0, &attr); err != nil {
		return fmt.Errorf("make the root read-only: %w", err)
	}
	return nil
}

// bindTrees copies the mounts a caller named, if they still are what the
// launcher checked.
func bindTrees(binds []Bind) ([]tree, error) {
	var out []tree
	for _, b := range binds {
		if b.FD > 0 {
			out = append(out, tree{fd: b.FD, target: b.Target, dir: b.Dir})
			continue
		}
		t, err := openTree(b.Source, b.Target)
		if err != nil {
			return nil, fmt.Errorf("mount at %s: %w", b.Target, errno(err))
		}
		var st unix.Stat_t
		if err := unix.Fstat(t.fd, &st); err != nil || st.Dev != b.Dev || st.Ino != b.Ino {
			return nil, fmt.Errorf("mount at %s: the source changed while the sandbox was made", b.Target)
		}
		out = append(out, t)
	}
	return out, nil
}

// errno strips paths of the host from an error.
func errno(err error) error {
	if e, ok := errors.AsType[unix.Errno](err); ok {
		return e
	}
	return err
}

// mountScratch mounts the one place that can be written and shows parts of it
// where programs expect to write.
func mountScratch(cfg *Config) error {
	base := filepath.Join(newRoot, scratchName)
	opts := "mode=755"
	if cfg.Scratch.Bytes > 0 {
		opts += fmt.Sprintf(",size=%d", cfg.Scratch.Bytes)
	}
	if cfg.Scratch.Inodes > 0 {
		opts += fmt.Sprintf(",nr_inodes=%d", cfg.Scratch.Inodes)
	}
	if err := mountTmpfs(base, unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return err
	}
	uid := -1
	if cfg.Mode == ModeMapped {
		uid = UserUID
	}
	parts, err := MakeScratch(base, cfg.Root.Home, uid)
	if err != nil {
		return err
	}
	for _, p := range parts {
		target := strings.TrimPrefix(p.Target, "/")
		t, err := openTreeAttr(p.Source, target, 0, false)
		if err != nil {
			return err
		}
		if target == "dev/shm" {
			// /dev is mounted later; what is made here now stays below it.
			if err := mountpoint(newRoot, target, true); err != nil {
				return err
			}
		}
		if err := t.attach(newRoot); err != nil {
			return err
		}
	}
	// The binds keep the file system; its own name goes.
	if err := unix.Unmount(base, unix.MNT_DETACH); err != nil {
		return err
	}
	return os.Remove(base)
}
