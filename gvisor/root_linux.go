package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/oci"
)

// rootMaker puts a sandbox's root together in a directory of its own: places to
// mount on, and the mounts that show the image there. Nothing is made in the
// image, which others share, whatever is to be mounted.
type rootMaker struct {
	dir    string   // the root
	image  *os.Root // what it shows
	path   string   // the image's
	mounts []oci.Mount
	shared bool // the root is the image itself, where nothing is made
}

// ownDirs are the places that exist in every sandbox without the image's.
var ownDirs = []string{ //nolint:gochecknoglobals // a constant table
	"proc", "sys", "dev/shm", "dev/pts", "tmp", "run", "home", "mnt", "root", "var/tmp", "var/lib", "var/cache", scratchDir[1:],
}

// scratchDir is where an agent mounts a scratch that the host does not.
const scratchDir = "/.glovebox/scratch"

// shown are the image's directories that are not at its top.
var shown = []string{"var/lib", "var/cache"} //nolint:gochecknoglobals // a constant table

// newRoot makes the root of an image in dir, which must not exist.
func newRoot(dir, image string) (_ *rootMaker, err error) {
	r := &rootMaker{dir: dir, path: image}
	if r.image, err = os.OpenRoot(image); err != nil {
		return nil, err
	}
	defer r.image.Close() //nolint:errcheck // a directory
	for _, d := range append([]string{"", "etc", strings.TrimPrefix(backend.DefaultHome, "/")}, ownDirs...) {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	r.mounts = []oci.Mount{
		{Kind: oci.Proc, Target: "/proc"},
		{Kind: oci.Sysfs, Target: "/sys", ReadOnly: true},
		{Kind: oci.Tmpfs, Target: "/dev", Devices: true},
	}
	entries, err := fs.ReadDir(r.image.FS(), ".")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if err := r.show(e); err != nil {
			return nil, fmt.Errorf("root file system: %s: %w", e.Name(), err)
		}
	}
	for _, d := range shown {
		if st, err := r.image.Lstat(d); err == nil && st.IsDir() && r.plain(filepath.Dir(d)) {
			r.bind(filepath.Join(r.path, d), "/"+d)
		}
	}
	if !r.plain("etc") {
		return nil, errors.New("root file system: no etc in it")
	}
	return r, nil
}

// plain tells whether name is a directory of the image's and no link: what a
// link of the image's says, it says of the image.
func (r *rootMaker) plain(name string) bool {
	st, err := r.image.Lstat(name)
	return err == nil && st.IsDir()
}

// show makes an entry at the image's top visible.
func (r *rootMaker) show(e fs.DirEntry) error {
	name := e.Name()
	switch name {
	case "proc", "sys", "dev", "tmp", "run", "home", "mnt", "var", "root", "lost+found", ".glovebox":
		return nil
	}
	at := filepath.Join(r.dir, name)
	switch {
	case e.Type()&fs.ModeSymlink != 0:
		to, err := r.image.Readlink(name)
		if err != nil {
			return err
		}
		if err := os.Symlink(to, at); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	case e.IsDir():
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if inside, err := fs.ReadDir(r.image.FS(), name); err != nil || len(inside) > 0 {
			r.bind(filepath.Join(r.path, name), "/"+name)
		}
	}
	return nil
}

func (r *rootMaker) bind(source, target string) {
	r.mounts = append(r.mounts, oci.Mount{Kind: oci.Bind, Source: source, Target: target, ReadOnly: true})
}

// cover shows files, by their names in /etc, in the place of the image's own,
// where it has such. They are written into dir.
func (r *rootMaker) cover(dir string, cfg *launch.Config) error {
	image, err := os.OpenRoot(r.path)
	if err != nil {
		return err
	}
	defer image.Close() //nolint:errcheck // a directory
	read := func(name string) ([]byte, error) {
		st, err := image.Lstat("etc/" + name)
		if err != nil || !st.Mode().IsRegular() || st.Size() > maxFile {
			return nil, fs.ErrNotExist
		}
		return image.ReadFile("etc/" + name)
	}
	files := launch.MachineFiles(cfg.Hostname)
	if text := cfg.ResolvConf(); text != "" {
		files["resolv.conf"] = []byte(text)
	}
	passwd, perr := read("passwd")
	group, gerr := read("group")
	if perr == nil && gerr == nil {
		files["passwd"], files["group"] = launch.WithUser(passwd, group, backend.DefaultHome, launch.UserUID)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for name, data := range files {
		have, err := read(name)
		if err != nil || string(have) == string(data) {
			continue
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
		r.bind(path, "/etc/"+name)
	}
	return nil
}

// maxFile bounds what is read of an image.
const maxFile = 1 << 20

// place makes the place that target is mounted on, in the root or in the
// writable directory below it; what lies in the image must have one.
func (r *rootMaker) place(target string, dir bool) error {
	if r.shared {
		return nil
	}
	base, rel := r.dir, target
	for _, m := range slices.Backward(r.mounts) {
		if m.Kind != oci.Bind || !strings.HasPrefix(target, m.Target+"/") {
			continue
		}
		if m.ReadOnly {
			return nil // the runtime's caller looks for it there
		}
		base, rel = m.Source, strings.TrimPrefix(target, m.Target)
		break
	}
	root, err := os.OpenRoot(base)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // a directory
	rel = strings.TrimPrefix(rel, "/")
	if dir {
		return root.MkdirAll(rel, 0o755)
	}
	if err := root.MkdirAll(filepath.Dir(rel), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(rel, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// checkMounts makes sure that what was checked is what was mounted: in between,
// whoever may write on the way there could have put something else in its place.
// It looks at the gofer's root, which is what runsc has laid out.
func checkMounts(gofer int, binds []launch.Bind) error {
	for _, b := range binds {
		var st unix.Stat_t
		if err := unix.Lstat(fmt.Sprintf("/proc/%d/root%s", gofer, b.Target), &st); err != nil {
			return fmt.Errorf("mount %s: %w", b.Target, err)
		}
		if st.Dev != b.Dev || st.Ino != b.Ino {
			return fmt.Errorf("mount %s: it changed while the sandbox was made", b.Target)
		}
	}
	return nil
}
