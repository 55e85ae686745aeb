//go:build linux

package dockerbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/box"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/launch/cgroup"
	"github.com/glovebox-dev/glovebox/internal/state"
	"github.com/glovebox-dev/glovebox/internal/unixsock"
)

// body is a container.
type body struct {
	d      *Driver
	name   string
	id     string // the engine's; "" until it is known
	dir    string // the sandbox's own
	proc   state.Proc
	groups *engine.Groups // nil where they cannot be read
}

// Kill implements box.Body. It does not ask the daemon, which may hang: with its
// first process a container's pid namespace ends.
func (b *body) Kill() {
	b.thawed()
	box.KillProcess(b.proc)
}

// thawed lets a frozen container go on, so that it can die: under the v1 freezer
// even SIGKILL stays pending.
func (b *body) thawed() {
	if b.groups == nil {
		return
	}
	if dir := b.groups.V1["freezer"]; dir != "" {
		os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0) //nolint:errcheck // not frozen, or gone
	}
}

// Gone implements box.Body.
func (b *body) Gone(ctx context.Context) error { return box.WaitGone(ctx, b.proc) }

// daemonTimeout bounds what the end of a sandbox asks of the daemon.
const daemonTimeout = 20 * time.Second

// Remove implements box.Body.
func (b *body) Remove(ctx context.Context) error {
	err := b.d.discard(ctx, b.name, b.id)
	return errors.Join(err, box.RemoveScratch(b.dir))
}

// discard removes a container from the engine, and then what is left of it on
// this host: processes first. The engine's word is not enough: of a container
// that was killed while its runtime had it paused, or of a failed start, it
// forgets more than has gone. id, where it is known, is what the host is
// searched for.
func (d *Driver) discard(ctx context.Context, name, id string) error {
	dctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	err := d.engine.Remove(dctx, name)
	if backend.KindOf(err) == backend.ErrConflict {
		err = d.settled(dctx, name) // somebody else removes it
	}
	if id == "" || d.o.Remote {
		return err
	}
	left, ferr := engine.FindRemains(id)
	if ferr != nil || left[0].Empty() {
		return errors.Join(err, ferr)
	}
	return errors.Join(err, left[0].Clean(ctx))
}

// settled waits for the end of somebody else's removal.
func (d *Driver) settled(ctx context.Context, name string) error {
	for {
		_, err := d.engine.Inspect(ctx, name)
		if backend.KindOf(err) == backend.ErrNotFound {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		if err := d.engine.Remove(ctx, name); err == nil {
			return nil
		}
	}
}

// undo removes what a sandbox that could not be made has left.
func (b *body) undo(ctx context.Context) {
	box.KillProcess(b.proc)
	b.d.discard(ctx, b.name, b.id) //nolint:errcheck // the sweep tries again
}

// Stats implements box.Body.
func (b *body) Stats() (cgroup.Stats, bool) {
	if b.groups == nil {
		return cgroup.Stats{}, false
	}
	s := cgroup.Foreign{V2: b.groups.V2, V1: b.groups.V1}.Stats()
	if b.alone() {
		s.Tasks = 0
	}
	return s, true
}

// alone tells whether nothing runs in the container but its agent.
func (b *body) alone() bool {
	dir := b.groups.V1["pids"]
	if dir == "" {
		dir = b.groups.V2
	}
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	return err == nil && strings.TrimSpace(string(data)) == strconv.Itoa(b.proc.PID)
}

// whyTimeout bounds how long the end of a container is waited for by those whom
// it has left without an answer.
const whyTimeout = 2 * time.Second

// afterthought is how long after a container's end the engine may come to say
// that it was for memory.
const afterthought = 300 * time.Millisecond

// Why implements box.Body.
func (b *body) Why() box.Outcome {
	ctx, cancel := context.WithTimeout(context.Background(), whyTimeout) //nolint:forbidigo // nobody's call
	defer cancel()
	st, err := b.d.engine.Wait(ctx, b.name)
	switch {
	case backend.KindOf(err) == backend.ErrNotFound:
		return box.Outcome{Words: "its container was removed"}
	case err != nil:
		return b.silent()
	}
	// The engine learns of the end and of its reason apart from each other.
	for until := time.Now().Add(afterthought); st.ExitCode == killed && !st.OOMKilled && time.Now().Before(until); {
		<-time.After(afterthought / 10)
		again, err := b.d.engine.Inspect(ctx, b.name)
		if err != nil {
			break
		}
		st = again
	}
	return box.Outcome{
		Words:       "its container ended: " + endState(st),
		OutOfMemory: st.OOMKilled && st.ExitCode == killed,
	}
}

// silent is the outcome of a container whose end the engine did not tell in
// time.
func (b *body) silent() box.Outcome {
	ctx, cancel := context.WithTimeout(context.Background(), whyTimeout) //nolint:forbidigo // nobody's call
	defer cancel()
	if err := b.d.engine.Ping(ctx); err != nil {
		return box.Outcome{Words: "the engine does not answer"}
	}
	return box.Outcome{}
}

// killed is the exit status of a container whose first process was killed.
const killed = 137

func ending(e engine.Ending) string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return endState(e.State)
}

