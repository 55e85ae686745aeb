//go:build linux

package dockerbox

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

// Labels of images that have the agent in them.
const (
	labelParent = "dev.glovebox.parent" // the image it was made from
	labelLayer  = "dev.glovebox.layer"  // the layer with the agent
	labelWhole  = "dev.glovebox.whole"  // of one that is sent as one layer
	labelExport = "dev.glovebox.export" // of a container that an image is read from
)

const (
	// maxAgent bounds the agent, maxParent an image that has to be sent whole.
	maxAgent  = 256 << 20
	maxParent = 32 << 30
	// exportFor is how long reading an image may take before what is left of it
	// is taken for somebody's who has gone.
	exportFor = 12 * time.Hour
)

// layer is what is added to images: the agent and the accounts.
type layer struct {
	data []byte
	hash string
}

// layerHash is a layer's hash, by what was read for it.
type layerHash struct{ key, hash string }

// layerOf reads the agent into a layer for sandboxes whose user has uid.
func layerOf(binary string, uid int) (layer, error) {
	f, err := os.Open(binary)
	if err != nil {
		return layer{}, err
	}
	defer f.Close() //nolint:errcheck // read side
	agent, err := io.ReadAll(io.LimitReader(f, maxAgent+1))
	if err == nil && len(agent) > maxAgent {
		err = errors.New("the agent is too large")
	}
	if err != nil {
		return layer{}, err
	}
	return newLayer(slices.Concat(agentFiles(agent), accountFiles(uid)))
}

// accountsLayer has the accounts alone.
func accountsLayer(uid int) (layer, error) {
	return newLayer(accountFiles(uid))
}

// file is one of a layer's; a name that ends in a slash is a directory's.
// Directories come with what is in them: engines make missing ones that only
// root can enter.
type file struct {
	name string
	mode int64
	data []byte
}

func agentFiles(agent []byte) []file {
	binary := strings.TrimPrefix(launch.ContainedBinary, "/")
	return []file{{binary[:strings.LastIndexByte(binary, '/')+1], 0o755, nil}, {binary, 0o555, agent}}
}

func accountFiles(uid int) []file {
	passwd, group := launch.Accounts(backend.DefaultHome, uid)
	return []file{{"etc/", 0o755, nil}, {"etc/passwd", 0o644, passwd}, {"etc/group", 0o644, group}}
}

func newLayer(files []file) (layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return layer{}, err
		}
		if _, err := w.Write(f.data); err != nil {
			return layer{}, err
		}
	}
	if err := w.Close(); err != nil {
		return layer{}, err
	}
	sum := sha256.Sum256(buf.Bytes())
	return layer{buf.Bytes(), hex.EncodeToString(sum[:16])}, nil
}

// withAgent is the ID of the sandbox's image with the agent in it, and accounts
// that all sandboxes share. whole: the engine took no single layer.
func (m *maker) withAgent(ctx context.Context) (id string, whole bool, err error) {
	if m.binary, err = box.FindAgent(m.d.o.Name, m.d.o.Agent); err != nil {
		return "", false, err
	}
	key, err := fileKey(m.binary)
	if err != nil {
		return "", false, err
	}
	shared := m.commonUID()
	img, err := m.d.derived.get(ctx, fmt.Sprintf("%s %s %d", key, m.img.ID, shared), func() (derivedImage, error) {
		add, err := layerOf(m.binary, shared)
		if err != nil {
			return derivedImage{}, err
		}
		return m.d.withLayer(ctx, m.img.Image, m.img.ID, add, add.hash, m.Name)
	})
	return img.id, img.whole, err
}

// withUser is the ID of an image with the agent in it, with the accounts of this
// sandbox alone.
func (m *maker) withUser(ctx context.Context, parent string) (string, error) {
	img, err := m.d.derived.get(ctx, fmt.Sprintf("%s %d", parent, m.user), func() (derivedImage, error) {
		from, err := m.d.engine.Image(ctx, parent)
		if err != nil {
			return derivedImage{}, err
		}
		add, err := accountsLayer(m.user)
		if err != nil {
			return derivedImage{}, err
		}
		return m.d.withLayer(ctx, from, m.img.ID, add, from.Labels[labelLayer], m.Name)
	})
	return img.id, err
}

