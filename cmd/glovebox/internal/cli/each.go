package cli

import (
	"context"
	"fmt"
	"sync"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/term"
)

// done is what came of one sandbox.
type done struct {
	ID    string   `json:"id"`
	OK    bool     `json:"ok"`
	Error *failure `json:"error,omitempty"`
	err   error
}

// atOnce is how many sandboxes are worked on at the same time.
const atOnce = 8

// each does something with every sandbox that is named, prints the ID of each
// one it was done with, in the order given, and complains about the others.
// missing is what an absent one is: an error, or nothing to do.
func (a *App) each(ctx context.Context, names []string, asJSON, missing bool, do func(context.Context, entry) error) error {
	fl, err := a.fleet(ctx)
	if err != nil {
		return err
	}
	defer fl.close()
	all, unasked := fl.list(ctx, names...)
	if err := ctx.Err(); err != nil {
		return err
	}
	results := make([]done, len(names))
	var targets []entry
	var which []int
	for i, name := range names {
		e, err := pick(all, unasked, name)
		results[i] = done{ID: name, err: err}
		if err == nil {
			results[i].ID = e.ID
			targets, which = append(targets, e), append(which, i)
		}
	}
	for i, err := range doAll(ctx, targets, do) {
		results[which[i]].err = err
	}
	return a.tell(results, asJSON, missing)
}

// doAll does something with several sandboxes at once.
func doAll(ctx context.Context, targets []entry, do func(context.Context, entry) error) []error {
	errs := make([]error, len(targets))
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, e := range targets {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if errs[i] = ctx.Err(); errs[i] == nil {
				cctx, cancel := context.WithTimeout(ctx, callTimeout)
				defer cancel()
				errs[i] = do(cctx, e)
			}
		})
	}
	wg.Wait()
	return errs
}

// tell prints results and ends with the exit code they give.
func (a *App) tell(results []done, asJSON, missing bool) error {
	failed := false
	for i := range results {
		r := &results[i]
		if missing && backend.KindOf(r.err) == backend.ErrNotFound {
			r.err = nil
		}
		r.OK, r.Error = r.err == nil, newFailure(r.err)
		failed = failed || !r.OK
		switch {
		case asJSON:
		case r.OK:
			fmt.Fprintln(a.Stdout, term.String(r.ID))
		default:
			a.complain(r.err)
		}
	}
	if asJSON {
		if err := printJSON(a.Stdout, results); err != nil {
			return err
		}
	}
	if failed {
		return &exitError{code: exitFailed}
	}
	return nil
}

// sandboxArgs wants at least the names of some sandboxes.
func sandboxArgs(least int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < least {
			return usagef("name a sandbox; see: glovebox ps")
		}
		return nil
	}
}

// oneSandbox wants exactly one.
func oneSandbox(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("unexpected argument %q", args[1])
	}
	return sandboxArgs(1)(cmd, args)
}

// completeIDs completes the names of kept sandboxes; only the first argument
// where more is something else.
func (a *App) completeIDs(only1st bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if only1st && len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		fl, err := a.fleet(cmd.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		defer fl.close()
		var out []cobra.Completion
		all, _ := fl.list(cmd.Context()) // what can be asked
		for _, e := range all {
			if e.Keep {
				out = append(out, cobra.CompletionWithDesc(e.ID, term.String(fmt.Sprintf("%s on %s %s", e.State, e.Backend, labelText(e.Labels)))))
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
