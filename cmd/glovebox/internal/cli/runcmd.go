package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/policy/router"
)

func (a *App) runCommand() *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use:   "run [flags] FILE [args...] | - | -c CODE | -- COMMAND [args...]",
		Short: "Run one program in a fresh sandbox and remove the sandbox",
		Long: `Run one program in a fresh sandbox and remove the sandbox.

The program is a FILE, standard input (-), CODE (-c), or a COMMAND that is in the
sandbox already. Its language comes from --lang, its first line or its extension:
Python, JavaScript, TypeScript, bash, sh. It starts in an empty home directory,
without a network and without anything of this machine's environment.

The exit code is the program's own; 128+n when signal n ended it; 124 at the
timeout; 137 at the memory, CPU or output limit; 125 when glovebox itself failed.
A program can return these numbers too: --json tells them apart.

With --detach the sandbox is kept and its ID printed. Its program goes on until it ends
or the sandbox does; logs, wait, exec, cp and kill work on it from any process. The
sandbox lives until its deadline (--lifetime), also when the program has ended.`,
		Example: `  glovebox run examples/look.sh
  glovebox run --file data.csv --out report.json analyse.py data.csv
  glovebox run --memory 256m --timeout 5s -c 'print(sum(range(10)))'
  glovebox run --json -- ls -la / | jq .stdout.text
  id=$(glovebox run -d --lifetime 1h server.py); glovebox logs -f $id`,
		RunE: func(cmd *cobra.Command, args []string) error {
			coded := cmd.Flags().Changed("code")
			f.keep = f.detach
			return a.run(cmd.Context(), f, args, cmd.ArgsLenAtDash() == 0, coded)
		},
	}
	f.register(cmd)
	_ = cmd.RegisterFlagCompletionFunc("from", a.completeSnapshots) // the flag was just added
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		err = flagError(cmd, err)
		if !a.asksForJSON(cmd) {
			return err
		}
		return &exitError{exitOurs, a.printReport(&outcome{err: err}, exitOurs)}
	})
	return cmd
}

// asksForJSON tells whether --json stands among the command's flags, which may
// not have been reached when another was refused.
func (a *App) asksForJSON(cmd *cobra.Command) bool {
	_, args, err := cmd.Root().Find(a.Args)
	if err != nil {
		return false
	}
	asked := false
	cmd.Flags().ParseErrorsAllowlist.UnknownFlags = true
	_ = cmd.Flags().ParseAll(args, func(f *pflag.Flag, value string) error { // what it refuses was told already
		if f.Name == "json" {
			asked = value != "false"
		}
		return nil
	})
	return asked
}

// run is the command. Whatever went wrong, with --json one document is printed.
func (a *App) run(ctx context.Context, f *runFlags, args []string, dashed, coded bool) error {
	out, err := a.prepareAndRun(ctx, f, args, dashed, coded)
	if err != nil {
		if !f.json {
			return err
		}
		out = &outcome{err: err}
	}
	if out == nil {
		return nil // explained
	}
	if err := a.writeReceipt(f.receipt, out.receipt); err != nil {
		out.err = errors.Join(out.err, fmt.Errorf("--receipt: %w", err))
	}
	code := out.code()
	if f.json {
		if err := a.printReport(out, code); err != nil {
			return &exitError{exitOurs, err}
		}
		if code == 0 {
			return nil
		}
		return &exitError{code: code}
	}
	a.conclude(f, out)
	return ended(code, out.err)
}

// ended is the program's end with code, saying what of err is worth saying.
func ended(code int, err error) error {
	if code == 0 {
		return nil
	}
	if s := (*signalError)(nil); errors.As(err, &s) || errors.Is(err, errClosedPipe) {
		err = nil
	}
	return &exitError{code, err}
}

func (a *App) prepareAndRun(ctx context.Context, f *runFlags, args []string, dashed, coded bool) (*outcome, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	l, reg, err := a.load(f.settings())
	if err != nil {
		return nil, &exitError{exitOurs, err}
	}
	req, err := a.request(f, args, dashed, coded, l.Config)
	if err != nil {
		return nil, err
	}
	executors := config.Open(l.Config, reg)
	out, err := a.runWith(ctx, f, req, executors)
	if cerr := executors.Close(); cerr != nil && err == nil {
		if out == nil {
			return nil, &exitError{exitOurs, cerr}
		}
		out.err = errors.Join(out.err, cerr)
	}
	if err != nil {
		return nil, &exitError{exitOurs, err}
	}
	if out != nil && out.exit != nil && out.receipt != nil {
		out.exit.Warnings = append(slices.Clip(out.exit.Warnings),
			l.Config.Warnings.Backend().Check(req.spec.Limits.WithDefaults(), req.command.Timeout, *out.exit)...)
	}
	return out, nil
}

func (a *App) runWith(ctx context.Context, f *runFlags, req *request, executors *config.Executors) (*outcome, error) {
	p := a.newProgress(f.quiet || f.json)
	end := p.phase("opening the backends")
	ex, err := executors.Executor(ctx, config.DefaultExecutor)
	end()
	if err != nil {
		return nil, err
	}
	if f.explain {
		return nil, a.explain(ctx, f, req, ex)
	}
	s := &session{app: a, req: req, flags: f, progress: p}
	if f.detach {
		return nil, s.keep(ctx, ex)
	}
	out := s.run(ctx, ex)
	return &out, nil
}

// explain prints what run would do.
func (a *App) explain(ctx context.Context, f *runFlags, req *request, ex *router.Router) error {
	d, err := ex.Explain(ctx, req.spec)
	if err != nil {
		return err
	}
	d.Warnings = append(slices.Clone(req.warn), d.Warnings...)
	if f.json {
		if err := printJSON(a.Stdout, explanation{Decision: d, Command: commandView(req)}); err != nil {
			return err
		}
	} else {
		a.printDecision(d, req)
	}
	if d.Backend == "" {
		return &backend.Error{
			Op: "explain", Kind: backend.ErrUnsupported, Err: errors.New("no backend would run this"),
			Fix: "see the reasons above, or run: glovebox doctor",
		}
	}
	return nil
}

// code is the exit code that an outcome gives.
func (o *outcome) code() int {
	var s *signalError
	switch {
	case errors.As(o.err, &s):
		return 128 + int(s.sig)
	case errors.Is(o.err, errClosedPipe):
		return exitSIGPIPE
	case o.err != nil || o.exit == nil:
		if ee, ok := errors.AsType[*exitError](o.err); ok {
			return ee.code
		}
		return exitOurs
	}
	code := o.exit.ShellCode()
	if code == 0 && slices.ContainsFunc(o.files, func(f fetched) bool { return f.Error != "" }) {
		return exitOurs
	}
	return code
}

// rounded is a time as people read it.
func rounded(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond)
	default:
		return d.Round(time.Microsecond)
	}
}
