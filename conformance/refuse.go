package conformance

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// refusal is how asking for what is not claimed went, once for each need.
type refusal struct {
	once   sync.Once
	result Result
}

// refusal asks for what n names, which must be refused.
func (r *runner) refusal(ctx context.Context, n Need) Result {
	r.mu.Lock()
	ref := r.refused[n]
	if ref == nil {
		ref = &refusal{}
		r.refused[n] = ref
	}
	r.mu.Unlock()
	ref.once.Do(func() {
		ref.result = r.guarded(ctx, Case{ID: "refusal of " + n.String(), Run: func(ctx context.Context, t *T) { n.refuse(ctx, t) }})
	})
	return ref.result
}

func (n Need) refuse(ctx context.Context, t *T) {
	switch n.Kind {
	case NeedFeature:
		refuseFeature(ctx, t, backend.Feature(n.Name))
	case NeedEnforced, NeedClaimed:
		refuseControl(ctx, t, backend.Control(n.Name))
	case NeedNetwork:
		spec := t.Spec(backend.Spec{})
		spec.Network = backend.Network{Mode: backend.NetworkMode(n.Name)}
		t.unsupportedField("network "+n.Name, t.refuses(ctx, t.Executor(), spec), "network.mode")
	case NeedLevel:
		l, err := backend.ParseIsolation(n.Name)
		if err != nil {
			t.Fatalf("%v", err)
		}
		t.unsupportedField("level "+n.Name, t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{MinIsolation: l})), "min_isolation")
	case NeedProgram, NeedWitness:
	}
}

// refuseFeature asks for a feature that is not claimed. Its interface must not
// be there either.
func refuseFeature(ctx context.Context, t *T, f backend.Feature) {
	create := func(spec backend.Spec, field string) {
		t.unsupportedField(string(f), t.refuses(ctx, t.Executor(), t.Spec(spec)), field)
	}
	switch f {
	case backend.FeatureProbe:
		absent[backend.Prober](t, "Prober", t.Executor())
	case backend.FeatureFind:
		absent[backend.Finder](t, "Finder", t.Executor())
		create(backend.Spec{Keep: true}, "keep")
	case backend.FeatureSnapshot:
		absent[backend.SnapshotStore](t, "SnapshotStore", t.Executor())
		create(backend.Spec{From: "none"}, "from")
	case backend.FeaturePause:
		create(backend.Spec{OnExpiry: backend.ExpiryPause}, "on_expiry")
	case backend.FeatureTemplates:
		if t.run.target.Spec.Template == "" {
			create(backend.Spec{Template: "none"}, "template")
		}
	case backend.FeatureStartup:
		create(backend.Spec{User: "root"}, "user")
		create(backend.Spec{Dir: "/tmp"}, "dir")
		create(backend.Spec{Startup: backend.Startup{Args: []string{"true"}}}, "startup.args")
	case backend.FeatureMounts:
		create(backend.Spec{Mounts: []backend.Mount{{HostPath: "/usr", Target: "/mnt", ReadOnly: true}}}, "mounts")
	default:
	}
	refuseInside(ctx, t, f)
}

// refuseInside is what of refuseFeature needs a sandbox.
func refuseInside(ctx context.Context, t *T, f backend.Feature) {
	sb := t.Create(ctx, backend.Spec{})
	start := func(cmd backend.Command, field string) {
		p, err := sb.Start(ctx, cmd)
		if err == nil {
			_, _ = p.Wait(ctx) // what it is about is that it started
		}
		t.refusedWith(string(f), err, backend.ErrUnsupported, field)
	}
	switch f {
	case backend.FeaturePause:
		absent[backend.Pauser](t, "Pauser", sb)
	case backend.FeatureSnapshot:
		absent[backend.Snapshotter](t, "Snapshotter", sb)
	case backend.FeatureExtend:
		absent[backend.Extender](t, "Extender", sb)
	case backend.FeatureDial:
		absent[backend.Dialer](t, "Dialer", sb)
	case backend.FeatureUsage:
		absent[backend.Meter](t, "Meter", sb)
	case backend.FeatureProcesses:
		absent[backend.ProcessFinder](t, "ProcessFinder", sb)
	case backend.FeatureEnvd:
		absent[backend.EnvdTransport](t, "EnvdTransport", sb)
	case backend.FeatureRange:
		absent[backend.RangeOpener](t, "RangeOpener", sb.Files())
	case backend.FeatureMetadata:
		absent[backend.MetadataWriter](t, "MetadataWriter", sb.Files())
	case backend.FeatureWatch:
		absent[backend.Watcher](t, "Watcher", sb.Files())
	case backend.FeatureUsers:
		absent[backend.UserFiles](t, "UserFiles", sb.Files())
		start(backend.Command{Args: []string{"true"}, User: "root"}, "command.user")
	case backend.FeatureTerminal:
		start(backend.Command{Args: []string{"true"}, Terminal: &backend.TerminalSize{}}, "command.terminal")
	case backend.FeatureInput:
		start(backend.Command{Args: []string{"true"}, KeepInput: true}, "command.")
	case backend.FeaturePrivateRoot:
		if err := backend.WriteFile(ctx, sb.Files(), "/glovebox-conformance-"+sb.ID(), []byte("x"), 0); err == nil {
			t.Errorf("a file beside the home was written, without a root of its own")
		}
	default:
	}
}

