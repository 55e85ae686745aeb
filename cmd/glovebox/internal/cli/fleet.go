package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/internal/strict"
)

const (
	// nameLabel is the label that --name sets.
	nameLabel = "name"
	// mainTag is the command of run -d, execTag those of exec and shell.
	mainTag = "main"
	execTag = "exec"
)

// listTimeout bounds how long one backend may take to tell what runs on it: a
// daemon that hangs must not hide the sandboxes of the others.
const listTimeout = 5 * time.Second

// callTimeout bounds one call about one sandbox.
const callTimeout = time.Minute

// fleet is all configured backends, for finding kept sandboxes on them.
type fleet struct {
	backends []*station
	limits   func(template string) config.Limits
}

// station is one configured backend.
type station struct {
	name    string
	driver  string
	implied bool             // nobody configured it: it is there for its driver
	ex      backend.Executor // nil when it could not be opened
	err     error            // why
}

// notThere is why a backend that nobody configured cannot be asked: it is most
// likely not on this host at all.
type notThere struct{ err error }

func (e *notThere) Error() string { return e.err.Error() }
func (e *notThere) Unwrap() error { return e.err }

// entry is a sandbox on a backend.
type entry struct {
	backend.Info
	at *station
}

// fleet opens every configured backend. The caller closes it. One that cannot
// be opened is told when it is asked.
func (a *App) fleet(ctx context.Context) (*fleet, error) {
	l, reg, err := a.load(nil)
	if err != nil {
		return nil, err
	}
	fl := &fleet{limits: l.Config.LimitsFor}
	for _, name := range slices.Sorted(maps.Keys(l.Config.Backends)) {
		b := l.Config.Backends[name]
		st := &station{name: name, driver: b.Driver, implied: name == b.Driver && len(b.With) == 0}
		st.ex, st.err = reg.Open(ctx, b.Driver, l.Config.Env(name), b.With)
		fl.backends = append(fl.backends, st)
	}
	return fl, nil
}

// close closes the backends, which leaves kept sandboxes alone.
func (f *fleet) close() {
	for _, st := range f.backends {
		if st.ex != nil {
			_ = st.ex.Close() // nothing was made that it could fail to end
		}
	}
}

// list is every sandbox of every backend, oldest first, and what backends could
// not be asked. A backend that keeps no sandboxes has none. With names it is
// enough to have found the IDs among them, so that a backend which hangs does
// not hold up the work on another's sandbox.
func (f *fleet) list(ctx context.Context, names ...string) (all []entry, unasked []error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		entries []entry
		err     error
	}
	answers := make(chan answer, len(f.backends))
	for _, st := range f.backends {
		go func() {
			entries, err := st.list(ctx)
			answers <- answer{entries, err}
		}()
	}
	for range f.backends {
		got := <-answers
		all = append(all, got.entries...)
		if got.err != nil {
			unasked = append(unasked, got.err)
		}
		if len(names) > 0 && allIDs(all, names) {
			break
		}
	}
	return once(all), unasked
}

// once is all, oldest first, without what is listed twice: two backends of one
// driver and state directory see the same sandboxes. The one that somebody
// configured is named.
func once(all []entry) []entry {
	slices.SortFunc(all, func(a, b entry) int {
		preference := 0
		if a.at.implied != b.at.implied {
			preference = 1
			if b.at.implied {
				preference = -1
			}
		}
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.ID, b.ID), preference, cmp.Compare(a.at.name, b.at.name))
	})
	return slices.CompactFunc(all, func(a, b entry) bool { return a.ID == b.ID && a.at.driver == b.at.driver })
}

// allIDs tells whether names are IDs of these.
func allIDs(all []entry, names []string) bool {
	for _, name := range names {
		if !slices.ContainsFunc(all, func(e entry) bool { return e.ID == name }) {
			return false
		}
	}
	return true
}

func (st *station) list(ctx context.Context) ([]entry, error) {
	if st.ex == nil {
		return nil, st.failure(st.err)
	}
	finder, ok := backend.As[backend.Finder](st.ex)
	if !ok {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	type answer struct {
		entries []entry
		err     error
	}
	// In a goroutine of its own, since a driver may not heed ctx at once.
	c := make(chan answer, 1)
	go func() {
		var got answer
		for info, err := range finder.Sandboxes(ctx) {
			if err != nil {
				got.err = st.failure(err)
				break
			}
			info.Backend = st.name
			got.entries = append(got.entries, entry{info, st})
		}
		c <- got
	}()
	select {
	case got := <-c:
		return got.entries, got.err
	case <-ctx.Done():
		if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
			return nil, cause
		}
		return nil, &backend.Error{
			Op: "list", Kind: backend.ErrUnavailable, Backend: st.name, Err: fmt.Errorf("no answer within %s", listTimeout),
		}
	}
}

