package cli

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/internal/lang"
	"github.com/glovebox-dev/glovebox/internal/registry"
	"github.com/glovebox-dev/glovebox/internal/term"
	"github.com/glovebox-dev/glovebox/internal/version"
	"github.com/glovebox-dev/glovebox/policy/router"
)

// diagnosis is what doctor found.
type diagnosis struct {
	Version  version.Info       `json:"version"`
	Backends []backendDiagnosis `json:"backends"`
	// Default is which of several backends a plain run would be made on.
	Default   *router.Decision    `json:"default,omitempty"`
	Languages []languageDiagnosis `json:"languages"`
	Warnings  []string            `json:"warnings,omitempty"`
	Unmet     []string            `json:"unmet,omitempty"` // of --require
}

type backendDiagnosis struct {
	Name string `json:"name"`
	registry.Report
	Error string `json:"error,omitempty"` // measuring it failed
}

type languageDiagnosis struct {
	Language    string `json:"language"`
	Interpreter string `json:"interpreter"`
	Path        string `json:"path,omitempty"` // where sandboxes find it
	Fix         string `json:"fix,omitempty"`
}

func (a *App) doctorCommand() *cobra.Command {
	var asJSON bool
	var require []string
	cmd := &cobra.Command{
		Use: "doctor", Short: "Measure what this machine can contain, and say how to get more", Args: noArgs,
		Long: `Measure what this machine can contain, and say how to get more.

With --require the exit code tells whether a backend can run, or whether any backend
reaches a level of isolation.`,
		Example: "  glovebox doctor\n  glovebox doctor --require process --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := a.diagnose(cmd.Context(), require)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(a.Stdout, d)
			} else {
				err = a.printDiagnosis(d)
			}
			if err == nil && len(d.Unmet) > 0 {
				err = fmt.Errorf("required and not there: %s", strings.Join(d.Unmet, "; "))
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringSliceVar(&require, "require", nil, "fail unless these backends or levels are there: `NAMES`")
	return cmd
}

func (a *App) diagnose(ctx context.Context, require []string) (*diagnosis, error) {
	l, reg, err := a.load(nil)
	if err != nil {
		return nil, err
	}
	d := &diagnosis{Version: version.Get(), Languages: languages()}
	if d.Version.Cgo {
		d.Warnings = append(d.Warnings, "this program was built with cgo and cannot start inside every sandbox; build it with CGO_ENABLED=0")
	}
	executors := config.Open(l.Config, reg)
	defer executors.Close() //nolint:errcheck // nothing of a measurement is kept
	end := a.newProgress(false).phase("measuring")
	d.Backends = measure(ctx, l.Config, executors)
	if len(d.Backends) > 1 {
		if d.Default, err = decide(ctx, executors); err != nil {
			d.Warnings = append(d.Warnings, "nothing can be chosen: "+err.Error())
		}
	}
	end()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for _, r := range require {
		why, err := d.unmet(r)
		if err != nil {
			return nil, err
		}
		if why != "" {
			d.Unmet = append(d.Unmet, why)
		}
	}
	return d, nil
}

// unmet says why a requirement, a level or a backend's or driver's name, is
// not met; "" when it is.
func (d *diagnosis) unmet(require string) (string, error) {
	if level, err := backend.ParseIsolation(require); err == nil {
		best := backend.IsolationNone
		for _, b := range d.Backends {
			if b.Error == "" && b.Health.Available {
				best = max(best, b.Health.Isolation)
			}
		}
		if best >= level {
			return "", nil
		}
		return fmt.Sprintf("isolation %s, the most here is %s", level, best), nil
	}
	var known []string
	for _, b := range d.Backends {
		known = append(known, b.Name)
		if b.Name != require && b.Driver != require {
			continue
		}
		if b.Error == "" && b.Health.Available {
			return "", nil
		}
		return fmt.Sprintf("backend %s: %s", b.Name, firstOf(b.Error, b.Health.Reason, "not available")), nil
	}
	return "", usagef("--require: %q is neither a level nor a backend, the backends are %s", require, strings.Join(known, ", "))
}

func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// languages finds interpreters where sandboxes made of this host's own
// directories see them.
func languages() []languageDiagnosis {
	var out []languageDiagnosis
	for _, l := range lang.All() {
		d := languageDiagnosis{Language: l.Name, Interpreter: l.Interpreter[0]}
		for _, dir := range systemPath() {
			if info, err := os.Stat(path.Join(dir, d.Interpreter)); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				d.Path = path.Join(dir, d.Interpreter)
				break
			}
		}
		if d.Path == "" {
			d.Fix = "apt install " + l.Package
			if where, err := exec.LookPath(d.Interpreter); err == nil {
				d.Fix += "; " + where + " lies outside the system directories that sandboxes show"
			}
		}
		out = append(out, d)
	}
	return out
}

func (a *App) printDiagnosis(d *diagnosis) error {
	var lines []string
	for _, b := range d.Backends {
		lines = append(lines, backendLines(b)...)
	}
	lines = append(lines, decisionLines(d.Default)...)
	lines = append(lines, "languages (interpreters that sandboxes find)")
	for _, l := range d.Languages {
		if l.Path != "" {
			lines = append(lines, fmt.Sprintf("  ok       %-12s %s", l.Language, l.Path))
			continue
		}
		lines = append(lines, fmt.Sprintf("  missing  %-12s %s", l.Language, l.Interpreter), "           fix: "+l.Fix)
	}
	for _, w := range d.Warnings {
		lines = append(lines, "warning: "+w)
	}
	for _, l := range lines {
		if _, err := fmt.Fprintln(a.Stdout, term.String(l)); err != nil {
			return err
		}
	}
	return nil
}

func backendLines(b backendDiagnosis) []string {
	head := "backend " + b.Name
	if b.Driver != b.Name {
		head += " (driver " + b.Driver + ")"
	}
	if b.Error != "" {
		return []string{head + ": could not be measured: " + b.Error}
	}
	h := b.Health
	if h.Available {
		head += fmt.Sprintf(": available, isolation %s", h.Isolation)
		if !h.Measured {
			head += " (declared)"
		}
	} else {
		head += ": not available: " + firstOf(h.Reason, "no reason given")
	}
	if b.Privilege != "" {
		head += ", as " + b.Privilege
	}
	lines := []string{head}
	if h.Fix != "" {
		lines = append(lines, "  fix: "+h.Fix)
	}
	for _, w := range h.Warnings {
		lines = append(lines, "  warning: "+w)
	}
	for _, f := range b.Facts {
		mark := "ok     "
		if !f.OK {
			mark = "missing"
		}
		lines = append(lines, fmt.Sprintf("  %s  %-22s %s", mark, f.Name, f.Value))
		if f.Fix != "" {
			lines = append(lines, "           fix: "+f.Fix)
		}
	}
	return append(lines, claimLines(b.Capabilities)...)
}

// claimLines says what each control is enforced by.
func claimLines(c backend.Capabilities) []string {
	if len(c.Claims) == 0 {
		return nil
	}
	lines := []string{"  controls"}
	for _, control := range slices.Sorted(maps.Keys(c.Claims)) {
		cl := c.Claims[control]
		lines = append(lines, fmt.Sprintf("    %-14s %s%s", control, cl.Enforcement, mechanism(cl.Mechanism, cl.Note)))
	}
	return lines
}
