package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/image/dockerfile"
)

// basePrefix begins the names of images that templates are built on.
const basePrefix = "base-of-"

// TemplateOptions says how a template is built.
type TemplateOptions struct {
	BuildOptions
	// Runner runs the steps; nil refuses a template that has some. It is asked
	// for with the base once that is known.
	Runner func(ctx context.Context, base Template) (StepRunner, func() error, error)
	// NoRunner is why Runner is nil.
	NoRunner string
	// Exporter gives engines' images; nil refuses a template of one.
	Exporter Exporter
}

// BuildTemplate makes sure that what a template is made from is there, and
// tells whether something had to be built. A template that is a directory needs
// nothing, and the zero Image is returned.
func (s *Store) BuildTemplate(ctx context.Context, spec Spec, opts TemplateOptions) (img Image, built bool, err error) {
	if spec.ImageName() == "" {
		return Image{}, false, nil
	}
	if spec.Rootfs != "" && spec.Dockerfile == "" && len(spec.Pip)+len(spec.NPM) == 0 {
		d, err := spec.define(spec.ImageName())
		if err != nil {
			return Image{}, false, err
		}
		return s.Build(ctx, d, opts.BuildOptions)
	}
	p, err := s.plan(ctx, spec, opts)
	if err != nil {
		return Image{}, false, err
	}
	defer p.close()
	if len(p.file.Steps) > 0 && opts.Runner == nil {
		return Image{}, false, noRunner(spec, opts.NoRunner)
	}
	return s.buildOn(ctx, spec, p, opts)
}

func noRunner(spec Spec, why string) error {
	if why == "" {
		why = "there is no gVisor backend here"
	}
	return &backend.Error{
		Op: "image", Kind: backend.ErrUnsupported, Field: "template",
		Err: fmt.Errorf("the template %s has steps, which run in gVisor only: %s", spec.Name, why),
		Fix: "install runsc and see: glovebox doctor",
	}
}

// define is the definition of a built image with what apt adds to it.
func (s Spec) define(name string) (Definition, error) {
	d, err := Define(s.Rootfs)
	if err != nil {
		return d, err
	}
	apt := slices.Clone(s.Apt)
	if len(s.NPM) > 0 {
		apt = append(apt, "npm")
	}
	if len(s.Pip) > 0 {
		apt = append(apt, "python3-pip")
	}
	apt = slices.DeleteFunc(apt, func(p string) bool { return slices.Contains(d.Packages, p) })
	if len(apt) == 0 && len(s.Apt) == 0 {
		return d, nil
	}
	return d.With(name, apt...)
}

// plan is what has to be done on which base.
type plan struct {
	base  Image
	file  dockerfile.File
	files *dockerfile.Context
	hash  string
}

func (p *plan) close() {
	if p.files != nil {
		p.files.Close() //nolint:errcheck // it was only a handle
	}
}

