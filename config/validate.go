package config

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/registry"
	"github.com/glovebox-dev/glovebox/internal/strict"
)

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// Validate tells everything that is wrong with c, without I/O. reg knows the
// drivers.
func (c Config) Validate(reg *registry.Registry) error {
	v := &validator{known: slices.Sorted(maps.Keys(c.Backends)), reg: reg}
	if c.Version != Version {
		v.fail([]string{"version"}, fmt.Errorf("version %d is not known, only %d is", c.Version, Version))
	}
	for _, name := range v.known {
		v.backend(name, c.Backends[name])
	}
	for _, name := range slices.Sorted(maps.Keys(c.Executors)) {
		path := []string{"executors", name}
		v.name(path, name)
		if use := c.Executors[name].Use; !use.IsAuto() {
			v.backends(append(path, "use"), use)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Templates)) {
		v.template(name, c)
	}
	v.limits([]string{"limits"}, c.Limits)
	builds := c.Builds.Limits()
	builds.MaxTimeout = builds.Timeout // the cap is of what sandboxes' callers ask for
	v.limits([]string{"builds"}, builds)
	if f := c.Builds.CAFile; f != "" && !filepath.IsAbs(f) {
		v.fail([]string{"builds", "ca_file"}, fmt.Errorf("%s is not an absolute path", quote(f)))
	}
	return errors.Join(v.errs...)
}

type validator struct {
	known []string // the backends' names
	reg   *registry.Registry
	errs  []error
}

func (v *validator) fail(path []string, err error) {
	v.errs = append(v.errs, &strict.KeyError{Path: slices.Clone(path), Err: err})
}

func (v *validator) name(path []string, name string) {
	if !namePattern.MatchString(name) {
		v.fail(path, fmt.Errorf("a name has 1 to 63 lower-case letters, digits, dots, dashes and underscores, and begins with a letter or digit"))
	}
}

func (v *validator) backend(name string, b Backend) {
	path := []string{"backends", name}
	v.name(path, name)
	if name == Auto {
		v.fail(path, errors.New("auto means all backends and cannot name one"))
	}
	if b.Driver == "" {
		v.fail(append(path, "driver"), fmt.Errorf("no driver is named, known are %s", strings.Join(v.reg.Names(), ", ")))
		return
	}
	if !slices.Contains(v.reg.Names(), b.Driver) {
		v.fail(append(path, "driver"), strict.Unknown("driver", b.Driver, v.reg.Names()))
		return
	}
	for _, ke := range strict.KeyErrors(v.reg.Check(b.Driver, b.With)) {
		at := slices.Concat(path, []string{"with"}, ke.Path)
		var be *backend.Error
		if len(ke.Path) == 0 && errors.As(ke.Err, &be) && be.Field != "" {
			at = append(at, strings.Split(be.Field, ".")...)
		}
		v.fail(at, cause(ke.Err))
	}
}

// backends checks a list of backends' names.
func (v *validator) backends(path, names []string) {
	for i, n := range names {
		at := path
		if len(names) > 1 {
			at = append(slices.Clone(path), strconv.Itoa(i))
		}
		if !slices.Contains(v.known, n) {
			v.fail(at, strict.Unknown("backend", n, v.known))
		}
	}
}

func (v *validator) limits(path []string, l Limits) {
	if err := l.Backend().Validate(); err != nil {
		at := path
		if be, ok := errors.AsType[*backend.Error](err); ok {
			at = append(slices.Clone(path), strings.TrimPrefix(be.Field, "limits."))
		}
		v.fail(at, cause(err))
	}
	if l.Lifetime > Duration(backend.MaxLifetime) {
		v.fail(append(path, "lifetime"), fmt.Errorf("%s is longer than %s", l.Lifetime, Duration(backend.MaxLifetime)))
	}
	if t := l.Timeout; t > Duration(l.MaxTimeoutOr()) {
		v.fail(append(path, "timeout"), fmt.Errorf("%s is longer than max_timeout, which is %s", t, l.MaxTimeoutOr()))
	}
}

// cause is an error of the contract without its operation and field, which
// the key already tells.
func cause(err error) error {
	var be *backend.Error
	if !errors.As(err, &be) || be.Err == nil {
		return err
	}
	if be.Fix != "" {
		return fmt.Errorf("%w; %s", be.Err, be.Fix)
	}
	return be.Err
}