// failure is why a backend cannot be asked.
func (st *station) failure(err error) error {
	kind := backend.KindOf(err)
	err = fmt.Errorf("backend %s: %w", st.name, err)
	if st.implied && (kind == backend.ErrUnavailable || kind == backend.ErrUnsupported) {
		return &notThere{err}
	}
	return err
}

// find takes the sandbox up.
func (e entry) find(ctx context.Context) (backend.Sandbox, error) {
	finder, ok := backend.As[backend.Finder](e.at.ex)
	if !ok {
		return nil, &backend.Error{Op: "find", Kind: backend.ErrUnsupported, Backend: e.Backend, Sandbox: e.ID}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return finder.Find(ctx, e.ID)
}

// pick is the one sandbox of all that name means: an ID, the name it was given,
// or the beginning of an ID that no other has.
func pick(all []entry, unasked []error, name string) (entry, error) {
	fail := func(kind backend.Kind, fix, format string, args ...any) (entry, error) {
		return entry{}, &backend.Error{Op: "find", Kind: kind, Err: fmt.Errorf(format, args...), Fix: fix}
	}
	var exact, named, prefixed []entry
	for _, e := range all {
		switch {
		case e.ID == name:
			exact = append(exact, e)
		case !e.Keep:
		case e.Labels[nameLabel] == name && name != "":
			named = append(named, e)
		case strings.HasPrefix(e.ID, name) && name != "":
			prefixed = append(prefixed, e)
		}
	}
	for _, found := range [][]entry{exact, named, prefixed} {
		if len(found) == 1 && !found[0].Keep {
			return fail(backend.ErrConflict, "make one that can be used with: glovebox create", "%s belongs to the process that made it", name)
		}
		if len(found) == 1 {
			return found[0], nil
		}
		if len(found) > 1 {
			return fail(backend.ErrInvalid, "give the whole ID", "%q means %d sandboxes: %s", name, len(found), idsOf(found))
		}
	}
	var not strings.Builder
	for _, err := range unasked {
		not.WriteString("; not asked: " + err.Error())
	}
	why := not.String()
	if c := strict.Closest(name, append(idList(all), namesOf(all)...)); c != "" {
		return fail(backend.ErrNotFound, "", "there is no sandbox %q, did you mean %q?%s", name, c, why)
	}
	return fail(backend.ErrNotFound, "see: glovebox ps", "there is no sandbox %q%s", name, why)
}

func idList(all []entry) []string {
	out := make([]string, len(all))
	for i, e := range all {
		out[i] = e.ID
	}
	return out
}

func idsOf(all []entry) string { return strings.Join(idList(all), ", ") }

func namesOf(all []entry) []string {
	var out []string
	for _, e := range all {
		if n := e.Labels[nameLabel]; n != "" && e.Keep {
			out = append(out, n)
		}
	}
	return out
}

// one finds the sandbox of that name and takes it up.
func (f *fleet) one(ctx context.Context, name string) (backend.Sandbox, entry, error) {
	all, unasked := f.list(ctx, name)
	if err := ctx.Err(); err != nil {
		return nil, entry{}, err
	}
	e, err := pick(all, unasked, name)
	if err != nil {
		return nil, entry{}, err
	}
	sb, err := e.find(ctx)
	return sb, e, err
}

// validName refuses names that could be mistaken.
func validName(name string) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
	if len(name) > 63 || strings.ContainsAny(name[:1], "_.-") {
		return usagef("--name: %q is longer than 63 characters or begins with none of a letter and a digit", name)
	}
	for _, r := range name {
		if !strings.ContainsRune(letters, r) {
			return usagef("--name: %q has the character %q; letters, digits, dots, dashes and underscores are allowed", name, r)
		}
	}
	return nil
}

// unsupported is a sandbox's backend not being able to do something.
func unsupported(op string, e entry) error {
	return &backend.Error{
		Op: op, Kind: backend.ErrUnsupported, Backend: e.Backend, Sandbox: e.ID, Err: errors.New("this backend cannot do that"),
	}
}
