//go:build linux

package box

import "github.com/glovebox-dev/glovebox/backend"

// Enforced is the claim of what mechanism makes impossible.
func Enforced(mechanism string) backend.Claim {
	return backend.Claim{Enforcement: backend.Enforced, Mechanism: mechanism}
}

// BestEffort is the claim of what mechanism does but for what note says.
func BestEffort(mechanism, note string) backend.Claim {
	return backend.Claim{Enforcement: backend.BestEffort, Mechanism: mechanism, Note: note}
}

// Missing is the claim of what is not there.
func Missing(note string) backend.Claim {
	return backend.Claim{Enforcement: backend.Unsupported, Note: note}
}
