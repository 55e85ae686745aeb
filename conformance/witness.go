package conformance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Witness sees from outside what sandboxes are made of on the host. Its word,
// and not the backend's, is evidence of what is left behind.
type Witness interface {
	// Snapshot is what is on the host now: for each process, control group,
	// mount, socket, container and file a key that names it for good, and what
	// a person needs to find it. What belongs to one sandbox names its ID in
	// either, where it can. What is new is taken for the run's own, so a
	// witness of a host that others use leaves theirs out.
	Snapshot(ctx context.Context) (map[string]string, error)
}

// WitnessFunc is a function that is a Witness.
type WitnessFunc func(ctx context.Context) (map[string]string, error)

// Snapshot implements Witness.
func (f WitnessFunc) Snapshot(ctx context.Context) (map[string]string, error) { return f(ctx) }

// patience is how long what was ended may take to be gone from the host.
const patience = 10 * time.Second

// since lists what is in now and was not in before and names one of ids, or
// everything new when ids is nil.
func since(before, now map[string]string, ids []string) []string {
	var left []string
	for _, key := range slices.Sorted(maps.Keys(now)) {
		if _, old := before[key]; old {
			continue
		}
		line := key + ": " + now[key]
		if ids == nil || slices.ContainsFunc(ids, func(id string) bool { return names(line, id) }) {
			left = append(left, line)
		}
	}
	return left
}

// names tells whether line holds id as a word of its own: s1 is not in s12.
func names(line, id string) bool {
	for rest := line; id != ""; {
		i := strings.Index(rest, id)
		if i < 0 {
			return false
		}
		end := i + len(id)
		if (i == 0 || !wordByte(rest[i-1])) && (end == len(rest) || !wordByte(rest[end])) {
			return true
		}
		rest = rest[end:]
	}
	return false
}

func wordByte(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

// gone waits until nothing of the sandboxes called ids, or nothing at all when
// ids is nil, is on the host that was not there before, and lists what stays.
func (r *runner) gone(ctx context.Context, before map[string]string, ids []string) []string {
	if r.target.Witness == nil {
		return nil
	}
	deadline := time.Now().Add(patience)
	for {
		now, err := r.target.Witness.Snapshot(ctx)
		if err != nil {
			return []string{fmt.Sprintf("the witness is blind: %v", err)}
		}
		left := since(before, now, ids)
		if len(left) == 0 || time.Now().After(deadline) || ctx.Err() != nil {
			return left
		}
		wait(ctx, 100*time.Millisecond)
	}
}

// wait is a moment, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
