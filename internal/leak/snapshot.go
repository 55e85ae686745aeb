package leak

import (
	"maps"
	"slices"
	"time"
)

// Snapshot is what of ours is on the host: a key that names one thing for
// good, such as a process with its start time, and what a person needs to find
// it.
type Snapshot map[string]string

// Diff lists what is in s and was not in before, sorted.
func (s Snapshot) Diff(before Snapshot) []string {
	var added []string
	for _, key := range slices.Sorted(maps.Keys(s)) {
		if _, old := before[key]; !old {
			added = append(added, key+": "+s[key])
		}
	}
	return added
}

// Since lists what is on the host now and was not in before, giving what is
// about to end wait to do so.
func Since(before Snapshot, wait time.Duration) ([]string, error) {
	deadline := time.Now().Add(wait)
	for {
		now, err := Host()
		if err != nil {
			return nil, err
		}
		left := now.Diff(before)
		if len(left) == 0 || time.Now().After(deadline) {
			return left, nil
		}
		<-time.After(100 * time.Millisecond)
	}
}
