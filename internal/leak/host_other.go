//go:build !linux

package leak

// Host takes a Snapshot, which is empty on this system.
func Host() (Snapshot, error) { return Snapshot{}, nil }
