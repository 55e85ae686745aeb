package gvisor

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/dockerbox"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/state"
)

// viaDockerName is the driver's in markers and errors, so that what is made
// directly and what is made through Docker are not taken for each other.
const viaDockerName = "gvisor-docker"

// dockerRuntime is the engine's runtime that scripts/setup configures.
const dockerRuntime = "runsc-nonet"

// pidsReserve is how many threads gVisor's kernel may have beyond the limit of
// processes, which is kept inside: with fewer it crashes.
const pidsReserve = 4096

// openDocker readies the backend over a Docker engine that has runsc.
func openDocker(ctx context.Context, cfg Config) (*Executor, error) {
	e, err := engine.Open(cfg.Host)
	if err != nil {
		return nil, err
	}
	var store *state.Store
	dir, serr := state.Dir(cfg.StateDir)
	if serr == nil {
		store, serr = state.Open(dir)
	}
	runtime := cfg.Runtime
	if runtime == "" {
		runtime = dockerRuntime
	}
	d := dockerbox.New(e, store, dockerbox.Options{
		Name: viaDockerName, Capabilities: dockerCapabilities(os.Geteuid() == 0), Runtime: runtime, Stdio: true, Sentry: true,
		MinMemory: minMemory, PidsReserve: pidsReserve, Image: cfg.Image, Templates: cfg.Templates, Built: cfg.BuiltTemplates, Agent: cfg.Agent, NoLandlock: true,
	})
	ex := box.New(ctx, d, box.Options{Store: store, StoreErr: serr, Config: cfg})
	d.Bind(ex)
	return &Executor{Executor: ex, docker: d}, nil
}

// dockerCapabilities are those of sandboxes that the engine makes.
func dockerCapabilities(root bool) backend.Capabilities {
	caps := host{privilege: PrivilegeRoot}.capabilities()
	caps.Features = slices.DeleteFunc(caps.Features, func(f backend.Feature) bool { return f == backend.FeatureSnapshot })
	caps.Claims[backend.ControlMemory] = box.Enforced("container's memory cgroup, gVisor and agent included")
	caps.Claims[backend.ControlSwap] = box.Enforced("container's memory cgroup")
	caps.Claims[backend.ControlCPU] = box.Enforced("container's cpu cgroup")
	caps.Claims[backend.ControlBound] = box.Enforced("the agent, first process of the sandbox, ends with its connection")
	if !root {
		caps.Claims[backend.ControlInodes] = box.Missing("gVisor's tmpfs does not limit the number of files; run as root")
	}
	return caps
}

// measureDocker is Measure over an engine.
func (ex *Executor) measureDocker(ctx context.Context) Report {
	r := Report{Privilege: PrivilegeAuto, Capabilities: ex.Capabilities(), Health: ex.docker.Probe(ctx)}
	info, err := ex.docker.Info(ctx)
	if err != nil {
		r.Facts = append(r.Facts, Fact{Name: "engine", Value: err.Error(), Fix: r.Health.Fix})
		return r
	}
	r.Facts = append(r.Facts, Fact{Name: "engine", Value: fmt.Sprintf("%s, cgroup v%d", info.Version, info.CgroupVersion), OK: true})
	for _, rt := range info.Runtimes {
		if rt.GVisor {
			r.Facts = append(r.Facts, Fact{Name: "runtime", Value: rt.Name, OK: true})
		}
	}
	return r
}
