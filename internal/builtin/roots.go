package builtin

import (
	"context"
	"fmt"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/registry"
)

// What to do about a template that asks for a root with capabilities.
const (
	fixRoots     = "use a gVisor backend, or leave `root` out of the template"
	fixViaDocker = "use a gVisor backend without `via: docker`, or leave `root` out of the template"
)

// rootWarning is what is said beforehand of a sandbox whose root has
// capabilities; its receipt has the claims.
func rootWarning(template string) string {
	return "the template " + template + " asks for a root with capabilities, inside gVisor's kernel alone: " +
		"its files are not read-only, inodes and privileges are not limited, pids for each account only"
}

// refusingRoots is ex where no sandbox gets a root with capabilities: templates
// of env that ask for one are refused.
func refusingRoots(ex backend.Executor, env registry.Env, fix string) backend.Executor {
	x := &noRoots{Executor: ex, asking: map[string]bool{}, fix: fix}
	for name, t := range env.Templates {
		if t.Root {
			x.asking[name] = true
		}
	}
	if len(x.asking) == 0 {
		return ex
	}
	return x
}

// noRoots refuses templates that ask for what its backend does not give.
//
// Security: on the host's kernel such a root would be the host's.
type noRoots struct {
	backend.Executor
	asking map[string]bool
	fix    string
}

// Unwrap lets backend.As find what the driver can do besides.
func (x *noRoots) Unwrap() any { return x.Executor }

// Create implements backend.Executor.
func (x *noRoots) Create(ctx context.Context, spec backend.Spec) (backend.Sandbox, error) {
	if err := x.refuse(spec); err != nil {
		return nil, err
	}
	return x.Executor.Create(ctx, spec)
}

// Admit implements backend.Admitter.
func (x *noRoots) Admit(spec backend.Spec) (backend.Spec, []string, error) {
	if err := x.refuse(spec); err != nil {
		return spec, nil, err
	}
	if a, ok := backend.As[backend.Admitter](x.Executor); ok {
		return a.Admit(spec)
	}
	caps := x.Capabilities()
	return caps.Admit(caps.Driver, spec)
}

func (x *noRoots) refuse(spec backend.Spec) error {
	if !x.asking[spec.Template] {
		return nil
	}
	return &backend.Error{
		Op: "create", Kind: backend.ErrUnsupported, Backend: x.Capabilities().Driver, Field: "template",
		Err: fmt.Errorf("the template %s asks for a root with capabilities, which only a kernel of its own contains", spec.Template), Fix: x.fix,
	}
}

var (
	_ backend.Executor = (*noRoots)(nil)
	_ backend.Admitter = (*noRoots)(nil)
)
