package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/conformance"
)

// Exit codes of conformance run and verify beside exitFailed, which says that a
// backend is not conformant, and exitUsage.
const (
	exitBroke   = 3 // the suite itself could not do its work
	exitPartial = 4 // with --strict: not every case said something
)

func (a *App) conformanceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "conformance", Short: "Test what the backends claim, with programs in their sandboxes, and report it",
		Long: `Test what the backends claim, with programs in their sandboxes, and report it.

Each case is a requirement. It passes, fails, is unsupported (the backend does not
claim it, and refuses it as it must) or is inconclusive (something it needs, such as
python3 in the sandbox, is not there).`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q, known are run, list, show, report, diff, verify", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.conformanceRun(), a.conformanceList(), a.conformanceShow(), a.conformanceReport(), a.conformanceDiff(), a.conformanceVerify())
	return cmd
}

// selectionFlags are the flags that say which cases are meant.
type selectionFlags struct{ cases, areas, levels []string }

func (f *selectionFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringSliceVar(&f.cases, "cases", nil, "only cases with these IDs, which may have * in them: `IDS`")
	fs.StringSliceVar(&f.areas, "area", nil, "only cases of these `AREAS`")
	fs.StringSliceVar(&f.levels, "level", nil, "only cases of these levels, core and extended: `LEVELS`")
}

func (f *selectionFlags) filter() (func(conformance.Case) bool, error) {
	s := conformance.Selection{Cases: f.cases}
	for _, x := range f.areas {
		s.Areas = append(s.Areas, conformance.Area(x))
	}
	for _, x := range f.levels {
		s.Levels = append(s.Levels, conformance.Level(x))
	}
	match, err := s.Filter()
	if err != nil {
		return nil, &usageError{err}
	}
	return match, nil
}

// String is the selection as a report shows it.
func (f *selectionFlags) String() string {
	var parts []string
	for _, p := range []struct {
		name   string
		values []string
	}{{"cases", f.cases}, {"area", f.areas}, {"level", f.levels}} {
		if len(p.values) > 0 {
			parts = append(parts, p.name+" "+strings.Join(p.values, ","))
		}
	}
	return strings.Join(parts, ", ")
}

// listedCase is a case as documents have it.
type listedCase struct {
	ID      string             `json:"id"`
	Area    conformance.Area   `json:"area"`
	Level   conformance.Level  `json:"level"`
	Title   string             `json:"title"`
	Needs   []conformance.Need `json:"needs,omitempty"`
	Alone   bool               `json:"alone,omitempty"` // no other case runs beside it
	Timeout time.Duration      `json:"timeout_ns,omitempty"`
}

func listed(match func(conformance.Case) bool) []listedCase {
	cases := []listedCase{}
	for _, c := range conformance.Cases() {
		if match(c) {
			cases = append(cases, listedCase{c.ID, c.Area, c.Level(), c.Title, c.Needs, c.Alone, c.Timeout})
		}
	}
	return cases
}

func (a *App) conformanceList() *cobra.Command {
	var sel selectionFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "List the cases, and run none", Args: noArgs,
		Example: "  glovebox conformance list --area files",
		RunE: func(*cobra.Command, []string) error {
			match, err := sel.filter()
			if err != nil {
				return err
			}
			cases := listed(match)
			if asJSON {
				return printJSON(a.Stdout, cases)
			}
			tw := tabwriter.NewWriter(a.Stdout, 0, 0, 2, ' ', 0)
			for _, c := range cases {
				fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", c.ID, c.Area, c.Level, c.Title)
			}
			return tw.Flush()
		},
	}
	sel.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *App) conformanceShow() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show what a case requires and needs", Args: oneArg("a case's ID"),
		Example: "  glovebox conformance show LC-01",
		RunE: func(_ *cobra.Command, args []string) error {
			found := listed(func(c conformance.Case) bool { return c.ID == args[0] })
			if len(found) == 0 {
				return usagef("there is no case %q; see: glovebox conformance list", args[0])
			}
			c := found[0]
			if asJSON {
				return printJSON(a.Stdout, c)
			}
			fmt.Fprintf(a.Stdout, "%s (%s, %s): %s\n", c.ID, c.Area, c.Level, c.Title)
			for _, n := range c.Needs {
				fmt.Fprintf(a.Stdout, "  needs %s\n", n)
			}
			if c.Alone {
				fmt.Fprintln(a.Stdout, "  runs alone")
			}
			fmt.Fprintf(a.Stdout, "run it: glovebox conformance run --cases %s\n", c.ID)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
