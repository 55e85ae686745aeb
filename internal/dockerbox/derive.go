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
	"slices"
	"strings"
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
	labelLayer  = "dev.glovebox.layer"  // what was added
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
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := errors.Join(addFiles(w, agent, uid), w.Close()); err != nil {
		return layer{}, err
	}
	sum := sha256.Sum256(buf.Bytes())
	return layer{buf.Bytes(), hex.EncodeToString(sum[:16])}, nil
}

// addFiles writes what a sandbox needs in its root. Directories come with it:
// engines make missing ones that only root can enter.
func addFiles(w *tar.Writer, agent []byte, uid int) error {
	passwd, group := launch.Accounts(backend.DefaultHome, uid)
	binary := strings.TrimPrefix(launch.ContainedBinary, "/")
	for _, f := range []struct {
		name string
		mode int64
		data []byte
	}{
		{binary[:strings.LastIndexByte(binary, '/')+1], 0o755, nil},
		{binary, 0o555, agent},
		{"etc/", 0o755, nil},
		{"etc/passwd", 0o644, passwd},
		{"etc/group", 0o644, group},
	} {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(f.data); err != nil {
			return err
		}
	}
	return nil
}

// derive is the ID of the sandbox's image with the agent in it, made when it is
// not there.
func (m *maker) derive(ctx context.Context) (string, error) {
	var err error
	if m.binary, err = box.FindAgent(m.d.o.Name, m.d.o.Agent); err != nil {
		return "", err
	}
	// One at a time: the others find what the first has made.
	select {
	case m.d.deriving <- struct{}{}:
		defer func() { <-m.d.deriving }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	key, err := fileKey(m.binary)
	if err != nil {
		return "", err
	}
	key += fmt.Sprintf(" %s %d", m.img.ID, m.user)
	m.d.mu.Lock()
	id := m.d.derived[key]
	m.d.mu.Unlock()
	if id != "" {
		return id, nil
	}
	add, err := layerOf(m.binary, m.user)
	if err != nil {
		return "", err
	}
	if id, err = m.d.withLayer(ctx, m.img.Image, add, m.Name); err != nil {
		return "", err
	}
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	if m.d.derived == nil {
		m.d.derived = map[string]string{}
	}
	m.d.derived[key] = id
	return id, nil
}

// fileKey names a file's content, as far as a look at it can.
func fileKey(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fmt.Sprintf("%d %d %d %d.%09d", st.Dev, st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec), nil
}

// forget has an image that has gone looked for again.
func (d *Driver) forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, v := range d.derived {
		if v == id {
			delete(d.derived, k)
		}
	}
}

// withLayer is an image of parent with a layer of ours. Engines that take no
// single layer get all of it in one.
func (d *Driver) withLayer(ctx context.Context, parent engine.Image, add layer, name string) (string, error) {
	sum := sha256.Sum256([]byte(parent.ID + " " + add.hash))
	tag := "glovebox-agent/" + d.store.ID() + ":" + hex.EncodeToString(sum[:12])
	labels := map[string]string{labelStore: d.store.ID(), labelParent: parent.ID, labelLayer: add.hash}
	have, err := d.engine.Image(ctx, tag)
	if err == nil && have.Labels[labelStore] == d.store.ID() && have.Labels[labelParent] == parent.ID && have.Labels[labelLayer] == add.hash {
		return have.ID, nil
	}
	if err != nil && backend.KindOf(err) != backend.ErrNotFound {
		return "", err
	}
	id, err := d.engine.Derive(ctx, parent, tag, labels, add.data)
	switch backend.KindOf(err) {
	case backend.ErrUnsupported, backend.ErrInvalid, backend.ErrNotFound:
		return d.whole(ctx, parent, add, tag, labels, name)
	}
	return id, err
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
		w.CloseWithError(join(w, from, add)) //nolint:errcheck // the reader has it
	}()
	defer func() { <-done }()
	defer r.Close() //nolint:errcheck // it ends the other one
	return d.engine.Import(ctx, tag, labels, r)
}

// join writes the files of an archive, and then those of a layer, as one.
//
// Security: the archive is as hostile as its image, and only passed on: the
// engine unpacks it, as it did the image. What comes later wins.
func join(w io.Writer, archive io.Reader, add layer) error {
	out := tar.NewWriter(w)
	for _, from := range []io.Reader{archive, bytes.NewReader(add.data)} {
		in := tar.NewReader(from)
		for {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
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
	return out.Close()
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
	list, err := d.derivedImages(ctx)
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
	m := maker{Birth: &box.Birth{Store: d.store}, d: d, info: info}
	m.identities()
	key, err := fileKey(binary)
	if err != nil {
		return "", err
	}
	key += fmt.Sprintf(" %d", m.user)
	d.mu.Lock()
	known := d.layer
	d.mu.Unlock()
	if known.key == key {
		return known.hash, nil
	}
	l, err := layerOf(binary, m.user)
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
	list, err := d.derivedImages(ctx)
	for _, img := range list {
		err = errors.Join(err, d.removeUnused(ctx, img, containers))
	}
	return err
}

func (d *Driver) derivedImages(ctx context.Context) ([]engine.Image, error) {
	list, err := d.engine.Images(ctx, labelStore, d.store.ID())
	return slices.DeleteFunc(list, func(i engine.Image) bool { return i.Labels[labelParent] == "" }), err
}

// removeUnused removes an image unless a container uses it.
func (d *Driver) removeUnused(ctx context.Context, img engine.Image, containers []engine.Listed) error {
	if slices.ContainsFunc(containers, func(c engine.Listed) bool { return c.ImageID == img.ID }) {
		return nil
	}
	d.forget(img.ID)
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
