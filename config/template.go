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
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/registry"
)

// Ready says when what a template starts is ready: a command line, or a port.
type Ready string

// JSONSchema lets a port be written as the number it is.
func (Ready) JSONSchema() map[string]any {
	return map[string]any{"oneOf": []any{
		map[string]any{"type": "string"}, map[string]any{"type": "integer", "minimum": 1, "maximum": 65535},
	}}
}

// UnmarshalValue implements strict.ValueUnmarshaler: a command line or a port.
func (r *Ready) UnmarshalValue(v any, _ bool) error {
	var text string
	switch v.(type) {
	case string, int, int64, uint64, float64:
		text = strings.TrimSpace(fmt.Sprint(v))
	default:
		return errors.New("neither a command line nor a port")
	}
	if n, err := strconv.Atoi(text); err == nil && (n < 1 || n > 65535) {
		return fmt.Errorf("%d is no port", n)
	}
	*r = Ready(text)
	return nil
}

// Port is the port, 0 when a command line tells.
func (r Ready) Port() int {
	n, err := strconv.Atoi(string(r))
	if err != nil {
		return 0
	}
	return n
}

// Env is what the backend of that name is opened with.
func (c Config) Env(name string) registry.Env {
	env := registry.Env{Name: name, Templates: map[string]registry.Template{}}
	for t, tc := range c.Templates {
		if len(tc.Backends) == 0 || slices.Contains(tc.Backends, name) {
			env.Templates[t] = tc.Registry()
		}
	}
	return env
}

// Registry is t as drivers are given it.
func (t Template) Registry() registry.Template {
	out := registry.Template{
		Rootfs: t.Rootfs, Image: t.Image, Dockerfile: t.Dockerfile,
		Apt: slices.Clone(t.Packages.Apt), Pip: slices.Clone(t.Packages.Pip), NPM: slices.Clone(t.Packages.NPM),
		Env: maps.Clone(t.Env), Start: t.Start, User: t.User, WorkDir: t.WorkDir, Root: t.Root, ReadyPort: t.Ready.Port(),
		ReadyTimeout: time.Duration(t.ReadyTimeout), ReadyInterval: time.Duration(t.ReadyInterval),
	}
	if out.ReadyPort == 0 {
		out.Ready = string(t.Ready)
	}
	return out
}

var (
	imagePattern   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}$`)
	envNamePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	userPattern    = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
	aptPattern     = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]{1,80}$`)
	pipPattern     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,100}(\[[A-Za-z0-9,._-]{1,100}\])?((==|>=|<=|~=|!=|<|>)[A-Za-z0-9.*+!_-]{1,50}(,(==|>=|<=|~=|!=|<|>)[A-Za-z0-9.*+!_-]{1,50}){0,5})?$`)
	npmPattern     = regexp.MustCompile(`^(@[a-z0-9][a-z0-9._~-]{0,100}/)?[a-z0-9][a-z0-9._~-]{0,100}(@[A-Za-z0-9^~.<>=*+-]{1,50})?$`)
)

const maxPackages = 500

func (v *validator) template(name string, c Config) {
	t, path := c.Templates[name], []string{"templates", name}
	v.name(path, name)
	v.root(path, t)
	v.packages(path, t)
	for _, k := range slices.Sorted(maps.Keys(t.Env)) {
		switch {
		case !envNamePattern.MatchString(k):
			v.fail(append(path, "env", k), errors.New("a variable's name has letters, digits and underscores, and does not begin with a digit"))
		case strings.ContainsRune(t.Env[k], 0):
			v.fail(append(path, "env", k), errors.New("a zero byte cannot be in it"))
		}
	}
	for key, text := range map[string]string{"start": t.Start, "ready": string(t.Ready)} {
		if strings.ContainsRune(text, 0) {
			v.fail(append(path, key), errors.New("a zero byte cannot be in it"))
		}
	}
	if t.Ready != "" && t.Start == "" && t.Dockerfile == "" {
		v.fail(append(path, "ready"), errors.New("nothing is started that could become ready; set start"))
	}
	if t.User != "" && !userPattern.MatchString(t.User) {
		v.fail(append(path, "user"), fmt.Errorf("%s is no account's name", quote(t.User)))
	}
	v.starts(path, t)
	v.backends(append(path, "backends"), t.Backends)
	v.limits(append(path, "limits"), c.LimitsFor(name))
}

// starts checks what a template's sandboxes begin with.
func (v *validator) starts(path []string, t Template) {
	if t.WorkDir != "" && (!filepath.IsAbs(t.WorkDir) || strings.ContainsRune(t.WorkDir, 0)) {
		v.fail(append(path, "workdir"), fmt.Errorf("%s is not an absolute path", quote(t.WorkDir)))
	}
	for key, d := range map[string]struct{ is, least Duration }{
		"ready_timeout":  {t.ReadyTimeout, 0},
		"ready_interval": {t.ReadyInterval, Duration(backend.MinReadyInterval)},
	} {
		switch {
		case d.is == 0:
		case t.Ready == "":
			v.fail(append(path, key), errors.New("nothing is waited for; set ready"))
		case d.is < d.least || d.is > Duration(backend.MaxReadyTimeout):
			v.fail(append(path, key), fmt.Errorf("%s is not between %s and %s", d.is, d.least, Duration(backend.MaxReadyTimeout)))
		}
	}
}

// root checks what a template's root is made from.
func (v *validator) root(path []string, t Template) {
	given := []string{}
	for _, g := range []struct{ key, value string }{{"rootfs", t.Rootfs}, {"image", t.Image}, {"dockerfile", t.Dockerfile}} {
		if g.value != "" {
			given = append(given, g.key)
		}
	}
	switch {
	case len(given) == 0:
		v.fail(path, errors.New("a template needs one of rootfs, image and dockerfile"))
	case len(given) > 1:
		v.fail(append(path, given[1]), fmt.Errorf("%s is given too; keep one of them", given[0]))
	case t.Rootfs != "" && !filepath.IsAbs(t.Rootfs) && !namePattern.MatchString(t.Rootfs):
		v.fail(append(path, "rootfs"), fmt.Errorf("%s is neither a built image's name nor an absolute path", quote(t.Rootfs)))
	case t.Image != "" && !imagePattern.MatchString(t.Image):
		v.fail(append(path, "image"), fmt.Errorf("%s names no image", quote(t.Image)))
	case t.Dockerfile != "" && !filepath.IsAbs(t.Dockerfile):
		v.fail(append(path, "dockerfile"), fmt.Errorf("%s is not an absolute path", quote(t.Dockerfile)))
	}
}

func (v *validator) packages(path []string, t Template) {
	for _, list := range []struct {
		key   string
		names []string
		ok    *regexp.Regexp
	}{{"apt", t.Packages.Apt, aptPattern}, {"pip", t.Packages.Pip, pipPattern}, {"npm", t.Packages.NPM, npmPattern}} {
		at := append(slices.Clone(path), "packages", list.key)
		if len(list.names) > maxPackages {
			v.fail(at, fmt.Errorf("more than %d packages", maxPackages))
			continue
		}
		if len(list.names) > 0 && filepath.IsAbs(t.Rootfs) {
			v.fail(at, errors.New("packages can be added to a built image, an engine's image or a Dockerfile, and not to a directory"))
		}
		// Security: they become arguments of package managers.
		for i, n := range list.names {
			if !list.ok.MatchString(n) {
				v.fail(append(slices.Clone(at), strconv.Itoa(i)), fmt.Errorf("%s is no package that %s knows", quote(n), list.key))
			}
		}
	}
}
