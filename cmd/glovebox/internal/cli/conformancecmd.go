package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/conformance"
	"github.com/glovebox-dev/glovebox/conformance/host"
	"github.com/glovebox-dev/glovebox/internal/registry"
	"github.com/glovebox-dev/glovebox/internal/strict"
	"github.com/glovebox-dev/glovebox/internal/term"
)

// conformanceFlags are those of the command.
type conformanceFlags struct {
	backends []string
	filter   string
	template string
	list     bool
	json     bool
	parallel int
	timeout  time.Duration
}

// conformanceReport is what --json prints.
type conformanceReport struct {
	Schema  int                  `json:"schema"`
	Reports []conformance.Report `json:"reports"`
}

func (a *App) conformanceCommand() *cobra.Command {
	f := &conformanceFlags{}
	cmd := &cobra.Command{
		Use: "conformance", Short: "Test what the backends claim, with programs in their sandboxes", Args: noArgs,
		Long: `Test what the backends claim, with programs in their sandboxes.

Each case is a requirement. It passes, fails, is unsupported (the backend does not
claim it, and refuses it as it must) or is inconclusive (something it needs, such as
python3 in the sandbox, is not there). The exit code is 0 only when nothing failed
and nothing was left behind on this host, which no one else should use meanwhile.`,
		Example: "  glovebox conformance --backend subprocess\n  glovebox conformance --filter '^files|LC-0' --json\n  glovebox conformance --list",
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.conformance(cmd.Context(), f) },
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&f.backends, "backend", nil, "test these configured backends, not all that are available: `NAMES`")
	fs.StringVar(&f.filter, "filter", "", "run the cases whose area, ID and title match `REGEXP`")
	fs.StringVar(&f.template, "template", "", "make every sandbox from this template: `NAME`")
	fs.BoolVar(&f.list, "list", false, "list the cases and run none")
	fs.BoolVar(&f.json, "json", false, "print JSON")
	fs.IntVar(&f.parallel, "parallel", 2, "run `N` cases at a time")
	fs.DurationVar(&f.timeout, "case-timeout", 2*time.Minute, "let a case take at most this `DURATION`")
	return cmd
}

func (a *App) conformance(ctx context.Context, f *conformanceFlags) error {
	if f.parallel < 1 || f.parallel > 64 {
		return usagef("--parallel: %d is not between 1 and 64", f.parallel)
	}
	match, err := conformance.Matching(f.filter)
	if err != nil {
		return usagef("--filter: %w", err)
	}
	if f.list {
		return a.listCases(f.json, match)
	}
	l, reg, err := a.load(nil)
	if err != nil {
		return err
	}
	names, err := a.conformanceBackends(ctx, f, l.Config, reg)
	if err != nil {
		return err
	}
	out := conformanceReport{Schema: conformance.SchemaVersion}
	var failed []string
	for _, name := range names {
		report, err := a.testBackend(ctx, f, name, l.Config, reg, match)
		if err != nil {
			return err
		}
		out.Reports = append(out.Reports, report)
		if !report.OK() {
			failed = append(failed, name)
		}
		if !f.json {
			w := term.NewWriter(a.Stdout)
			if err := errors.Join(report.WriteTable(w), w.Close()); err != nil {
				return err
			}
		}
	}
	if f.json {
		if err := printJSON(a.Stdout, out); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(failed) > 0 {
		return fmt.Errorf("not as it must be: %s", strings.Join(failed, ", "))
	}
	return nil
}

// conformanceBackends are those that were named, or all that are available.
func (a *App) conformanceBackends(ctx context.Context, f *conformanceFlags, cfg config.Config, reg *registry.Registry) ([]string, error) {
	known := slices.Sorted(maps.Keys(cfg.Backends))
	for _, name := range f.backends {
		if !slices.Contains(known, name) {
			return nil, &usageError{fmt.Errorf("--backend: %w", strict.Unknown("backend", name, known))}
		}
	}
	if len(f.backends) > 0 {
		return f.backends, nil
	}
	executors := config.Open(cfg, reg)
	defer executors.Close() //nolint:errcheck // probing opens nothing
	var names []string
	for _, name := range known {
		report, err := executors.Probe(ctx, name)
		if err == nil && report.Health.Available {
			names = append(names, name)
			continue
		}
		why := report.Health.Reason
		if err != nil {
			why = err.Error()
		}
		a.warn(fmt.Sprintf("backend %s is not available: %s", name, why))
	}
	if len(names) == 0 {
		return nil, errors.New("no backend is available; see: glovebox doctor")
	}
	return names, nil
}

// testBackend runs the suite against one backend, without any layer around it.
func (a *App) testBackend(
	ctx context.Context, f *conformanceFlags, name string, cfg config.Config, reg *registry.Registry, match func(conformance.Case) bool,
) (conformance.Report, error) {
	b := cfg.Backends[name]
	target := conformance.Target{
		Name: name, Spec: backend.Spec{Template: f.template},
		Open: func(ctx context.Context) (backend.Executor, error) {
			return reg.Open(ctx, b.Driver, cfg.Env(name), b.With)
		},
		Witness: host.New(func() []string { return []string{"glovebox-"} }),
	}
	total, done := 0, 0
	for _, c := range conformance.Cases() {
		if match(c) {
			total++
		}
	}
	if total == 0 {
		return conformance.Report{}, usagef("--filter: no case matches %q", f.filter)
	}
	return conformance.Run(ctx, target, conformance.Options{
		Filter: match, Parallel: f.parallel, Timeout: f.timeout,
		OnResult: func(res conformance.Result) {
			done++
			fmt.Fprintf(a.Stderr, "%s: %d/%d %s %s %s (%v)\n",
				name, done, total, res.Verdict, res.ID, term.String(res.Title), res.Took.Round(time.Millisecond))
		},
	})
}

// listedCase is a case as --list --json prints it.
type listedCase struct {
	ID    string             `json:"id"`
	Area  conformance.Area   `json:"area"`
	Title string             `json:"title"`
	Needs []conformance.Need `json:"needs,omitempty"`
}

func (a *App) listCases(asJSON bool, match func(conformance.Case) bool) error {
	cases := []listedCase{}
	for _, c := range conformance.Cases() {
		if match(c) {
			cases = append(cases, listedCase{c.ID, c.Area, c.Title, c.Needs})
		}
	}
	if asJSON {
		return printJSON(a.Stdout, cases)
	}
	tw := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
	for _, c := range cases {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", c.ID, c.Area, c.Title)
	}
	return tw.Flush()
}