// setting is a Spec that sets what control holds, and the field; "" for a
// control that nothing asks for.
func setting(control backend.Control) (spec backend.Spec, field string) {
	switch control {
	case backend.ControlMemory:
		return backend.Spec{Limits: backend.Limits{Memory: 600 << 20}}, "limits.memory"
	case backend.ControlCPU:
		return backend.Spec{Limits: backend.Limits{CPUs: 0.5}}, "limits.cpus"
	case backend.ControlPids:
		return backend.Spec{Limits: backend.Limits{Pids: 100}}, "limits.pids"
	case backend.ControlDisk:
		return backend.Spec{Limits: backend.Limits{Disk: 32 << 20}}, "limits.disk"
	case backend.ControlInodes:
		return backend.Spec{Limits: backend.Limits{Inodes: 2000}}, "limits.inodes"
	case backend.ControlOpenFiles:
		return backend.Spec{Limits: backend.Limits{OpenFiles: 300}}, "limits.open_files"
	case backend.ControlFileSize:
		return backend.Spec{Limits: backend.Limits{FileSize: 1 << 20}}, "limits.file_size"
	case backend.ControlCPUTime:
		return backend.Spec{Limits: backend.Limits{CPUTime: time.Minute}}, "limits.cpu_time"
	case backend.ControlOutput:
		return backend.Spec{Limits: backend.Limits{Output: 1 << 20}}, "limits.output"
	case backend.ControlLifetime:
		return backend.Spec{Lifetime: time.Minute}, "lifetime"
	case backend.ControlNetworkOff:
		return backend.Spec{Network: backend.Network{Mode: backend.NetworkNone}}, "network.mode"
	default:
		return backend.Spec{}, ""
	}
}

// refuseControl asks for a control that is not enforced.
func refuseControl(ctx context.Context, t *T, control backend.Control) {
	claim := t.Caps().Claim(control)
	if claim.Enforcement == backend.BestEffort && claim.Note == "" {
		t.Errorf("%s is best effort and does not say what stays open", control)
	}
	spec, field := setting(control)
	if field == "" {
		// Only strict can ask for it.
		if claim.Enforcement == backend.Enforced || !slices.Contains(strictControls(), control) {
			return
		}
		t.unsupportedField("strict without "+string(control), t.refuses(ctx, t.Executor(), t.Spec(backend.Spec{Strict: true})), "strict")
		return
	}
	spec = t.Spec(spec)
	if claim.Enforcement == backend.BestEffort {
		spec.Strict = true
	}
	t.unsupportedField(string(control), t.refuses(ctx, t.Executor(), spec), field)
}

// strictControls are those that a strict sandbox has, whatever is asked for.
func strictControls() []backend.Control {
	return []backend.Control{
		backend.ControlMemory, backend.ControlPids, backend.ControlDisk, backend.ControlWallTime, backend.ControlKillAll,
		backend.ControlBound, backend.ControlReadOnly, backend.ControlHostFiles, backend.ControlHostProcs,
		backend.ControlPrivileges, backend.ControlSyscalls, backend.ControlAgent, backend.ControlHostIPC, backend.ControlNetworkOff,
	}
}
