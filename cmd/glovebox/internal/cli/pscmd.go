package cli

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/strict"
	"github.com/glovebox-dev/glovebox/internal/term"
)

func (a *App) psCommand() *cobra.Command {
	var quiet, asJSON, all bool
	var filters []string
	cmd := &cobra.Command{
		Use: "ps [flags]", Aliases: []string{"ls", "list"}, Args: noArgs,
		Short: "List kept sandboxes of every backend",
		Long: `List kept sandboxes of every backend, running and paused ones.

A backend that cannot be asked is warned of, unless nobody configured it and --all is
not given; when none could be asked, the exit code is 1.`,
		Example: "  glovebox ps\n  glovebox ps -q --filter label=job=7",
		RunE: func(cmd *cobra.Command, _ []string) error {
			match, err := parseFilters(filters)
			if err != nil {
				return err
			}
			fl, err := a.fleet(cmd.Context())
			if err != nil {
				return err
			}
			defer fl.close()
			list, unasked := fl.list(cmd.Context())
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			list = slices.DeleteFunc(list, func(e entry) bool {
				return !match.match(e) || !all && (!e.Keep || e.State == backend.StateLost)
			})
			for _, err := range unasked {
				if _, absent := errors.AsType[*notThere](err); all || !absent {
					a.warn(err.Error())
				}
			}
			if err := a.printSandboxes(list, quiet, asJSON); err != nil {
				return err
			}
			if n := len(unasked); n > 0 && n == len(fl.backends) {
				return &exitError{code: exitFailed}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&quiet, "quiet", "q", false, "print IDs only")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.BoolVarP(&all, "all", "a", false, "also lost sandboxes, and those of a run that is under way")
	f.StringArrayVar(&filters, "filter", nil, "only those that match `KEY=VALUE`: label=K or label=K=V, state, backend, template, name, id (repeatable)")
	return cmd
}

func (a *App) printSandboxes(list []entry, quiet, asJSON bool) error {
	if asJSON && !quiet {
		infos := make([]backend.Info, len(list))
		for i, e := range list {
			infos[i] = e.Info
		}
		return printJSON(a.Stdout, infos)
	}
	if asJSON {
		return printJSON(a.Stdout, idList(list))
	}
	if quiet {
		for _, e := range list {
			if _, err := fmt.Fprintln(a.Stdout, term.String(e.ID)); err != nil {
				return err
			}
		}
		return nil
	}
	rows := [][]string{{"ID", "NAME", "BACKEND", "ISOLATION", "STATE", "TEMPLATE", "STARTED", "LEFT", "LABELS"}}
	for _, e := range list {
		state := string(e.State)
		if !e.Keep {
			state += " (bound)"
		}
		labels := maps.Clone(e.Labels)
		delete(labels, nameLabel)
		rows = append(rows, []string{
			e.ID, e.Labels[nameLabel], e.Backend, e.Isolation.String(), state, e.Template, ago(e.Started), left(e.Info), labelText(labels),
		})
	}
	return a.table(rows)
}

// table prints rows in columns, each cell on its line.
func (a *App) table(rows [][]string) error {
	w := tabwriter.NewWriter(a.Stdout, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = strings.ReplaceAll(term.String(cell), "\t", " ")
			if row[i] == "" {
				row[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

func ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return span(time.Since(t)) + " ago"
}

// left is how long a sandbox has to its deadline.
func left(i backend.Info) string {
	switch d := time.Until(i.Deadline); {
	case i.Deadline.IsZero():
		return ""
	case d <= 0:
		return "over"
	default:
		return span(d)
	}
}

// span is a duration as lists show it: "12s", "4m10s", "3h20m".
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	default:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
}

func labelText(labels map[string]string) string {
	items := make([]string, 0, len(labels))
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		items = append(items, k+"="+labels[k])
	}
	return strings.Join(items, ",")
}

// filters are what --filter asks for; a sandbox matches when all of them do.
type filters []func(entry) bool

func (f filters) match(e entry) bool {
	for _, one := range f {
		if !one(e) {
			return false
		}
	}
	return true
}

func parseFilters(items []string) (filters, error) {
	known := []string{"label", "state", "backend", "template", "name", "id"}
	var out filters
	for _, item := range items {
		key, value, ok := strings.Cut(item, "=")
		if !ok || value == "" {
			return nil, usagef("--filter: %q is not KEY=VALUE", item)
		}
		switch key {
		case "label":
			k, v, valued := strings.Cut(value, "=")
			out = append(out, func(e entry) bool {
				got, ok := e.Labels[k]
				return ok && (!valued || got == v)
			})
		case "state":
			out = append(out, func(e entry) bool { return string(e.State) == value })
		case "backend":
			out = append(out, func(e entry) bool { return e.Backend == value })
		case "template":
			out = append(out, func(e entry) bool { return e.Template == value })
		case "name":
			out = append(out, func(e entry) bool { return e.Labels[nameLabel] == value })
		case "id":
			out = append(out, func(e entry) bool { return strings.HasPrefix(e.ID, value) })
		default:
			return nil, &usageError{fmt.Errorf("--filter: %w", strict.Unknown("key", key, known))}
		}
	}
	return out, nil
}