// commonUID is user's uid where sandboxes have none of their own.
func (m *maker) commonUID() int {
	if m.info.UsernsRemap || m.info.Rootless {
		return launch.UserUID
	}
	return farUIDs(m.d.store.ID(), 0) + launch.UserUID
}

// derivedImage is an image of ours on the engine.
type derivedImage struct {
	id    string
	whole bool // it has one layer
}

// derivedImages remembers images by what they are made of. One is made at a
// time: the others find what the first has made.
type derivedImages struct {
	turn chan struct{}

	mu    sync.Mutex
	known map[string]derivedImage
}

func (d *derivedImages) get(ctx context.Context, key string, make func() (derivedImage, error)) (derivedImage, error) {
	look := func() (derivedImage, bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		img, ok := d.known[key]
		return img, ok
	}
	if img, ok := look(); ok {
		return img, nil
	}
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return derivedImage{}, ctx.Err()
	}
	if img, ok := look(); ok {
		return img, nil
	}
	img, err := make()
	if err != nil {
		return derivedImage{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[key] = img
	return img, nil
}

// forget has all images looked for again.
func (d *derivedImages) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.known)
}

// fileKey names a file's content, as far as a look at it can.
func fileKey(name string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return fmt.Sprintf("%d %d %d %d.%09d", st.Dev, st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec), nil
}

// withLayer is an image of parent with a layer of ours. Engines that take no
// single layer get all of it in one. root is the template's image below it, and
// agent the hash of the layer with the agent.
func (d *Driver) withLayer(ctx context.Context, parent engine.Image, root string, add layer, agent, name string) (derivedImage, error) {
	sum := sha256.Sum256([]byte(parent.ID + " " + add.hash))
	tag := "glovebox-agent/" + d.store.ID() + ":" + hex.EncodeToString(sum[:12])
	labels := map[string]string{labelStore: d.store.ID(), labelParent: root, labelLayer: agent}
	have, err := d.engine.Image(ctx, tag)
	if err == nil && have.Labels[labelStore] == d.store.ID() && have.Labels[labelParent] == root && have.Labels[labelLayer] == agent {
		return derivedImage{have.ID, have.Labels[labelWhole] != ""}, nil
	}
	if err != nil && backend.KindOf(err) != backend.ErrNotFound {
		return derivedImage{}, err
	}
	id, err := d.engine.Derive(ctx, parent, tag, labels, add.data)
	kind := backend.KindOf(err)
	if err == nil || ctx.Err() != nil || kind == backend.ErrCapacity || kind == backend.ErrLost || d.engine.Ping(ctx) != nil {
		return derivedImage{id, false}, err
	}
	// However it says so: engines that keep images in containerd say no.
	labels[labelWhole] = "yes"
	id, err = d.whole(ctx, parent, add, tag, labels, name)
	return derivedImage{id, true}, err
}

// whole makes one image of parent's files and ours, through this process.
func (d *Driver) whole(ctx context.Context, parent engine.Image, add layer, tag string, labels map[string]string, name string) (id string, err error) {
	from, err := d.engine.Export(ctx, parent.ID, name+"-image", map[string]string{labelStore: d.store.ID(), labelExport: parent.ID}, maxParent)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(join(w, from, add))
	}()
	defer func() { <-done }()
	defer r.Close() //nolint:errcheck // it ends the other one
	return d.engine.Import(ctx, tag, labels, r)
}

