package plain

import (
	"runtime"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// Warning stands in every receipt.
const Warning = "nothing is contained: the program runs as this user, with the host's files and network"

// capabilities are what holds without any help of the kernel: our own timers
// and our own copying of output. NetworkNone is listed since it is what a spec
// that says nothing means; asked for by name it is refused by its claim.
func capabilities(driver string) backend.Capabilities {
	caps := backend.Capabilities{
		Driver: driver, Isolation: backend.IsolationNone,
		Claims: map[backend.Control]backend.Claim{
			backend.ControlWallTime: {Enforcement: backend.Enforced, Mechanism: "timer", Note: killNote},
			backend.ControlOutput:   {Enforcement: backend.Enforced, Mechanism: "bounded copying"},
			backend.ControlLifetime: {Enforcement: backend.Enforced, Mechanism: "timer", Note: killNote},
		},
		Networks: []backend.NetworkMode{backend.NetworkNone, backend.NetworkFull},
		Features: []backend.Feature{backend.FeatureInput},
	}
	for _, c := range uncontrolled() {
		caps.Claims[c] = backend.Claim{Enforcement: backend.Unsupported, Note: "nothing is contained at isolation none"}
	}
	for _, c := range []backend.Control{backend.ControlKillAll, backend.ControlKillTree} {
		caps.Claims[c] = backend.Claim{Enforcement: backend.Unsupported, Note: killNote}
	}
	caps.Claims[backend.ControlBound] = backend.Claim{
		Enforcement: backend.Unsupported, Note: "commands and their directory stay when their creator is killed",
	}
	return caps
}

// uncontrolled are the controls that nothing here enforces.
func uncontrolled() []backend.Control {
	return []backend.Control{
		backend.ControlMemory, backend.ControlSwap, backend.ControlCPU, backend.ControlCPUTime, backend.ControlPids,
		backend.ControlDisk, backend.ControlInodes, backend.ControlOpenFiles, backend.ControlFileSize, backend.ControlCore,
		backend.ControlNetworkOff, backend.ControlNetworkList, backend.ControlReadOnly, backend.ControlHostFiles,
		backend.ControlHostProcs, backend.ControlPrivileges, backend.ControlSyscalls, backend.ControlFileRules,
		backend.ControlOwnUID, backend.ControlAgent, backend.ControlMountsRO, backend.ControlHostIPC, backend.ControlSync,
	}
}

func (sb *sandbox) makeReceipt(asked backend.Spec, warnings []string, began time.Time) backend.Receipt {
	r := sb.ex.caps.Receipt(asked, sb.spec)
	r.Sandbox, r.Backend, r.Measured = sb.id, sb.ex.opts.Name, true
	r.Deadline = time.Now().Add(sb.spec.Lifetime)
	r.Kernel, r.Privileges, r.Network = runtime.GOOS+"/"+runtime.GOARCH, "none", backend.NetworkFull
	r.Warnings = append(slices.Clone(warnings), Warning)
	r.Timings = map[string]time.Duration{"create": time.Since(began)}
	r.PolicyHash = backend.PolicyHash(sb.spec)
	return r
}
