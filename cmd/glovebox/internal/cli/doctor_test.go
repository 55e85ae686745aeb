package cli_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/backend/backendtest"
	"github.com/glovebox-dev/glovebox/cmd/glovebox/internal/cli"
	"github.com/glovebox-dev/glovebox/internal/registry"
)

// twoBackends registers a weak backend that works and a strong one whose
// daemon does what probe does.
func twoBackends(weak, strong *backendtest.Fake, probe func(context.Context) error) func() (*registry.Registry, error) {
	factory := func(name string, fake *backendtest.Fake, probe func(context.Context) error) registry.Factory {
		return registry.Driver(name, func() struct{} { return struct{}{} },
			func(context.Context, registry.Env, struct{}) (backend.Executor, error) { return fake.Reopen(), nil },
			func(ctx context.Context, _ registry.Env, _ struct{}) (registry.Report, error) {
				caps := fake.Capabilities()
				err := probe(ctx)
				return registry.Report{Driver: name, Capabilities: caps, Health: backend.Health{Available: err == nil, Isolation: caps.Isolation}}, err
			}).Local()
	}
	return func() (*registry.Registry, error) {
		return registry.New(factory("near", weak, func(context.Context) error { return nil }), factory("strong", strong, probe))
	}
}

func level(name string, l backend.Isolation) backendtest.Option {
	return backendtest.WithCapabilities(func(c *backend.Capabilities) { c.Isolation, c.Driver = l, name })
}

func TestDoctor_whichIsChosen(t *testing.T) {
	t.Parallel()
	weak, strong := backendtest.New(level("near", backend.IsolationProcess)), backendtest.New(level("strong", backend.IsolationKernel))
	run := func(probe func(context.Context) error, args ...string) string {
		var out, stderr bytes.Buffer
		home := t.TempDir()
		code := cli.Main(t.Context(), cli.App{
			Args: args, Environ: []string{"HOME=" + home, "XDG_CONFIG_HOME=" + home}, Registry: twoBackends(weak, strong, probe),
			Dir: home, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &stderr,
		})
		if code != 0 {
			t.Errorf("code %d: %s", code, stderr.String())
		}
		return out.String()
	}
	works := func(context.Context) error { return nil }
	if out := run(works, "doctor"); !strings.Contains(out, "chosen by default: strong (isolation restricted or more") ||
		!strings.Contains(out, "near         not needed: strong comes first") {
		t.Error(out)
	}
	strong.Inject(backendtest.Fault{Op: backendtest.OpProbe, Err: errors.New("no daemon")})
	if out := run(func(context.Context) error { return errors.New("no daemon") }, "doctor"); !strings.Contains(out, "chosen by default: near") ||
		!strings.Contains(out, "could not be measured: no daemon") {
		t.Error(out)
	}
}
