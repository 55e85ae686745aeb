package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/internal/state"
	"github.com/glovebox-dev/glovebox/internal/term"
)

// sweeper is on executors that clean up after processes that died: everything
// that runs on this host has it.
type sweeper interface {
	Sweep(ctx context.Context) error
}

// pruneTimeout bounds one backend's cleaning up.
const pruneTimeout = 2 * time.Minute

// pruned is a sandbox that prune found.
type pruned struct {
	ID      string   `json:"id"`
	Backend string   `json:"backend"`
	Why     string   `json:"why"` // "left over", "expired", "lost"
	Removed bool     `json:"removed"`
	Error   *failure `json:"error,omitempty"`
	err     error
}

func (a *App) pruneCommand() *cobra.Command {
	var asJSON, dry bool
	cmd := &cobra.Command{
		Use: "prune [flags]", Short: "Remove what is expired, lost or left over, and tell what it was", Args: noArgs,
		Long: `Remove what is expired, lost or left over, and tell what it was: sandboxes past their
deadline, those whose processes have gone, and what dead processes left behind. Nothing
that is in use is touched, nor what belongs to another state directory.

Every command that opens a backend sweeps in the background too; this one waits for it.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.prune(cmd.Context(), asJSON, dry) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "tell what would be removed and remove nothing")
	return cmd
}

func (a *App) prune(ctx context.Context, asJSON, dry bool) error {
	l, _, err := a.load(nil)
	if err != nil {
		return err
	}
	// Before any backend is opened, which begins to sweep.
	stores, err := openStores(slices.Collect(maps.Values(l.Config.Backends)))
	if err != nil {
		return err
	}
	defer closeStores(stores)
	found := map[string]*pruned{}
	for _, st := range stores {
		if err := leftovers(ctx, st, found); err != nil {
			return err
		}
	}
	var errs []error
	if !dry {
		errs = a.remove(ctx, found)
		if err := ctx.Err(); err != nil {
			return because(ctx, err)
		}
		still := map[string]*pruned{}
		for _, st := range stores {
			errs = append(errs, leftovers(ctx, st, still))
		}
		for id, p := range found {
			_, there := still[id]
			p.Removed = p.err == nil && !there
			p.Error = newFailure(p.err)
		}
	}
	return a.printPruned(found, errors.Join(errs...), asJSON, dry)
}

// remove ends what can be found and lets every backend sweep.
func (a *App) remove(ctx context.Context, found map[string]*pruned) []error {
	fl, err := a.fleet(ctx)
	if err != nil {
		return []error{err}
	}
	defer fl.close()
	all, errs := fl.list(ctx)
	errs = slices.DeleteFunc(errs, func(err error) bool {
		_, absent := errors.AsType[*notThere](err)
		return absent
	})
	for _, e := range all {
		expired := !e.Deadline.IsZero() && time.Now().After(e.Deadline)
		if !e.Keep || e.State != backend.StateLost && !expired {
			continue
		}
		p := found[e.ID]
		if p == nil {
			p = &pruned{ID: e.ID, Backend: e.Backend, Why: "expired"}
			found[e.ID] = p
		}
		if e.State == backend.StateLost {
			p.Why = "lost"
		}
		p.err = doAll(ctx, []entry{e}, destroy)[0]
		if slices.Contains([]backend.Kind{backend.ErrNotFound, backend.ErrExpired, backend.ErrClosed}, backend.KindOf(p.err)) {
			p.err = nil // it has just ended
		}
	}
	for _, st := range fl.backends {
		sw, ok := backend.As[sweeper](st.ex)
		if !ok {
			continue
		}
		sctx, cancel := context.WithTimeout(ctx, pruneTimeout)
		if err := sw.Sweep(sctx); err != nil {
			errs = append(errs, fmt.Errorf("backend %s: %w", st.name, err))
		}
		cancel()
	}
	return errs
}

// openStores opens the state directories that these backends use.
func openStores(backends []config.Backend) ([]*state.Store, error) {
	dirs := map[string]bool{}
	for _, b := range backends {
		own, _ := b.With["state_dir"].(string) // every local driver's name for it
		dir, err := state.Dir(own)
		if err != nil {
			return nil, err
		}
		dirs[dir] = true
	}
	var stores []*state.Store
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		st, err := state.Open(dir)
		if err != nil {
			closeStores(stores)
			return nil, err
		}
		stores = append(stores, st)
	}
	return stores, nil
}

func closeStores(stores []*state.Store) {
	for _, st := range stores {
		_ = st.Close() // read side
	}
}

// leftovers finds what a store says is dead or past its deadline.
func leftovers(ctx context.Context, st *state.Store, found map[string]*pruned) error {
	for mk, err := range st.Dead() {
		if err != nil {
			return err
		}
		mark, _ := mk.Content() // its ID is enough
		found[mk.ID()] = &pruned{ID: mk.ID(), Backend: mark.Backend, Why: "left over"}
		if err := mk.Close(); err != nil {
			return err
		}
	}
	live, err := st.Live()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(slices.Collect(maps.Values(live)), func(m state.Mark) bool { return m.Keep }) {
		return nil // so there need be no journal
	}
	j, err := st.Journal(ctx)
	if err != nil {
		return err
	}
	records, err := j.List(ctx)
	if err != nil {
		return err
	}
	for _, r := range records {
		if _, ok := live[r.ID]; ok && r.Ready && !r.Deadline.IsZero() && time.Now().After(r.Deadline) {
			found[r.ID] = &pruned{ID: r.ID, Backend: r.Backend, Why: "expired"}
		}
	}
	return nil
}

func (a *App) printPruned(found map[string]*pruned, err error, asJSON, dry bool) error {
	list := make([]*pruned, 0, len(found))
	for _, id := range slices.Sorted(maps.Keys(found)) {
		list = append(list, found[id])
	}
	if asJSON {
		if perr := printJSON(a.Stdout, list); perr != nil {
			return perr
		}
	}
	failed := false
	for _, p := range list {
		failed = failed || !p.Removed && !dry
		if asJSON {
			continue
		}
		what := "would be removed"
		switch {
		case p.Removed:
			what = "removed"
		case p.err != nil:
			what = "still there: " + p.err.Error()
		case !dry:
			what = "still there"
		}
		if _, perr := fmt.Fprintf(a.Stdout, "%s\t%s\t%s\t%s\n", term.String(p.ID), term.String(p.Backend), p.Why, term.String(what)); perr != nil {
			return perr
		}
	}
	if err == nil && failed {
		return &exitError{code: exitFailed}
	}
	return err
}