func endState(st engine.State) string {
	s := fmt.Sprintf("exit status %d", st.ExitCode)
	if st.OOMKilled {
		s += ", out of memory"
	}
	if st.Error != "" {
		s += ": " + box.Sanitize(st.Error)
	}
	return s
}

// Leave implements box.Body.
func (b *body) Leave() {}

// Freeze implements box.Freezer.
func (b *body) Freeze(ctx context.Context) error { return b.d.engine.Pause(ctx, b.name) }

// Thaw implements box.Freezer.
func (b *body) Thaw(ctx context.Context) error { return b.d.engine.Unpause(ctx, b.name) }

// TakeUp implements box.Driver.
func (d *Driver) TakeUp(ctx context.Context, rec state.Record) (*box.Made, error) {
	b := &body{d: d, name: box.Name(d.store, rec.ID), dir: box.Dir(d.store, rec.ID), proc: state.Proc{PID: rec.AgentPID, Start: rec.AgentStart}}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if st, err := d.engine.Inspect(ctx, b.name); err == nil {
		b.id = st.ID
	} else {
		// An engine that hangs keeps nobody from ending what it has made.
		b.id = engine.ContainerOf(rec.AgentPID)
	}
	if start, err := state.StartTime(rec.AgentPID); err != nil || start != rec.AgentStart {
		return &box.Made{Body: b, Dial: unixsock.Dialer(rec.Socket)}, nil
	}
	if groups, err := engine.HostGroups(b.id, rec.AgentPID); err == nil {
		b.groups = &groups
	}
	return &box.Made{Body: b, Dial: unixsock.Dialer(rec.Socket)}, nil
}

// Orphans implements box.Driver. Of an engine that does not answer nothing can
// be said.
func (d *Driver) Orphans(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	list, err := d.engine.List(ctx, labelStore, d.store.ID())
	if err != nil {
		return nil, nil //nolint:nilerr // see above
	}
	if d.o.Remote {
		d.removeDerived(ctx, list)
	}
	prefix := box.Name(d.store, "")
	var ids []string
	for _, c := range list {
		if id, ok := strings.CutPrefix(c.Name, prefix); ok && c.Labels[labelDriver] == d.o.Name {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Clean implements box.Driver.
func (d *Driver) Clean(ctx context.Context, id string, _ state.Mark) error {
	name := box.Name(d.store, id)
	dctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	full := ""
	if st, err := d.engine.Inspect(dctx, name); err == nil {
		full = st.ID
	}
	err := d.discard(ctx, name, full)
	return errors.Join(err, box.RemoveScratch(box.Dir(d.store, id)))
}

var (
	_ box.Driver  = (*Driver)(nil)
	_ box.Body    = (*body)(nil)
	_ box.Freezer = (*body)(nil)
)
