package image

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// templatePrefix begins the names of images that were built for a template of
// the user's.
const templatePrefix = "template-"

// Spec is a template as it is configured. One of Rootfs, Image and Dockerfile
// is set.
type Spec struct {
	Name       string
	Rootfs     string // a built image's name, or a directory's absolute path
	Image      string // of a container engine
	Dockerfile string // its absolute path
	// Context is the directory of the files that a Dockerfile copies; "" is its
	// own.
	Context string
	// Apt, Pip and NPM are packages to be added.
	Apt, Pip, NPM []string
	// Config is what holds for every command.
	Config Config
	Ready  Ready
	// Root asks for a root with capabilities, where the level allows it.
	Root bool
}

// Ready says when what a template starts is ready: when a command line for sh
// succeeds, or a port is open. The zero value is at once.
type Ready struct {
	Command string `json:"command,omitempty"`
	Port    int    `json:"port,omitempty"`
	// Timeout and Interval are those of backend.Startup.
	Timeout  time.Duration `json:"timeout,omitempty"`
	Interval time.Duration `json:"interval,omitempty"`
}

// Template is what a driver makes a sandbox from.
type Template struct {
	Name string
	// Rootfs is a directory that holds the root file system, which nobody may
	// write to; "" when there is only an engine's image.
	Rootfs string
	// Image is what a container engine knows it by; "" when there is only a
	// directory.
	Image string
	// Built is the image of the store that Rootfs and Image are, nil for
	// others. Hold it for as long as a sandbox uses Rootfs.
	Built  *Image
	Config Config
	Ready  Ready
	Root   bool
}

// Standards are the templates that are there without being configured.
func Standards() []Spec {
	var out []Spec
	for _, name := range Standard() {
		out = append(out, Spec{Name: name, Rootfs: name})
	}
	return out
}

// ImageName is the name of the image in the store that s is made from; "" when
// s is a directory.
func (s Spec) ImageName() string {
	switch {
	case filepath.IsAbs(s.Rootfs):
		return ""
	case s.Rootfs != "" && !s.changes():
		return s.Rootfs
	default:
		return templatePrefix + s.Name
	}
}

// changes tells whether s adds something to what it is made from.
func (s Spec) changes() bool { return len(s.Apt)+len(s.Pip)+len(s.NPM) > 0 || s.Dockerfile != "" }

// PlainImage tells whether an engine's image is all there is, so that only a
// driver that uses that engine can use it as it is.
func (s Spec) PlainImage() bool { return s.Image != "" && !s.changes() }

// Resolve finds what the template is made from now. What has to be built first
// is ErrNotFound, with the command that builds it.
func (s *Store) Resolve(spec Spec) (Template, error) {
	t := Template{Name: spec.Name, Config: spec.Config, Ready: spec.Ready, Root: spec.Root}
	if filepath.IsAbs(spec.Rootfs) {
		t.Rootfs = spec.Rootfs
		return t, nil
	}
	img, err := s.Get(spec.ImageName())
	switch {
	case err == nil:
		t.Rootfs, t.Image, t.Built = img.Rootfs(), img.Ref(), &img
		t.Config = spec.Config.over(img.Config)
	case !errors.Is(err, backend.ErrNotFound):
		return t, err
	case !spec.PlainImage():
		return t, notBuilt(spec)
	}
	if spec.PlainImage() {
		t.Image = spec.Image
	}
	return t, nil
}

// NeedRootfs is the refusal of a driver that cannot use an engine's image.
func (t Template) NeedRootfs() error {
	if t.Rootfs != "" {
		return nil
	}
	return notBuilt(Spec{Name: t.Name, Image: t.Image})
}

func notBuilt(spec Spec) error {
	build, what := spec.Name, "the template "+spec.Name+" is not built"
	if !spec.changes() && spec.Image == "" {
		build, what = spec.Rootfs, fmt.Sprintf("the image %s, which the template %s is made from, is not built", spec.Rootfs, spec.Name)
	}
	return &backend.Error{
		Op: "create", Kind: backend.ErrNotFound, Field: "template", Err: errors.New(what),
		Fix: "run: glovebox image build " + build,
	}
}

// over is c with what it leaves open taken from base.
func (c Config) over(base Config) Config {
	env := maps.Clone(base.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, c.Env)
	if len(env) == 0 {
		env = nil
	}
	out := Config{Env: env, WorkDir: c.WorkDir, User: c.User, Start: slices.Clone(c.Start)}
	if out.WorkDir == "" {
		out.WorkDir = base.WorkDir
	}
	if out.User == "" {
		out.User = base.User
	}
	if len(out.Start) == 0 {
		out.Start = slices.Clone(base.Start)
	}
	return out
}
