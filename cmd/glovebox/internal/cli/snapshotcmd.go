package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/strict"
	"github.com/glovebox-dev/glovebox/internal/term"
)

func (a *App) snapshotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "snapshot", Aliases: []string{"snap"}, Short: "Save kept sandboxes, and list and remove what was saved",
		Long: `Save kept sandboxes, and list and remove what was saved.

A snapshot holds a sandbox's files and, unless --files-only, its running programs. Any
number of sandboxes are made from it with: glovebox create --from NAME`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q, known are create, ls, rm", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.snapshotCreate(), a.snapshotList(), a.snapshotRemove())
	return cmd
}

func (a *App) snapshotCreate() *cobra.Command {
	var asJSON bool
	var opts backend.SnapshotOptions
	cmd := &cobra.Command{
		Use: "create [flags] SANDBOX", Short: "Save a kept sandbox, which goes on, and print the snapshot's name",
		Example: "  glovebox snapshot create build --name warm\n  glovebox create --from warm",
		Args:    oneSandbox, ValidArgsFunction: a.completeIDs(true),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := a.takeSnapshot(cmd.Context(), args[0], opts)
			if err != nil {
				return a.orDocument(err, asJSON, exitFailed)
			}
			if asJSON {
				return printJSON(a.Stdout, struct {
					Name string `json:"name"`
				}{name})
			}
			_, err = fmt.Fprintln(a.Stdout, term.String(name))
			return err
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&opts.Name, "name", "", "call it `NAME`")
	fl.BoolVar(&opts.FilesOnly, "files-only", false, "save no programs")
	fl.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *App) takeSnapshot(ctx context.Context, sandbox string, opts backend.SnapshotOptions) (string, error) {
	fl, err := a.fleet(ctx)
	if err != nil {
		return "", err
	}
	defer fl.close()
	sb, e, err := fl.one(ctx, sandbox)
	if err != nil {
		return "", err
	}
	s, ok := backend.As[backend.Snapshotter](sb)
	if !ok {
		return "", unsupported("snapshot", e)
	}
	return s.Snapshot(ctx, opts)
}

// saved is a snapshot on a backend.
type saved struct {
	backend.SnapshotInfo
	Backend string `json:"backend"`
	at      *station
}

// snapshots are those of every backend, the oldest first.
func (f *fleet) snapshots(ctx context.Context) (all []saved, unasked []error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for _, st := range f.backends {
		if st.ex == nil {
			unasked = append(unasked, st.failure(st.err))
			continue
		}
		store, ok := backend.As[backend.SnapshotStore](st.ex)
		if !ok {
			continue
		}
		for info, err := range store.Snapshots(ctx) {
			if err != nil {
				unasked = append(unasked, st.failure(err))
				break
			}
			all = append(all, saved{info, st.name, st})
		}
	}
	// As with sandboxes, two backends may see the same.
	slices.SortFunc(all, func(a, b saved) int {
		preference := 0
		if a.at.implied != b.at.implied {
			preference = 1
			if b.at.implied {
				preference = -1
			}
		}
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name), preference, cmp.Compare(a.Backend, b.Backend))
	})
	all = slices.CompactFunc(all, func(a, b saved) bool {
		return a.Name == b.Name && a.Sandbox == b.Sandbox && a.at.driver == b.at.driver
	})
	return all, unasked
}

func (a *App) snapshotList() *cobra.Command {
	var asJSON, quiet bool
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the snapshots of every backend", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fl, err := a.fleet(cmd.Context())
			if err != nil {
				return err
			}
			defer fl.close()
			all, unasked := fl.snapshots(cmd.Context())
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			for _, err := range unasked {
				if _, absent := errors.AsType[*notThere](err); !absent {
					a.warn(err.Error())
				}
			}
			return a.printSnapshots(all, quiet, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print names only")
	return cmd
}

func (a *App) printSnapshots(all []saved, quiet, asJSON bool) error {
	switch {
	case asJSON:
		return printJSON(a.Stdout, append([]saved{}, all...))
	case quiet:
		for _, s := range all {
			if _, err := fmt.Fprintln(a.Stdout, term.String(s.Name)); err != nil {
				return err
			}
		}
		return nil
	}
	rows := [][]string{{"NAME", "BACKEND", "SANDBOX", "HOLDS", "CREATED", "SIZE"}}
	for _, s := range all {
		holds := "programs, files"
		if s.FilesOnly {
			holds = "files"
		}
		rows = append(rows, []string{s.Name, s.Backend, s.Sandbox, holds, ago(s.Created), size(s.Bytes)})
	}
	return a.table(rows)
}

func (a *App) snapshotRemove() *cobra.Command {
	var asJSON, force bool
	cmd := &cobra.Command{
		Use: "rm SNAPSHOT...", Aliases: []string{"remove"}, Short: "Remove snapshots",
		Long:              "Remove snapshots. Sandboxes that were made from them go on.",
		ValidArgsFunction: a.completeSnapshots,
		RunE: func(cmd *cobra.Command, names []string) error {
			if len(names) == 0 {
				return usagef("name a snapshot; see: glovebox snapshot ls")
			}
			fl, err := a.fleet(cmd.Context())
			if err != nil {
				return err
			}
			defer fl.close()
			all, _ := fl.snapshots(cmd.Context()) // what can be asked
			results := make([]done, len(names))
			for i, name := range names {
				results[i] = done{ID: name, err: removeSnapshot(cmd.Context(), all, name)}
			}
			return a.tell(results, asJSON, force)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "one that is not there is fine")
	return cmd
}

func removeSnapshot(ctx context.Context, all []saved, name string) error {
	i := slices.IndexFunc(all, func(s saved) bool { return s.Name == name })
	if i < 0 {
		names := make([]string, len(all))
		for i, s := range all {
			names[i] = s.Name
		}
		err := fmt.Errorf("there is no snapshot %q", name)
		if c := strict.Closest(name, names); c != "" {
			err = fmt.Errorf("there is no snapshot %q, did you mean %q?", name, c)
		}
		return &backend.Error{Op: "snapshot", Kind: backend.ErrNotFound, Err: err, Fix: "see: glovebox snapshot ls"}
	}
	store, ok := backend.As[backend.SnapshotStore](all[i].at.ex)
	if !ok {
		return &backend.Error{Op: "snapshot", Kind: backend.ErrUnsupported, Backend: all[i].Backend}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return store.DeleteSnapshot(ctx, name)
}

// completeSnapshots completes the names of snapshots.
func (a *App) completeSnapshots(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	fl, err := a.fleet(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	defer fl.close()
	var out []cobra.Completion
	all, _ := fl.snapshots(cmd.Context()) // what can be asked
	for _, s := range all {
		out = append(out, cobra.CompletionWithDesc(s.Name, term.String(fmt.Sprintf("of %s on %s", s.Sandbox, s.Backend))))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