func (s *Store) plan(ctx context.Context, spec Spec, opts TemplateOptions) (p *plan, err error) {
	p = &plan{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	from := spec
	if spec.Dockerfile != "" {
		if err := p.read(spec); err != nil {
			return p, err
		}
		from = Spec{Name: spec.Name, Image: p.file.From}
		if slices.Contains(Standard(), p.file.From) {
			from.Rootfs, from.Image = p.file.From, ""
		}
	}
	if p.base, err = s.base(ctx, from, opts); err != nil {
		return p, err
	}
	p.file.Steps = append(p.file.Steps, spec.packageSteps(from.Image == "" && spec.Dockerfile == "")...)
	p.hash, err = dockerfile.Hash(p.base.Hash, p.file, p.files)
	return p, err
}

// read reads the Dockerfile and opens its context.
func (p *plan) read(spec Spec) error {
	name, dir := spec.Dockerfile, spec.Context
	if dir == "" {
		dir = filepath.Dir(name)
	}
	f, err := os.Open(name)
	if err != nil {
		return invalid("dockerfile", err)
	}
	defer f.Close() //nolint:errcheck // read side
	if p.file, err = dockerfile.Parse(f, nil); err != nil {
		return invalid("dockerfile", fmt.Errorf("%s: %w", name, err))
	}
	if p.files, err = dockerfile.OpenContext(dir); err != nil {
		return invalid("dockerfile", err)
	}
	return nil
}

// base is the image that steps start from, built or exported when it is
// missing.
func (s *Store) base(ctx context.Context, from Spec, opts TemplateOptions) (Image, error) {
	if from.Rootfs != "" {
		d, err := from.define(basePrefix + from.Name)
		if err != nil {
			return Image{}, err
		}
		build := opts.BuildOptions
		build.Importer = nil
		img, _, err := s.Build(ctx, d, build)
		return img, err
	}
	if opts.Exporter == nil {
		return Image{}, &backend.Error{
			Op: "image", Kind: backend.ErrUnavailable, Field: "template", Err: fmt.Errorf("%s is an engine's image, and there is no engine", from.Image),
			Fix: "start Docker and see: glovebox doctor",
		}
	}
	sum := sha256.Sum256([]byte("export\n" + from.Image))
	want := hex.EncodeToString(sum[:])
	img, _, err := s.made(ctx, Image{Name: basePrefix + from.Name, Definition: want, About: "exported from " + from.Image}, opts.BuildOptions,
		func(_ *stage, img *Image, consume func(io.Reader) error) error {
			archive, cfg, err := opts.Exporter.Export(ctx, from.Image)
			if err != nil {
				return err
			}
			defer archive.Close()
			img.Config = cfg
			return consume(archive)
		})
	return img, err
}

// buildOn runs the steps on the base.
func (s *Store) buildOn(ctx context.Context, spec Spec, p *plan, opts TemplateOptions) (Image, bool, error) {
	img, built, err := s.made(ctx, Image{Name: spec.ImageName(), Definition: p.hash, About: "template " + spec.Name}, opts.BuildOptions,
		func(_ *stage, img *Image, consume func(io.Reader) error) error {
			img.Config = Config{Env: p.file.Env, WorkDir: p.file.Dir, User: p.file.User, Start: p.file.Start}.over(p.base.Config)
			hold, err := s.Hold(p.base)
			if err != nil {
				return err
			}
			defer hold.Close() //nolint:errcheck // read side
			if len(p.file.Steps) > 0 {
				return p.run(ctx, spec, opts, consume)
			}
			archive, err := p.base.Archive()
			if err != nil {
				return err
			}
			defer archive.Close()
			return consume(archive)
		})
	if err != nil {
		return Image{}, false, err
	}
	return img, built, imported(ctx, img, opts.BuildOptions)
}

func (p *plan) run(ctx context.Context, spec Spec, opts TemplateOptions, consume func(io.Reader) error) (err error) {
	base := Template{
		Name: spec.Name, Rootfs: p.base.Rootfs(), Image: p.base.Ref(), Built: &p.base, Root: true,
		Config: Config{Env: maps.Clone(p.base.Config.Env), WorkDir: p.base.Config.WorkDir},
	}
	runner, end, err := opts.Runner(ctx, base)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	report := func(step, of int, text, line string) {
		opts.report(Progress{Image: spec.ImageName(), Phase: text, Item: line, Done: step - 1, Total: of})
	}
	return runner.RunSteps(ctx, Work{Base: base, Steps: p.file.Steps, Files: p.files, Report: report}, consume)
}

// packageSteps are the steps that add packages. On a built image apt's are in
// it already.
func (s Spec) packageSteps(built bool) []dockerfile.Step {
	var out []dockerfile.Step
	add := func(env map[string]string, args ...string) {
		out = append(out, dockerfile.Step{Text: shortened(strings.Join(args, " ")), Run: args, Env: env, Dir: "/"})
	}
	if len(s.Apt) > 0 && !built {
		const install = `apt-get update && apt-get install -y --no-install-recommends -- "$@" && rm -rf /var/lib/apt/lists/*`
		add(nil, append([]string{"/bin/sh", "-c", install, "apt"}, s.Apt...)...)
	}
	if len(s.Pip) > 0 {
		// Whatever guards a system's own Python is no use in a template.
		env := map[string]string{"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_NO_CACHE_DIR": "1", "PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
		add(env, append([]string{"python3", "-m", "pip", "install", "--"}, s.Pip...)...)
	}
	if len(s.NPM) > 0 {
		add(map[string]string{"NPM_CONFIG_UPDATE_NOTIFIER": "false"}, append([]string{"npm", "install", "--global", "--no-audit", "--no-fund", "--"}, s.NPM...)...)
	}
	return out
}

// shortened is text that fits a line.
func shortened(text string) string {
	const most = 120
	if len(text) <= most {
		return text
	}
	return text[:most-3] + "..."
}
