package engine

import (
	"context"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
)

// WatchMemory calls f with the ID of a container of the label key=value each
// time that it meets its memory limit. It returns when ctx ends; while the
// engine is away it goes on trying, and misses little of what happened then.
func (e *Engine) WatchMemory(ctx context.Context, key, value string, f func(id string)) {
	since := int64(0)
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		if e.alive(ctx, false) == nil {
			last := e.memoryEvents(ctx, key+"="+value, since, f)
			if last > since {
				since, pause = last, retryMin
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// memoryEvents reads events until they end, and gives the time of the last one,
// by the engine's clock, in nanoseconds.
func (e *Engine) memoryEvents(ctx context.Context, label string, since int64, f func(id string)) int64 {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opts := events.ListOptions{Filters: filters.NewArgs(
		filters.Arg("type", string(events.ContainerEventType)), filters.Arg("event", string(events.ActionOOM)), filters.Arg("label", label),
	)}
	if since > 0 {
		opts.Since = strconv.FormatInt(since/1e9, 10) + "." + strconv.FormatInt(1e9+since%1e9, 10)[1:]
	}
	got, failed := e.api.Events(ctx, opts)
	for {
		select {
		case m := <-got:
			if m.TimeNano > since && idForm.MatchString(m.Actor.ID) {
				since = m.TimeNano
				f(m.Actor.ID)
			}
		case <-failed: //nolint:errcheck // whatever it was, it is tried again
			return since
		}
	}
}
