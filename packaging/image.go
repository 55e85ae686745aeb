//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/image"
)

// labelHash is what an image of glovebox was made of; one that is made of
// something else is made anew.
const labelHash = "dev.glovebox.package"

// userID is the account named user of the image base.
const userID = 1000

// start is how the image's containers start. Security: not as root, which a
// sandbox needs only where it is given more.
func start() engine.Start {
	return engine.Start{Entrypoint: []string{"/usr/bin/glovebox"}, User: "user", Dir: "/home/user"}
}

// bundle is what the image is made of.
type bundle struct {
	base  image.Image
	files []file
	hash  string
}

// file is one that is added to the base, or with a name that ends in a slash a
// directory.
type file struct {
	name  string
	mode  fs.FileMode
	owner int
	path  string // on this host, or
	data  []byte
}

// newBundle gathers what the image is made of; bin holds the programs.
func newBundle(base image.Image, bin string) (*bundle, error) {
	profile, err := hostProfile()
	if err != nil {
		return nil, err
	}
	p := &bundle{base: base, files: []file{
		{name: "usr/bin/glovebox", mode: 0o755, path: filepath.Join(bin, "glovebox")},
		{name: "usr/bin/glovebox-agent", mode: 0o755, path: filepath.Join(bin, "glovebox-agent")},
		{name: "usr/share/glovebox/", mode: 0o755},
		{name: "usr/share/glovebox/seccomp.json", mode: 0o644, data: profile},
		// Where state lies, of root and of user: a volume that is mounted there
		// takes the owner from here.
		{name: "var/lib/glovebox/", mode: 0o700},
		{name: "home/user/.local/", mode: 0o755, owner: userID},
		{name: "home/user/.local/state/", mode: 0o755, owner: userID},
		{name: "home/user/.local/state/glovebox/", mode: 0o700, owner: userID},
	}}
	sum := sha256.New()
	fmt.Fprintf(sum, "%s %+v\n", base.Hash, start())
	for _, f := range p.files {
		fmt.Fprintf(sum, "%s %v %d %d\n", f.name, f.mode, f.owner, len(f.data))
		r, err := f.open()
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(sum, r)
		r.Close()
		if err != nil {
			return nil, err
		}
	}
	p.hash = hex.EncodeToString(sum.Sum(nil))
	return p, nil
}

func (f file) open() (io.ReadCloser, error) {
	if f.path == "" {
		return io.NopCloser(bytes.NewReader(f.data)), nil
	}
	r, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w; run: make build", err)
	}
	return r, err
}

// makeImage makes the image tag unless the engine has it as it should be.
func (p *bundle) makeImage(ctx context.Context, e *engine.Engine, tag string) error {
	old, err := e.Image(ctx, tag)
	if err != nil && !errors.Is(err, backend.ErrNotFound) {
		return err
	}
	if old.Labels[labelHash] == p.hash {
		return nil
	}
	if old.ID != "" && old.Labels[labelHash] == "" {
		return fmt.Errorf("the engine has another image named %s, which was not made here", tag)
	}
	if err := p.importAs(ctx, e, tag); err != nil {
		return err
	}
	// The one before would stay without a name. Containers may still use it, and
	// the engine then keeps it.
	if old.ID != "" && len(old.Tags) == 1 {
		if err := e.RemoveImage(ctx, old.ID); err != nil && !errors.Is(err, backend.ErrConflict) {
			return err
		}
	}
	return nil
}

func (p *bundle) importAs(ctx context.Context, e *engine.Engine, tag string) error {
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.CloseWithError(p.write(w))
	}()
	defer func() {
		r.Close() //nolint:errcheck // it never fails, and ends the writer
		<-done
	}()
	_, err := e.ImportStart(ctx, tag, map[string]string{labelHash: p.hash}, start(), r)
	return err
}

// write writes the image's root file system as a tar archive.
func (p *bundle) write(w io.Writer) error {
	archive, err := p.base.Archive()
	if err != nil {
		return err
	}
	defer archive.Close()
	r, out := tar.NewReader(archive), tar.NewWriter(w)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, r); err != nil { //nolint:gosec // an archive of our own store
			return err
		}
	}
	for _, f := range p.files {
		if err := f.write(out); err != nil {
			return err
		}
	}
	return out.Close()
}

func (f file) write(out *tar.Writer) error {
	r, err := f.open()
	if err != nil {
		return err
	}
	defer r.Close()
	h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: int64(f.mode), Uid: f.owner, Gid: f.owner, Size: int64(len(f.data))}
	if strings.HasSuffix(f.name, "/") {
		h.Typeflag = tar.TypeDir
	}
	if opened, ok := r.(*os.File); ok {
		info, err := opened.Stat()
		if err != nil {
			return err
		}
		h.Size = info.Size()
	}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(out, r)
	return err
}

// defaultTag is the image's name by the version of the programs in bin.
func defaultTag(ctx context.Context, bin string) (string, error) {
	program, err := filepath.Abs(filepath.Join(bin, "glovebox"))
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, program, "version", "--json").Output()
	if err != nil {
		return "", fmt.Errorf("%w; run: make build", err)
	}
	var version struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(out, &version); err != nil {
		return "", err
	}
	// A version's plus sign cannot be part of a tag.
	return "glovebox/glovebox:" + strings.ReplaceAll(version.Version, "+", "-"), nil
}
