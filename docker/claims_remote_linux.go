package docker

import (
	"maps"
	"slices"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
)

// remoteCapabilities are those of an engine on another machine: nothing of this
// host can be shown there, nothing there can be looked at from here, and nobody
// holds the stream of a sandbox whose creator has gone.
func remoteCapabilities() backend.Capabilities {
	c := capabilities(false, 1)
	c.Features = slices.DeleteFunc(c.Features, func(f backend.Feature) bool {
		return f == backend.FeatureMounts || f == backend.FeatureFind
	})
	// Whether that machine has the device is not known here.
	c.Networks = slices.DeleteFunc(c.Networks, func(m backend.NetworkMode) bool { return m == backend.NetworkFull })
	c.Claims = maps.Clone(c.Claims)
	c.Claims[backend.ControlFileRules] = box.BestEffort("Landlock, where the engine's kernel has it", "the receipt says whether it has")
	c.Claims[backend.ControlMountsRO] = backend.Claim{Enforcement: backend.Unsupported, Note: "nothing of this host can be shown on another machine"}
	c.Claims[backend.ControlOwnUID] = box.BestEffort("uids that no other sandbox of this store has, or the engine's user namespace", "other hosts' sandboxes may have the same")
	c.Claims[backend.ControlPids] = backend.Claim{
		Enforcement: backend.Enforced, Mechanism: "RLIMIT_NPROC of a uid of its own, the container's pids limit behind it",
		Note: "reaching it is not told as a hit; where uids are shared, the container's limit with a reserve of 32 for the agent's threads",
	}
	c.Claims[backend.ControlBound] = backend.Claim{
		Enforcement: backend.Enforced, Mechanism: "the agent, first process of the pid namespace, ends with the engine's attach stream, or half a minute after nobody answers on it",
	}
	c.Claims[backend.ControlKillAll] = backend.Claim{
		Enforcement: backend.Enforced, Mechanism: "pid namespace", Note: "that nothing is left is the engine's word: its machine cannot be looked at",
	}
	return c
}
