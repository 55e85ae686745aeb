//go:build linux

package dockerbox

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/image"
)

// standardTemplate is what sandboxes without a template are made from.
const standardTemplate = "base"

// chosen is the engine's image that a sandbox is made from.
type chosen struct {
	engine.Image
	// ours: glovebox built it. That goes by where its name comes from, since
	// anybody's image can carry any label.
	ours bool
}

// image is the engine's image of a template. One that glovebox has built and
// the engine does not have yet is brought in, unless only looked for.
func (d *Driver) image(ctx context.Context, template string, bring bool) (chosen, error) {
	ref, named := d.o.Templates[template]
	if template == "" && !named {
		ref, named = d.o.Image, d.o.Image != ""
	}
	if named {
		img, err := d.named(ctx, ref, bring)
		if err == nil {
			err = d.runs(ref, img)
		}
		return chosen{Image: img}, err
	}
	if name, ok := d.o.Built[template]; ok {
		img, err := d.standard(ctx, image.Spec{Name: template, Rootfs: name}, bring)
		// The steps of somebody's template are in others.
		return chosen{img, slices.Contains(image.Standard(), name)}, err
	}
	name := template
	if name == "" {
		name = standardTemplate
	}
	for _, s := range image.Standards() {
		if s.Name == name {
			img, err := d.standard(ctx, s, bring)
			return chosen{img, true}, err
		}
	}
	return chosen{}, &backend.Error{
		Op: "create", Kind: backend.ErrNotFound, Backend: d.o.Name, Field: "template",
		Err: fmt.Errorf("there is no template %q", template), Fix: "name it in templates",
	}
}

// account is what an image says commands run as where spec says nothing.
func (d *Driver) account(spec backend.Spec, img chosen) (string, error) {
	if spec.User != "" {
		return "", nil
	}
	return box.Account(d.o.Name, "user", img.User)
}

// named is an image by the engine's own name, pulled when it is missing.
func (d *Driver) named(ctx context.Context, ref string, bring bool) (engine.Image, error) {
	img, err := d.engine.Image(ctx, ref)
	if backend.KindOf(err) != backend.ErrNotFound || !bring {
		return img, err
	}
	if perr := d.engine.Pull(ctx, ref, nil); perr != nil {
		return img, perr
	}
	return d.engine.Image(ctx, ref)
}

// runs refuses an image of another machine: the agent would start in it, and
// nothing else.
func (d *Driver) runs(ref string, img engine.Image) error {
	if (img.OS == "" || img.OS == "linux") && (img.Arch == "" || img.Arch == runtime.GOARCH) {
		return nil
	}
	return d.refuse(backend.ErrInvalid, "template", fmt.Sprintf("the image %s is for %s on %s, this machine is %s on linux",
		ref, box.Sanitize(img.Arch), box.Sanitize(img.OS), runtime.GOARCH), "pull or build it for linux/"+runtime.GOARCH)
}

// standard is an image of glovebox's own.
func (d *Driver) standard(ctx context.Context, s image.Spec, bring bool) (engine.Image, error) {
	t, err := d.images.Resolve(s)
	if err != nil {
		return engine.Image{}, unavailable(err)
	}
	if t.Built == nil || t.Image == "" {
		return engine.Image{}, d.refuse(backend.ErrUnavailable, "template", "the image is not one for an engine", "run: glovebox image build "+s.Name)
	}
	img, err := d.engine.Image(ctx, t.Image)
	if backend.KindOf(err) != backend.ErrNotFound {
		return img, err
	}
	if !bring {
		return engine.Image{}, nil
	}
	if err := d.bring(ctx, *t.Built); err != nil {
		return engine.Image{}, err
	}
	return d.engine.Image(ctx, t.Image)
}

// bring gives the engine an image of the store.
func (d *Driver) bring(ctx context.Context, img image.Image) error {
	hold, err := d.images.Hold(img)
	if err != nil {
		return err
	}
	defer hold.Close() //nolint:errcheck // a lock
	f, err := img.Archive()
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = d.engine.Import(ctx, img.Ref(), img.Labels(), f)
	return err
}

// unavailable is what a missing image of ours means for a choice of backends:
// another one may do.
func unavailable(err error) error {
	if be, ok := err.(*backend.Error); ok && be.Kind == backend.ErrNotFound { //nolint:errorlint // its own, unwrapped
		e := *be
		e.Kind = backend.ErrUnavailable
		return &e
	}
	return err
}
