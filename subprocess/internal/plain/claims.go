package plain

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
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
	caps := sb.ex.caps
	r := backend.Receipt{
		Sandbox: sb.id, Backend: sb.ex.opts.Name, Driver: caps.Driver,
		Asked: sb.spec.MinIsolation, Achieved: backend.IsolationNone, Measured: true,
		Lifetime: "bound", Deadline: time.Now().Add(sb.spec.Lifetime),
		Kernel: runtime.GOOS + "/" + runtime.GOARCH, Privileges: "none",
		Controls: maps.Clone(caps.Claims), Network: backend.NetworkFull,
		Warnings:   append(slices.Clone(warnings), Warning),
		PolicyHash: policyHash(sb.spec),
	}
	l, a := sb.spec.Limits, asked.Limits
	for _, g := range []struct {
		control backend.Control
		value   string
		def     bool
	}{
		{backend.ControlMemory, bytesText(l.Memory), a.Memory == 0},
		{backend.ControlCPU, fmt.Sprintf("%g cores", l.CPUs), a.CPUs == 0},
		{backend.ControlPids, fmt.Sprint(l.Pids), a.Pids == 0},
		{backend.ControlDisk, bytesText(l.Disk), a.Disk == 0},
		{backend.ControlInodes, fmt.Sprint(l.Inodes), a.Inodes == 0},
		{backend.ControlOpenFiles, fmt.Sprint(l.OpenFiles), a.OpenFiles == 0},
		{backend.ControlFileSize, bytesText(l.FileSize), a.FileSize == 0},
		{backend.ControlCPUTime, orNone(l.CPUTime > 0, l.CPUTime.String()), a.CPUTime == 0},
		{backend.ControlOutput, orNone(l.Output > 0, bytesText(l.Output)+" a stream"), a.Output == 0},
		{backend.ControlLifetime, sb.spec.Lifetime.String(), asked.Lifetime == 0},
	} {
		claim := caps.Claim(g.control)
		delete(r.Controls, g.control)
		r.Limits = append(r.Limits, backend.Grant{
			Control: g.control, Value: g.value, Default: g.def,
			Enforcement: claim.Enforcement, Mechanism: claim.Mechanism, Note: claim.Note,
		})
	}
	r.Timings = map[string]time.Duration{"create": time.Since(began)}
	return r
}

func bytesText(n int64) string { return fmt.Sprintf("%d bytes", n) }

func orNone(set bool, text string) string {
	if !set {
		return "none"
	}
	return text
}

// policyHash identifies what the caller asked for, without showing it.
func policyHash(spec backend.Spec) string {
	data, err := json.Marshal(spec)
	if err != nil {
		return "" // not reached: a Spec is plain data
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
