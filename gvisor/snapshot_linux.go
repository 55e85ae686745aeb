package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/treecopy"
)

// What a snapshot's directory holds.
const (
	savedImage = "image" // what runsc wrote; with memory only
	savedAgent = "agent" // the program that runs in it; likewise
	savedIndex = "files.index"
	savedData  = "files.data"
)

// savedDetail is what a snapshot with memory can be restored on.
type savedDetail struct {
	Runsc    string   `json:"runsc,omitempty"` // its version
	Platform string   `json:"platform,omitempty"`
	Rootfs   rootID   `json:"rootfs,omitzero"`
	CPU      []string `json:"cpu,omitempty"` // features
	Joins    bool     `json:"joins,omitempty"`
}

// rootID tells a root file system from another that takes its place.
type rootID struct {
	Dir   string `json:"dir"`
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`
	Ctime int64  `json:"ctime"` // of the directory itself, in nanoseconds
}

func rootIdentity(dir string) (rootID, error) {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return rootID{}, fmt.Errorf("root file system: %w", err)
	}
	return rootID{Dir: dir, Dev: st.Dev, Inode: st.Ino, Ctime: st.Ctim.Nano()}, nil
}

// Save implements box.Saver. The sandbox is paused meanwhile, so that memory and
// files are of one moment.
func (b *body) Save(ctx context.Context, dir string, memory bool, spec backend.Spec) (_ json.RawMessage, err error) {
	if b.d.rooted(spec) {
		return nil, b.d.refuseSaving()
	}
	var d savedDetail
	if memory {
		if d, err = b.identity(); err != nil {
			return nil, err
		}
		if err := b.keepAgent(filepath.Join(dir, savedAgent)); err != nil {
			return nil, fmt.Errorf("the agent: %w", err)
		}
	}
	if err := b.cfg.Pause(ctx, b.binary); err != nil {
		return nil, err
	}
	defer func() { //nolint:contextcheck // the caller's may be over
		back, cancel := box.CleanupContext()
		defer cancel()
		err = errors.Join(err, b.cfg.Resume(back, b.binary))
	}()
	if memory {
		image := filepath.Join(dir, savedImage)
		if err := os.Mkdir(image, 0o700); err != nil {
			return nil, err
		}
		// It writes out what it holds of the files, so they come after.
		if err := b.cfg.Checkpoint(ctx, b.binary, image, true); err != nil {
			return nil, err
		}
	}
	if err := saveScratch(ctx, box.ScratchDir(b.dir), dir, spec.Limits.Disk); err != nil {
		return nil, err
	}
	return json.Marshal(d)
}

// identity is what the sandbox runs on. The root is found by its gofer, which
// shows it to the sandbox.
func (b *body) identity() (d savedDetail, err error) {
	d = savedDetail{Runsc: b.binary.Version, Platform: string(b.d.cfg.Platform), Joins: b.d.host.joins()}
	data, err := os.ReadFile(filepath.Join(b.dir, rootIDName))
	if err == nil {
		err = json.Unmarshal(data, &d.Rootfs)
	}
	if err == nil {
		d.CPU, err = cpuFeatures()
	}
	return d, err
}

// rootIDName is the file in a sandbox's own directory that names its root.
const rootIDName = "rootfs.json"

// cpuFeatures are what the host's processors can do.
func cpuFeatures() ([]string, error) {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		name, value, ok := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); ok && (name == "flags" || name == "Features") {
			f := strings.Fields(value)
			slices.Sort(f)
			return f, nil
		}
	}
	return nil, errors.New("/proc/cpuinfo names no features")
}

// keepAgent copies the program that the sandbox runs: the one its gofer shows,
// whatever lies at its path by now.
func (b *body) keepAgent(to string) error {
	procs, err := b.cfg.Processes()
	if err != nil {
		return err
	}
	in, err := os.OpenFile(fmt.Sprintf("/proc/%d/root%s", procs.Gofer.PID, launch.ContainedBinary), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // read side
	if st, err := in.Stat(); err != nil || !st.Mode().IsRegular() || st.Size() == 0 {
		return errors.Join(err, errors.New("it is no file"))
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o500)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func saveScratch(ctx context.Context, scratch, dir string, most int64) error {
	index, err := os.OpenFile(filepath.Join(dir, savedIndex), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	data, err := os.OpenFile(filepath.Join(dir, savedData), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		// What is allocated is counted in pages, what is written in bytes.
		_, err = treecopy.Save(ctx, scratch, index, data, most)
		err = errors.Join(err, data.Close())
	}
	return errors.Join(err, index.Close())
}

func loadScratch(ctx context.Context, dir, scratch string) error {
	index, err := os.Open(filepath.Join(dir, savedIndex))
	if err != nil {
		return err
	}
	defer index.Close() //nolint:errcheck // read side
	data, err := os.Open(filepath.Join(dir, savedData))
	if err != nil {
		return err
	}
	defer data.Close() //nolint:errcheck // read side
	return treecopy.Load(ctx, scratch, index, data)
}

// refuseSaving refuses snapshots of templates whose root has capabilities: what
// they write is in gVisor's overlay, and their agent in no place of the image.
func (d *driver) refuseSaving() error {
	return &backend.Error{
		Op: "snapshot", Kind: backend.ErrUnsupported, Backend: driverName, Field: "template",
		Err: errors.New("sandboxes whose root has capabilities cannot be saved"), Fix: "use a template without them",
	}
}

// Fits implements box.Restorer.
func (d *driver) Fits(ctx context.Context, spec backend.Spec, from *box.Saved) error {
	if d.rooted(spec) {
		return d.refuseSaving()
	}
	if !from.Memory {
		return nil
	}
	refuse := func(why, fix string) error {
		return &backend.Error{Op: "create", Kind: backend.ErrUnsupported, Backend: driverName, Field: "from", Err: errors.New(why), Fix: fix}
	}
	var was savedDetail
	if err := json.Unmarshal(from.Detail, &was); err != nil {
		return refuse("what it was taken of is not readable", "delete it, and take it again")
	}
	b, err := d.find(ctx)
	if err != nil {
		return err
	}
	dir, hold, err := d.rootfs(spec)
	if err != nil {
		return err
	}
	if hold != nil {
		hold.Close() //nolint:errcheck // a lock that ends with it
	}
	root, err := rootIdentity(dir)
	if err != nil {
		return err
	}
	have, err := cpuFeatures()
	if err != nil {
		return err
	}
	const again = "delete it, and take it again"
	switch {
	case was.Runsc != b.Version:
		return refuse(fmt.Sprintf("it was taken with runsc %s, here is %s", was.Runsc, b.Version), "install that runsc, or take it again")
	case was.Platform != string(d.cfg.Platform):
		return refuse(fmt.Sprintf("it was taken on platform %q, here is %q", was.Platform, d.cfg.Platform), "set the backend's platform, or take it again")
	case was.Rootfs != root:
		return refuse("the root file system is not the one it was taken with", again)
	case was.Joins != d.host.joins():
		return refuse("the host's control groups are laid out otherwise", again)
	}
	for _, f := range was.CPU {
		if _, ok := slices.BinarySearch(have, f); !ok {
			return refuse(fmt.Sprintf("this processor has no %s, which that had it was taken on", f), again)
		}
	}
	return nil
}

// restores tells whether the sandbox is to be made with its processes.
func (m *maker) restores() bool { return m.From != nil && m.From.Memory }

// bindAgent shows the agent inside: a program that was passed as a descriptor
// could not be saved.
func (m *maker) bindAgent(r *rootMaker) error {
	path := ""
	if m.restores() {
		path = filepath.Join(m.From.Dir, savedAgent)
	} else {
		var err error
		if path, err = box.FindAgent(driverName, m.d.cfg.Agent); err != nil {
			return err
		}
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return err
		}
		if path, err = filepath.Abs(path); err != nil {
			return err
		}
	}
	if err := r.place(launch.ContainedBinary, false); err != nil {
		return err
	}
	r.bind(path, launch.ContainedBinary)
	m.shown = true
	return nil
}

// greet meets the agent, or the copy of one.
func (m *maker) greet(ctx context.Context, conn *stream, cfg *launch.Config) (launch.Hello, error) {
	if m.restores() {
		return box.Regreet(ctx, conn, m.From.Seam, cfg)
	}
	return box.Greet(ctx, conn, cfg)
}

// prepareSaving lets the sandbox be saved later.
func (m *maker) prepareSaving(r *rootMaker, image string) error {
	if err := m.noteRoot(image); err != nil {
		return err
	}
	return m.bindAgent(r)
}

// loadFiles makes the snapshot's files again, if there is one.
func (m *maker) loadFiles() error {
	if m.From == nil {
		return nil
	}
	ctx, cancel := box.CleanupContext() // bounded, as the files are
	defer cancel()
	return loadScratch(ctx, m.From.Dir, box.ScratchDir(m.Dir))
}

// noteRoot writes down what root the sandbox has, for a snapshot of it.
func (m *maker) noteRoot(dir string) error {
	id, err := rootIdentity(dir)
	if err != nil {
		return err
	}
	data, err := json.Marshal(id)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.Dir, rootIDName), data, 0o600)
}

var (
	_ box.Saver    = (*body)(nil)
	_ box.Restorer = (*driver)(nil)
)
