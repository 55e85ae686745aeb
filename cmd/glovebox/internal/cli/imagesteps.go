package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/internal/image"
	"github.com/glovebox-dev/glovebox/internal/registry"
)

// buildTemplate is the name of the template that steps are run in.
const buildTemplate = "steps"

// makeRunner makes what runs the steps on a base.
type makeRunner func(ctx context.Context, base image.Template) (image.StepRunner, func() error, error)

// stepRunner runs steps in gVisor, as it is configured here; allow is what they
// may reach besides. Without it, why tells the reason.
func stepRunner(reg *registry.Registry, c config.Config, allow []string) (run makeRunner, why string, err error) {
	const driver = "gvisor"
	if !slices.Contains(reg.Names(), driver) {
		return nil, "this program has no gVisor driver", nil
	}
	with := stepBackend(c, driver)
	spec, err := stepSpec(c.Builds, allow)
	if err != nil {
		return nil, "", err
	}
	ca, err := authorities(c.Builds.CAFile)
	if err != nil {
		return nil, "", err
	}
	return func(ctx context.Context, base image.Template) (image.StepRunner, func() error, error) {
		ex, err := reg.Open(ctx, driver, registry.Env{
			Name: driver, Templates: map[string]registry.Template{buildTemplate: {Rootfs: base.Rootfs, Root: true}},
		}, with)
		if err != nil {
			return nil, nil, err
		}
		return &image.Sandboxed{Executor: ex, Spec: spec, Timeout: time.Duration(c.Builds.Timeout), CA: ca}, ex.Close, nil
	}, "", nil
}

// stepBackend is the configuration of the first backend of the driver that
// starts its sandboxes itself.
func stepBackend(c config.Config, driver string) map[string]any {
	for _, name := range slices.Sorted(maps.Keys(c.Backends)) {
		if b := c.Backends[name]; b.Driver == driver && b.With["via"] == nil {
			with := maps.Clone(b.With)
			// They are of sandboxes, and the only template here is the base.
			delete(with, "templates")
			delete(with, "root_templates")
			return with
		}
	}
	return nil
}

// stepSpec is the sandbox that steps run in.
func stepSpec(b config.Builds, allow []string) (backend.Spec, error) {
	limits := b.Limits().Backend()
	limits.Memory = cmp.Or(limits.Memory, 4<<30)
	limits.Disk = cmp.Or(limits.Disk, limits.Memory/2)
	limits.CPUs = cmp.Or(limits.CPUs, float64(min(2, runtime.NumCPU())))
	limits.Pids = cmp.Or(limits.Pids, 1024)
	n := backend.Network{Mode: backend.NetworkAllowlist}
	for _, name := range backend.Presets() {
		n.Allow = append(n.Allow, backend.Rule{Preset: name})
	}
	for _, text := range slices.Concat(b.Allow, allow) {
		r, err := rule("allow", text)
		if err != nil {
			return backend.Spec{}, fmt.Errorf("builds.allow: %w", err)
		}
		n.Allow = append(n.Allow, r)
	}
	return backend.Spec{
		Template: buildTemplate, MinIsolation: backend.IsolationKernel, Network: n, Limits: limits,
		Lifetime: cmp.Or(time.Duration(b.Lifetime), time.Hour),
	}, nil
}

// maxAuthorities bounds the file of certificate authorities.
const maxAuthorities = 4 << 20

// authorities are the certificate authorities that steps trust: those in file,
// else the host's own, so that what intercepts the host's connections can
// intercept theirs. None are found on a host that has none.
func authorities(file string) ([]byte, error) {
	paths := []string{file}
	if file == "" {
		paths = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) && file == "" {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("builds.ca_file: %w", err)
		}
		defer f.Close() //nolint:errcheck // read side
		data, err := io.ReadAll(io.LimitReader(f, maxAuthorities+1))
		if err == nil && len(data) > maxAuthorities {
			err = errors.New("larger than 4 MiB")
		}
		if err != nil {
			return nil, fmt.Errorf("builds.ca_file: %s: %w", path, err)
		}
		return data, nil
	}
	return nil, nil
}

// fileSpec is the template that a Dockerfile on the command line makes.
func fileSpec(file, dir, name string) (image.Spec, error) {
	context, err := filepath.Abs(dir)
	if err != nil {
		return image.Spec{}, err
	}
	if !filepath.IsAbs(file) {
		if file, err = filepath.Abs(file); err != nil {
			return image.Spec{}, err
		}
	}
	if name == "" {
		name = strings.ToLower(filepath.Base(context))
	}
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`).MatchString(name) {
		return image.Spec{}, usagef("%q is no name for an image; give one with --name", name)
	}
	return image.Spec{Name: name, Dockerfile: file, Context: context}, nil
}
