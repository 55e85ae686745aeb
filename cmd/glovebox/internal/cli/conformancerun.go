package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/conformance"
	"github.com/glovebox-dev/glovebox/conformance/host"
	"github.com/glovebox-dev/glovebox/conformance/report"
	"github.com/glovebox-dev/glovebox/internal/registry"
	"github.com/glovebox-dev/glovebox/internal/strict"
	"github.com/glovebox-dev/glovebox/internal/term"
	"github.com/glovebox-dev/glovebox/internal/version"
)

// conformanceFlags are those of conformance run.
type conformanceFlags struct {
	selection   selectionFlags
	out         reportFlags
	backends    []string
	require     []string
	template    string
	json        bool
	strict      bool
	jobs        int
	timeout     time.Duration
	caseTimeout time.Duration
}

func (a *App) conformanceRun() *cobra.Command {
	f := &conformanceFlags{}
	cmd := &cobra.Command{
		Use: "run", Short: "Run the cases against backends", Args: noArgs,
		Long: `Run the cases against backends, and say for each what of its claims is true here.

The exit code is 0 when nothing failed and nothing was left behind on this host (which
no one else should use meanwhile), 1 when something was, 3 when the suite could not do
its work, and with --strict 4 when not every case said something.`,
		Example: "  glovebox conformance run --backend subprocess\n" +
			"  glovebox conformance run --area files,limits --report report.html --report report.json\n" +
			"  glovebox conformance run --bundle evidence.tar.gz",
		RunE: func(cmd *cobra.Command, _ []string) error { return a.conformance(cmd.Context(), f) },
	}
	f.selection.add(cmd)
	f.out.add(cmd)
	fs := cmd.Flags()
	fs.StringSliceVar(&f.backends, "backend", nil, "test these configured backends, not all that are available: `NAMES`")
	fs.StringSliceVar(&f.require, "require", nil, "end with 3 unless these backends are available: `NAMES`")
	fs.StringVar(&f.template, "template", "", "make every sandbox from this template: `NAME`")
	fs.BoolVar(&f.json, "json", false, "print JSON")
	fs.BoolVar(&f.strict, "strict", false, "end with 4 when a case said nothing")
	fs.IntVar(&f.jobs, "jobs", 2, "run `N` cases at a time")
	fs.DurationVar(&f.timeout, "timeout", 0, "let the whole run take at most this `DURATION`; 0 is without end")
	fs.DurationVar(&f.caseTimeout, "case-timeout", 2*time.Minute, "let a case take at most this `DURATION`")
	return cmd
}

