// Package image builds, keeps and names the root file systems that sandboxes
// are made from: Debian images from packages, added packages and the steps of a
// user's template on top, all kept unpacked in one store.
package image

import (
	"context"
	"io"
	"runtime"
	"time"
)

// Image is one version of an image in a store. It never changes.
type Image struct {
	Name string `json:"name"`
	// Hash is the SHA-256 of its tar archive: the same package versions give
	// the same.
	Hash string `json:"hash"`
	// Definition is the hash of what it was built of; a definition with
	// another one is built anew.
	Definition string    `json:"definition"`
	About      string    `json:"about,omitempty"`
	Suite      string    `json:"suite,omitempty"`
	Arch       string    `json:"arch"`
	Created    time.Time `json:"created"`
	Size       int64     `json:"size"` // bytes of its files
	Files      int       `json:"files"`
	// Packages are Debian packages with their versions.
	Packages []Package `json:"packages,omitempty"`
	// Config is what the template's steps set for every command.
	Config Config `json:"config,omitzero"`

	// Current tells that this is what the name means now.
	Current bool `json:"-"`
	// Dir holds rootfs, rootfs.tar.gz and image.json.
	Dir string `json:"-"`
}

// Package is a Debian package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Config is what an image says of the commands that run in it.
type Config struct {
	Env     map[string]string `json:"env,omitempty"`
	WorkDir string            `json:"workdir,omitempty"`
	User    string            `json:"user,omitempty"`
	// Start is the command that a sandbox starts with, with its arguments.
	Start []string `json:"start,omitempty"`
}

// Short is the beginning of the hash that people and Docker use.
func (i Image) Short() string { return i.Hash[:min(len(i.Hash), shortHash)] }

// Ref is the image's name in Docker.
func (i Image) Ref() string { return "glovebox/" + i.Name + ":" + i.Short() }

// Labels are what the image carries in Docker.
func (i Image) Labels() map[string]string {
	return map[string]string{
		"dev.glovebox.image": i.Name, "dev.glovebox.image.hash": i.Hash, "dev.glovebox.image.definition": i.Definition,
	}
}

const shortHash = 12

// Importer brings images into a container engine; internal/engine has one.
type Importer interface {
	// Exists tells whether the engine has ref.
	Exists(ctx context.Context, ref string) (bool, error)
	// Import makes ref of a plain tar archive.
	Import(ctx context.Context, tar io.Reader, ref string, labels map[string]string) (id string, err error)
	// Remove removes ref; one that is not there is no error.
	Remove(ctx context.Context, ref string) error
}

// Exporter gives the file system of an engine's image as a tar archive, pulled
// when it is missing, and what the image says of its commands. The caller
// closes the archive.
type Exporter interface {
	Export(ctx context.Context, ref string) (tar io.ReadCloser, cfg Config, err error)
}

// Progress is what is being done now.
type Progress struct {
	Image string `json:"image"`
	Phase string `json:"phase"`          // waiting, downloading, installing, packing, importing, …
	Item  string `json:"item,omitempty"` // the package
	Done  int    `json:"done,omitempty"`
	Total int    `json:"total,omitempty"` // 0: not known
}

// architecture is this machine's, as Debian calls it.
func architecture() string {
	switch runtime.GOARCH {
	case "arm":
		return "armhf"
	case "386":
		return "i386"
	default:
		return runtime.GOARCH
	}
}
