package engine

import (
	"context"
	"errors"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/glovebox-dev/glovebox/backend"
)

// State is what the daemon says of a container. PID, where it runs here, is
// the host's number of its first process.
type State struct {
	ID, Name, ImageID string
	Labels            map[string]string
	Status            string // created, running, paused, restarting, removing, exited or dead
	Running, Paused   bool   // a paused container is running too
	PID               int
	OOMKilled         bool // the kernel killed some process of it for memory
	ExitCode          int
	Error             string // of the last start, fit to be shown
	Started, Finished time.Time
	Runtime           string
	Memory            int64 // limits, as the daemon has them
	PIDs              int64
	NanoCPUs          int64
}

// Ended tells whether it ran and runs no longer.
func (s State) Ended() bool { return s.Status == "exited" || s.Status == "dead" }

// Start starts a container. A start that the engine or the runtime refuses is
// unavailable, with its words; processes may be left over from it (Remains).
func (e *Engine) Start(ctx context.Context, id string) error {
	err := e.onContainer(ctx, call{op: "start", within: e.limits.long, changes: true}, id, func(ctx context.Context) error {
		return e.api.ContainerStart(ctx, id, container.StartOptions{})
	})
	var failed *backend.Error
	if !errors.As(err, &failed) {
		return err
	}
	switch failed.Kind {
	case backend.ErrNotFound:
		// The container is gone, or something that it needs.
		if _, ierr := e.Inspect(ctx, id); backend.KindOf(ierr) == backend.ErrNotFound {
			return err
		}
		failed.Kind, failed.Field = backend.ErrUnavailable, ""
	case backend.ErrInvalid, backend.ErrInternal, backend.ErrDenied, backend.ErrUnsupported:
		failed.Kind = backend.ErrUnavailable
	default:
	}
	return failed
}

// Kill sends a signal, such as "KILL", to a container's first process. One that
// does not run is conflict.
func (e *Engine) Kill(ctx context.Context, id, signal string) error {
	return e.onContainer(ctx, call{op: "kill", within: e.limits.quick, changes: true}, id, func(ctx context.Context) error {
		return e.api.ContainerKill(ctx, id, signal)
	})
}

// Pause freezes a container's processes.
func (e *Engine) Pause(ctx context.Context, id string) error {
	return e.onContainer(ctx, call{op: "pause", within: e.limits.quick, changes: true}, id, func(ctx context.Context) error {
		return e.api.ContainerPause(ctx, id)
	})
}

// Unpause lets a paused container go on.
func (e *Engine) Unpause(ctx context.Context, id string) error {
	return e.onContainer(ctx, call{op: "unpause", within: e.limits.quick, changes: true}, id, func(ctx context.Context) error {
		return e.api.ContainerUnpause(ctx, id)
	})
}

// Remove kills a container, by name or ID, and removes it with its anonymous
// volumes. One that is not there is no error. While another removes it, Remove
// is conflict.
func (e *Engine) Remove(ctx context.Context, id string) error {
	err := e.onContainer(ctx, call{op: "remove", within: e.limits.normal, changes: true}, id, func(ctx context.Context) error {
		return e.api.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	})
	if backend.KindOf(err) == backend.ErrNotFound {
		return nil
	}
	return err
}

// onContainer makes a call about one container.
func (e *Engine) onContainer(ctx context.Context, c call, id string, f func(context.Context) error) error {
	if err := checkName(c.op, "container", id); err != nil {
		return err
	}
	c.field = "container"
	return e.do(ctx, c, f)
}

// Inspect tells the state of a container, by name or ID.
func (e *Engine) Inspect(ctx context.Context, id string) (State, error) {
	var got container.InspectResponse
	err := e.onContainer(ctx, call{op: "inspect", within: e.limits.quick}, id, func(ctx context.Context) (err error) {
		got, err = e.api.ContainerInspect(ctx, id)
		return err
	})
	if err != nil {
		return State{}, err
	}
	if got.ContainerJSONBase == nil || got.State == nil || got.Config == nil || got.HostConfig == nil {
		return State{}, &backend.Error{Op: "inspect", Kind: backend.ErrInternal, Err: errors.New("the daemon's answer lacks the state")}
	}
	s := State{
		ID: got.ID, Name: trimSlash(got.Name), ImageID: got.Image, Labels: got.Config.Labels,
		Status: got.State.Status, Running: got.State.Running, Paused: got.State.Paused, PID: got.State.Pid,
		OOMKilled: got.State.OOMKilled, ExitCode: got.State.ExitCode, Error: oneLine(got.State.Error),
		Started: parseTime(got.State.StartedAt), Finished: parseTime(got.State.FinishedAt),
		Runtime: got.HostConfig.Runtime, Memory: got.HostConfig.Memory, NanoCPUs: got.HostConfig.NanoCPUs,
	}
	if got.HostConfig.PidsLimit != nil {
		s.PIDs = *got.HostConfig.PidsLimit
	}
	return s, nil
}

// parseTime reads a daemon's time; its zero time is Go's.
func parseTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t
}

// trimSlash takes the slash from the front of a container's name.
func trimSlash(name string) string {
	if len(name) > 0 && name[0] == '/' {
		return name[1:]
	}
	return name
}

// Listed is a container in a list.
type Listed struct {
	ID, Name, ImageID string
	Status            string // as in State
	Labels            map[string]string
	Created           time.Time
}

// List lists containers, running or not, that have the label key, with value
// unless that is "".
func (e *Engine) List(ctx context.Context, key, value string) ([]Listed, error) {
	var got []container.Summary
	err := e.do(ctx, call{op: "list", within: e.limits.normal}, func(ctx context.Context) (err error) {
		got, err = e.api.ContainerList(ctx, container.ListOptions{All: true, Filters: byLabel(key, value)})
		return err
	})
	if err != nil {
		return nil, err
	}
	var out []Listed
	for _, c := range got {
		l := Listed{ID: c.ID, ImageID: c.ImageID, Status: c.State, Labels: c.Labels, Created: time.Unix(c.Created, 0)}
		if len(c.Names) > 0 {
			l.Name = trimSlash(c.Names[0])
		}
		out = append(out, l)
	}
	return out, nil
}

func byLabel(key, value string) filters.Args {
	if value != "" {
		key += "=" + value
	}
	return filters.NewArgs(filters.Arg("label", key))
}