func (a *App) conformance(ctx context.Context, f *conformanceFlags) error {
	if f.jobs < 1 || f.jobs > 64 {
		return usagef("--jobs: %d is not between 1 and 64", f.jobs)
	}
	match, err := f.selection.filter()
	if err != nil {
		return err
	}
	if err := f.out.check(); err != nil {
		return err
	}
	l, reg, err := a.load(nil)
	if err != nil {
		return err
	}
	tested, err := a.conformanceBackends(ctx, f, l.Config, reg)
	if err != nil {
		return err
	}
	doc, err := a.newDocument(l, f)
	if err != nil {
		return err
	}
	run := ctx
	if f.timeout > 0 {
		var cancel context.CancelFunc
		run, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	for _, t := range tested {
		r, err := a.testBackend(run, f, t.Name, l.Config, reg, match)
		if err != nil {
			return &exitError{code: exitBroke, err: err}
		}
		doc.Reports = append(doc.Reports, t.report(r))
		if !f.json {
			w := term.NewWriter(a.Stdout)
			if err := errors.Join(r.WriteTable(w), w.Close()); err != nil {
				return err
			}
		}
	}
	doc.Took = time.Since(doc.Started)
	if err := a.writeReports(doc, f.out, match); err != nil {
		return &exitError{code: exitBroke, err: err}
	}
	if f.json {
		if err := printJSON(a.Stdout, doc); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return conformanceOutcome(doc, f.strict)
}

// conformanceOutcome is the exit code that doc deserves.
func conformanceOutcome(doc *report.Document, strict bool) error {
	var failed, partial []string
	for _, r := range doc.Reports {
		switch {
		case !r.OK():
			failed = append(failed, r.Target)
		case !r.Conclusive():
			partial = append(partial, r.Target)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("nonconformant: %s", strings.Join(failed, ", "))
	}
	if strict && len(partial) > 0 {
		return &exitError{code: exitPartial, err: fmt.Errorf("partial, cases said nothing: %s", strings.Join(partial, ", "))}
	}
	return nil
}

// newDocument is a document about this host, without reports.
func (a *App) newDocument(l *config.Loaded, f *conformanceFlags) (*report.Document, error) {
	v := version.Get()
	doc := &report.Document{
		Schema: conformance.SchemaVersion, Started: time.Now(), Config: l.Redacted(), Filter: f.selection.String(),
		Suite: report.Suite{Version: v.Version, Commit: v.Commit, Modified: v.Modified, Go: v.Go},
		Host: report.Host{
			OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Root: os.Geteuid() == 0,
			Kernel: host.Kernel(), Distribution: host.Distribution(), Memory: host.Memory(),
		},
	}
	data, err := json.Marshal(doc.Config) // its maps are sorted
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	doc.ConfigHash = hex.EncodeToString(sum[:])
	return doc, nil
}

// report is what came of a run beside what the probe found.
func (b backendDiagnosis) report(r conformance.Report) report.Report {
	out := report.Report{Report: r, Privilege: b.Privilege, Warnings: b.Health.Warnings}
	for _, f := range b.Facts {
		out.Facts = append(out.Facts, report.Fact{Name: f.Name, Value: f.Value, OK: f.OK})
	}
	return out
}

// conformanceBackends are those that were named, or all that are available, with
// what their probes found.
func (a *App) conformanceBackends(ctx context.Context, f *conformanceFlags, cfg config.Config, reg *registry.Registry) ([]backendDiagnosis, error) {
	known := slices.Sorted(maps.Keys(cfg.Backends))
	for flag, names := range map[string][]string{"--backend": f.backends, "--require": f.require} {
		for _, name := range names {
			if !slices.Contains(known, name) {
				return nil, &usageError{fmt.Errorf("%s: %w", flag, strict.Unknown("backend", name, known))}
			}
		}
	}
	executors := config.Open(cfg, reg)
	defer executors.Close() //nolint:errcheck // probing opens nothing
	var tested []backendDiagnosis
	for _, b := range measure(ctx, cfg, executors) {
		named := slices.Contains(f.backends, b.Name)
		if len(f.backends) > 0 && !named && !slices.Contains(f.require, b.Name) {
			continue
		}
		if b.Error == "" && b.Health.Available {
			tested = append(tested, b)
			continue
		}
		why := fmt.Sprintf("backend %s is not available: %s", b.Name, firstOf(b.Error, b.Health.Reason, "not available"))
		if named || slices.Contains(f.require, b.Name) {
			return nil, &exitError{code: exitBroke, err: errors.New(why)}
		}
		a.warn(why)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(tested) == 0 {
		return nil, &exitError{code: exitBroke, err: errors.New("no backend is available; see: glovebox doctor")}
	}
	return tested, nil
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
	total, done := len(listed(match)), 0
	return conformance.Run(ctx, target, conformance.Options{
		Filter: match, Parallel: f.jobs, Timeout: f.caseTimeout,
		OnResult: func(res conformance.Result) {
			done++
			fmt.Fprintf(a.Stderr, "%s: %d/%d %s %s %s (%v)\n",
				name, done, total, res.Verdict, res.ID, term.String(res.Title), res.Took.Round(time.Millisecond))
		},
	})
}

// reportInputs are the files of a bundle that say what was run.
func reportInputs(doc *report.Document, match func(conformance.Case) bool) (map[string][]byte, error) {
	inputs := map[string][]byte{}
	for name, v := range map[string]any{"cases.json": listed(match), "config.json": doc.Config, "host.json": doc.Host} {
		var b bytes.Buffer
		if err := printJSON(&b, v); err != nil {
			return nil, err
		}
		inputs[name] = b.Bytes()
	}
	return inputs, nil
}