// join writes the files of an archive, and those of a layer in the place of its
// own of the same names, as one: engines take no name twice.
//
// Security: the archive is as hostile as its image, and only passed on: the
// engine unpacks it, as it did the image.
func join(w io.Writer, archive io.Reader, add layer) error {
	ours := map[string]bool{}
	for in := tar.NewReader(bytes.NewReader(add.data)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		ours[path.Clean("/"+h.Name)] = true
	}
	out := tar.NewWriter(w)
	// What the image has in its /etc stays there, if that is a directory.
	theirs := func(h *tar.Header) bool {
		name := path.Clean("/" + h.Name)
		if name == "/etc" && h.Typeflag == tar.TypeDir {
			delete(ours, name)
		}
		return !ours[name]
	}
	if err := copyFiles(out, archive, theirs); err != nil {
		return err
	}
	err := copyFiles(out, bytes.NewReader(add.data), func(h *tar.Header) bool { return ours[path.Clean("/"+h.Name)] })
	return errors.Join(err, out.Close())
}

func copyFiles(out *tar.Writer, archive io.Reader, wanted func(*tar.Header) bool) error {
	for in := tar.NewReader(archive); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !wanted(h) {
			continue
		}
		h.Format = tar.FormatUnknown // as it needs
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil { //nolint:gosec // bounded by whoever gives the archive
			return err
		}
	}
}

// removeDerived removes images that no sandbox will be made from any more: of
// another agent, or of an image that has gone. containers are the store's.
func (d *Driver) removeDerived(ctx context.Context, containers []engine.Listed) {
	for _, c := range containers {
		if c.Labels[labelExport] != "" && time.Since(c.Created) > exportFor {
			d.engine.Remove(ctx, c.ID) //nolint:errcheck // the next sweep tries again
		}
	}
	binary, err := box.FindAgent(d.o.Name, d.o.Agent)
	if err != nil {
		return
	}
	list, err := d.imagesMade(ctx)
	if err != nil || len(list) == 0 {
		return
	}
	now, err := d.layerNow(ctx, binary)
	if err != nil {
		return
	}
	for _, img := range list {
		_, err := d.engine.Image(ctx, img.Labels[labelParent])
		if img.Labels[labelLayer] == now && backend.KindOf(err) != backend.ErrNotFound {
			continue
		}
		d.removeUnused(ctx, img, containers) //nolint:errcheck // the next sweep tries again
	}
}

// layerNow is the hash of the layer that an agent makes here.
func (d *Driver) layerNow(ctx context.Context, binary string) (string, error) {
	info, err := d.Info(ctx)
	if err != nil {
		return "", err
	}
	uid := (&maker{d: d, info: info}).commonUID()
	key, err := fileKey(binary)
	if err != nil {
		return "", err
	}
	key += fmt.Sprintf(" %d", uid)
	d.mu.Lock()
	known := d.layer
	d.mu.Unlock()
	if known.key == key {
		return known.hash, nil
	}
	l, err := layerOf(binary, uid)
	if err != nil {
		return "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.layer = layerHash{key, l.hash}
	return l.hash, nil
}

// RemoveDerived removes every image of ours that no container uses; the next
// sandbox makes its own again.
func (d *Driver) RemoveDerived(ctx context.Context) error {
	if !d.o.Remote || d.store == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	containers, err := d.engine.List(ctx, labelStore, d.store.ID())
	if err != nil {
		return err
	}
	list, err := d.imagesMade(ctx)
	for _, img := range list {
		err = errors.Join(err, d.removeUnused(ctx, img, containers))
	}
	return err
}

func (d *Driver) imagesMade(ctx context.Context) ([]engine.Image, error) {
	list, err := d.engine.Images(ctx, labelStore, d.store.ID())
	return slices.DeleteFunc(list, func(i engine.Image) bool { return i.Labels[labelParent] == "" }), err
}

// removeUnused removes an image unless a container uses it.
func (d *Driver) removeUnused(ctx context.Context, img engine.Image, containers []engine.Listed) error {
	if slices.ContainsFunc(containers, func(c engine.Listed) bool { return c.ImageID == img.ID }) {
		return nil
	}
	d.derived.forget()
	name := img.ID
	if len(img.Tags) > 0 {
		name = cmp.Or(img.Tags[0], name)
	}
	err := d.engine.RemoveImage(ctx, name)
	if backend.KindOf(err) == backend.ErrConflict {
		return nil // somebody has just begun to
	}
	return err
}
