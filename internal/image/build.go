package image

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// needBytes is what a build takes on the disk, at the least.
const needBytes = 1 << 30

// BuildOptions says how images are built.
type BuildOptions struct {
	// Refresh builds though the image is there, for newer packages.
	Refresh bool
	// Sources are lines of apt's sources.list; empty: the host's own archive.
	Sources []string
	// Progress is told what is being done. It may be nil.
	Progress func(Progress)
	// Importer gets the image as well. It may be nil.
	Importer Importer

	mmdebstrap string // for tests
}

func (o BuildOptions) report(p Progress) {
	if o.Progress != nil {
		o.Progress(p)
	}
}

// Build makes sure that the store, and the engine if there is one, have the
// image of d, and tells whether it had to be built. Of several builders of one
// image one builds and the others wait. When it returns, no process, mount or
// file of the build is left but the image.
func (s *Store) Build(ctx context.Context, d Definition, opts BuildOptions) (img Image, built bool, err error) {
	if err := d.check(); err != nil {
		return Image{}, false, err
	}
	want, err := d.Hash()
	if err != nil {
		return Image{}, false, err
	}
	img = Image{Name: d.Name, Definition: want, About: d.About, Suite: d.Suite}
	img, built, err = s.made(ctx, img, opts, func(st *stage, _ *Image, consume func(io.Reader) error) error {
		b := &debstrap{program: opts.mmdebstrap, sources: opts.Sources, report: opts.report, scratch: st.scratch}
		if b.program == "" {
			b.program = "mmdebstrap"
		}
		return b.run(ctx, d, consume)
	})
	if err != nil {
		return Image{}, false, err
	}
	return img, built, imported(ctx, img, opts)
}

// made is the image with img's name and definition, and whether there was none
// yet: then give passes its archive to consume, and may use the stage and set
// what is known of the image.
func (s *Store) made(
	ctx context.Context, img Image, opts BuildOptions, give func(st *stage, img *Image, consume func(io.Reader) error) error,
) (Image, bool, error) {
	if got, ok := s.have(img.Name, img.Definition, opts); ok {
		return got, false, nil
	}
	began := time.Now()
	lock, err := s.lock(ctx, img.Name, func() { opts.report(Progress{Image: img.Name, Phase: "waiting for another build of it"}) })
	if err != nil {
		return Image{}, false, err
	}
	defer lock.Close() //nolint:errcheck // nothing was written
	// Whoever had the lock may have built it, freshly enough for a refresh.
	got, err := s.Get(img.Name)
	if err == nil && got.Definition == img.Definition && (!opts.Refresh || got.Created.After(began)) {
		return got, false, nil
	}
	st, err := s.stage()
	if err != nil {
		return Image{}, false, err
	}
	defer st.discard()
	if err := st.hasSpace(); err != nil {
		return Image{}, false, err
	}
	img.Created, img.Arch = time.Now().UTC(), architecture()
	if err := give(st, &img, func(r io.Reader) error { return st.take(ctx, r, &img) }); err != nil {
		return Image{}, false, err
	}
	if img.Hash == "" {
		return Image{}, false, errShort
	}
	if img.Packages, err = installedPackages(filepath.Join(st.dir, rootfsName)); err != nil {
		return Image{}, false, err
	}
	if ctx.Err() != nil {
		return Image{}, false, ctx.Err()
	}
	opts.report(Progress{Image: img.Name, Phase: "writing to disk"})
	img, err = st.commit(img)
	return img, err == nil, err
}

func (st *stage) hasSpace() error {
	for _, dir := range []string{st.dir, st.scratch} {
		if free, known := freeBytes(dir); known && free < needBytes {
			return &backend.Error{
				Op: "image", Kind: backend.ErrCapacity, Err: fmt.Errorf("%s has %d MiB left and a build takes %d", filepath.Dir(dir), free>>20, needBytes>>20),
				Fix: "free some space there, or set TMPDIR and GLOVEBOX_STATE_DIR to directories on a larger disk",
			}
		}
	}
	return nil
}

func (s *Store) have(name, definition string, opts BuildOptions) (Image, bool) {
	if opts.Refresh {
		return Image{}, false
	}
	img, err := s.Get(name)
	return img, err == nil && img.Definition == definition
}

// imported sees that the engine has img.
func imported(ctx context.Context, img Image, opts BuildOptions) error {
	if opts.Importer == nil {
		return nil
	}
	if ok, err := opts.Importer.Exists(ctx, img.Ref()); err != nil || ok {
		return err
	}
	opts.report(Progress{Image: img.Name, Phase: "importing into the engine"})
	f, err := img.Archive()
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = opts.Importer.Import(ctx, f, img.Ref(), img.Labels())
	return err
}

// errShort is an archive that ends too early, since its maker failed.
var errShort = errors.New("the archive is not complete")

// take unpacks an archive into the stage, keeps it compressed, and notes its
// hash and size in img.
func (st *stage) take(ctx context.Context, r io.Reader, img *Image) error {
	f, err := os.OpenFile(filepath.Join(st.dir, archiveName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return diskError("keep the archive", err)
	}
	defer f.Close() //nolint:errcheck // closed below where it matters
	gz, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		return err
	}
	sum := sha256.New()
	tee := &forked{r: bufio.NewReaderSize(r, 1<<20), hash: sum, gz: gz}
	got, err := unpack(ctx, tee, filepath.Join(st.dir, rootfsName))
	if tee.err != nil {
		return diskError("keep the archive", tee.err)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case isNoSpace(err):
		return diskError("unpack the image", err)
	case errors.Is(err, io.ErrUnexpectedEOF), err == nil && got.files == 0:
		return errShort
	case err != nil:
		return err
	}
	if err := errors.Join(gz.Close(), f.Close()); err != nil {
		return diskError("keep the archive", err)
	}
	img.Hash, img.Size, img.Files = hex.EncodeToString(sum.Sum(nil)), got.bytes, got.files
	return nil
}

// forked passes on what it reads and writes it to a hash and an archive.
type forked struct {
	r    io.Reader
	hash hash.Hash
	gz   io.Writer
	err  error // of writing
}

func (t *forked) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.hash.Write(p[:n])
	if _, werr := t.gz.Write(p[:n]); werr != nil {
		t.err = werr
		return 0, werr
	}
	return n, err
}

// installedPackages reads dpkg's list.
func installedPackages(rootfs string) ([]Package, error) {
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return nil, diskError("read the package list", err)
	}
	defer root.Close() //nolint:errcheck // it was only a handle
	f, err := root.Open("var/lib/dpkg/status")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // no Debian
	}
	if err != nil {
		return nil, diskError("read the package list", err)
	}
	defer f.Close() //nolint:errcheck // read side
	var out []Package
	var p Package
	sc := bufio.NewScanner(io.LimitReader(f, 64<<20))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		if v, ok := strings.CutPrefix(sc.Text(), "Package: "); ok {
			p.Name = v
		}
		if v, ok := strings.CutPrefix(sc.Text(), "Version: "); ok {
			p.Version = v
			out = append(out, p)
		}
	}
	return out, sc.Err()
}
