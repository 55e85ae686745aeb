package builtin

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"slices"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/image"
	"github.com/glovebox-dev/glovebox/internal/registry"
)

// specs are the templates of env in the drivers' terms, the standard ones among
// them.
func specs(env registry.Env) map[string]image.Spec {
	out := map[string]image.Spec{}
	for _, s := range image.Standards() {
		out[s.Name] = s
	}
	for name, t := range env.Templates {
		out[name] = Spec(name, t)
	}
	return out
}

// Spec is a configured template in the drivers' terms.
func Spec(name string, t registry.Template) image.Spec {
	s := image.Spec{
		Name: name, Rootfs: t.Rootfs, Image: t.Image, Dockerfile: t.Dockerfile, Apt: t.Apt, Pip: t.Pip, NPM: t.NPM,
		Config: image.Config{Env: maps.Clone(t.Env), User: t.User, WorkDir: t.WorkDir},
		Ready:  image.Ready{Command: t.Ready, Port: t.ReadyPort, Timeout: t.ReadyTimeout, Interval: t.ReadyInterval},
		Root:   t.Root,
	}
	if t.Start != "" {
		s.Config.Start = shell(t.Start)
	}
	return s
}

func shell(line string) []string { return []string{"/bin/sh", "-c", line} }

// imageStore is where images are. The error is told when one is asked for.
func imageStore() (*image.Store, error) { return image.Default(os.Getenv) }

// storeIn is imageStore for a backend with a state directory of its own.
func storeIn(dir string) func() (*image.Store, error) {
	if dir == "" {
		return imageStore
	}
	return func() (*image.Store, error) { return image.Open(dir), nil }
}

// templated refuses a template that is not built before its driver looks for
// its directory, and adds what the template says to specs.
type templated struct {
	backend.Executor
	specs  map[string]image.Spec
	images func() (*image.Store, error)
	engine string // the driver's name, where sandboxes are made of an engine's images
}

// Unwrap lets backend.As find what the driver can do besides.
func (x *templated) Unwrap() any { return x.Executor }

// Create implements backend.Executor.
func (x *templated) Create(ctx context.Context, spec backend.Spec) (backend.Sandbox, error) {
	spec, err := x.resolve(spec)
	if err != nil {
		return nil, err
	}
	return x.Executor.Create(ctx, spec)
}

// Admit implements backend.Admitter.
func (x *templated) Admit(spec backend.Spec) (backend.Spec, []string, error) {
	full, err := x.resolve(spec)
	if err != nil {
		return spec, nil, err
	}
	var warnings []string
	if a, ok := backend.As[backend.Admitter](x.Executor); ok {
		full, warnings, err = a.Admit(full)
	} else {
		caps := x.Capabilities()
		full, warnings, err = caps.Admit(caps.Driver, full)
	}
	if err == nil && x.specs[spec.Template].Root {
		warnings = append(slices.Clone(warnings), rootWarning(spec.Template))
	}
	return full, warnings, err
}

// resolve is spec with what its template adds: what spec says itself wins, and
// an image says least.
func (x *templated) resolve(spec backend.Spec) (backend.Spec, error) {
	s, ok := x.specs[spec.Template]
	if !ok {
		return spec, nil
	}
	t, err := x.template(s)
	if err != nil {
		return spec, absent(err)
	}
	if len(t.Config.Env) > 0 {
		env := maps.Clone(t.Config.Env)
		maps.Copy(env, spec.Env)
		spec.Env = env
	}
	spec.User = cmp.Or(spec.User, t.Config.User)
	if spec.Dir == "" && t.Config.WorkDir != "/" { // which tools write where nobody chose one
		spec.Dir = t.Config.WorkDir
	}
	if st := &spec.Startup; len(st.Args) == 0 {
		st.Args, st.Port, st.Timeout, st.Interval = t.Config.Start, t.Ready.Port, t.Ready.Timeout, t.Ready.Interval
		if t.Ready.Command != "" {
			st.Ready = shell(t.Ready.Command)
		}
	}
	return spec, nil
}

// template is s as sandboxes are made from it now.
func (x *templated) template(s image.Spec) (image.Template, error) {
	switch {
	case x.engine == "":
	case s.PlainImage():
		// The engine has the image, and knows what it says itself.
		return image.Template{Name: s.Name, Image: s.Image, Config: s.Config, Ready: s.Ready}, nil
	case s.ImageName() == "":
		return image.Template{}, &backend.Error{
			Op: "create", Kind: backend.ErrUnsupported, Backend: x.engine, Field: "template",
			Err: errors.New("the template " + s.Name + " is a directory, and no image of an engine"), Fix: "use subprocess or gvisor",
		}
	}
	store, err := x.images()
	if err != nil {
		return image.Template{}, err
	}
	t, err := store.Resolve(s)
	if err == nil && x.engine == "" {
		err = t.NeedRootfs()
	}
	if s.Dockerfile == "" {
		// What an engine's image does by itself, mostly a shell, nobody asked for.
		t.Config.Start = s.Config.Start
	}
	return t, err
}

// absent is what a template that is not here means for a choice of backends:
// another one may have it.
func absent(err error) error {
	be, ok := errors.AsType[*backend.Error](err)
	if !ok || be.Kind != backend.ErrNotFound {
		return err
	}
	e := *be
	e.Kind = backend.ErrUnavailable
	return &e
}

// directories are where the templates' root file systems are, or will be once
// they are built, but for those that are in own.
func directories(all map[string]image.Spec, own map[string]string) (map[string]string, error) {
	out := maps.Clone(own)
	if out == nil {
		out = map[string]string{}
	}
	for name, s := range all {
		if _, ok := own[name]; ok {
			delete(all, name)
			continue
		}
		if s.ImageName() == "" {
			out[name] = s.Rootfs
			continue
		}
		store, err := imageStore()
		if err != nil {
			return nil, err
		}
		out[name] = store.CurrentRootfs(s.ImageName())
	}
	return out, nil
}

var (
	_ backend.Executor = (*templated)(nil)
	_ backend.Admitter = (*templated)(nil)
)
