// Package cli is glovebox's command line.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	xterm "golang.org/x/term"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/internal/registry"
	"github.com/glovebox-dev/glovebox/internal/strict"
	"github.com/glovebox-dev/glovebox/internal/term"
)

// App is one invocation of the program.
type App struct {
	Args    []string // without the program's name
	Environ []string
	// Registry makes the registry of drivers, when a command needs it.
	Registry func() (*registry.Registry, error)
	// Dir is where a project's configuration is looked for; empty is the
	// working directory.
	Dir string

	Stdin          io.Reader
	Stdout, Stderr io.Writer

	configFile string
}

// The exit codes that are not a program's own.
const (
	exitFailed  = 1   // of commands that give no program's code
	exitUsage   = 2   // likewise
	exitOurs    = 125 // of the others: our own failure, usage included, since programs use the small numbers
	exitSIGPIPE = 141 // nobody reads the output any more
)

// exitError ends the program with a code; a nil Err prints nothing.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError is a command line that cannot be understood.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// signalError is why a context ended: we were told to stop.
type signalError struct{ sig syscall.Signal }

func (e *signalError) Error() string { return "stopped by signal " + e.sig.String() }

// Main runs the program and returns its exit code.
func Main(ctx context.Context, app App) int {
	ctx, stop := untilSignal(ctx)
	defer stop()
	root := app.root() //nolint:contextcheck // commands take theirs from cobra
	root.SetArgs(app.Args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	if s := (*signalError)(nil); errors.As(context.Cause(ctx), &s) && errors.Is(err, context.Canceled) {
		app.complain(s)
		return 128 + int(s.sig)
	}
	if ee, ok := errors.AsType[*exitError](err); ok {
		if ee.err != nil {
			app.complain(ee.err)
		}
		return ee.code
	}
	app.complain(err)
	// What cobra itself refuses (an unknown command or flag) has no type.
	if ue := (*usageError)(nil); errors.As(err, &ue) || isCobraUsage(err) {
		fmt.Fprintf(app.Stderr, "see: %s --help\n", cmd.CommandPath())
		if givesProgramsCode(cmd) {
			return exitOurs
		}
		return exitUsage
	}
	if givesProgramsCode(cmd) {
		return exitOurs
	}
	return exitFailed
}

// givesProgramsCode tells whether the exit code of cmd is a program's, so that
// the small numbers are taken.
func givesProgramsCode(cmd *cobra.Command) bool {
	if p := cmd.Parent(); p != nil && p.Name() == "conformance" {
		return false
	}
	return slices.Contains([]string{"run", "exec", "shell", "wait"}, cmd.Name())
}

// keptCommands are the commands for sandboxes that outlive their creator.
func (a *App) keptCommands() []*cobra.Command {
	return []*cobra.Command{
		a.createCommand(), a.psCommand(), a.execCommand(), a.shellCommand(), a.logsCommand(), a.waitCommand(), a.cpCommand(),
		a.statsCommand(), a.pauseCommand(), a.resumeCommand(), a.extendCommand(), a.killCommand(), a.pruneCommand(),
	}
}

func isCobraUsage(err error) bool {
	return strings.HasPrefix(err.Error(), "unknown command") || strings.Contains(err.Error(), "were all set")
}

// untilSignal is ctx until we are told to stop; the cause is a signalError.
// Further signals change nothing: what is under way is cleaned up, which is
// bounded. A closed pipe must not kill us half-way either.
func untilSignal(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	stops := make(chan os.Signal, 1)
	signal.Notify(stops, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// Taken and not ignored, since an ignored signal would stay ignored in
	// every program that is started.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	var wg sync.WaitGroup
	told := false
	wg.Go(func() {
		select {
		case s := <-stops:
			told = true
			sig, _ := s.(syscall.Signal)
			cancel(&signalError{sig})
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		cancel(nil)
		wg.Wait()
		if told {
			return // until the program exits, a second signal must not kill it
		}
		signal.Stop(stops)
		signal.Stop(pipes)
	}
}

// complain prints an error with everything a terminal would obey taken out,
// since what it quotes may come from a sandbox or a stranger's file.
func (a *App) complain(err error) {
	fmt.Fprintf(a.Stderr, "glovebox: %s\n", term.Lines(err.Error()))
}

func (a *App) warn(text string) {
	fmt.Fprintf(a.Stderr, "glovebox: warning: %s\n", term.Lines(text))
}

func (a *App) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "glovebox",
		Short: "Run untrusted code in a sandbox",
		Long: "Run untrusted code in a sandbox.\n\n" +
			"  glovebox run FILE        run a program, contained\n" +
			"  glovebox create          make one that stays; then exec, cp, logs, kill\n" +
			"  glovebox doctor          what this machine can contain, and how to get more",
		SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q", args[0])
			}
			return cmd.Help()
		},
	}
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVar(&a.configFile, "config", "", "read `FILE` instead of the user's and the project's configuration")
	root.AddCommand(a.runCommand(), a.doctorCommand(), a.imageCommand(), a.configCommand(), a.versionCommand())
	root.AddCommand(a.keptCommands()...)
	root.AddCommand(a.snapshotCommand(), a.sandboxCommand(), a.conformanceCommand())
	return root
}

// sandboxCommand is the same commands below one, where users of E2B's command
// line look for them.
func (a *App) sandboxCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "sandbox", Aliases: []string{"sbx"}, Short: "The commands for kept sandboxes, as the E2B command line spells them",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q", args[0])
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(a.keptCommands()...)
	return cmd
}

// flagError is a usage error that suggests the flag that was meant.
func flagError(cmd *cobra.Command, err error) error {
	name, ok := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !ok {
		return &usageError{err}
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	if c := strict.Closest(name, known); c != "" {
		return usagef("unknown flag --%s, did you mean --%s?", name, c)
	}
	return &usageError{err}
}

// load reads the configuration and prints its warnings.
func (a *App) load(flags []config.Flag) (*config.Loaded, *registry.Registry, error) {
	reg, err := a.Registry()
	if err != nil {
		return nil, nil, err
	}
	l, err := config.Load(config.Options{File: a.configFile, Dir: a.Dir, Environ: a.Environ, Flags: flags, Registry: reg})
	if err != nil {
		return nil, nil, err
	}
	for _, w := range l.Warnings {
		a.warn(w)
	}
	return l, reg, nil
}

// getenv looks up our environment.
func (a *App) getenv(name string) (string, bool) {
	for _, v := range slices.Backward(a.Environ) {
		if k, v, _ := strings.Cut(v, "="); k == name {
			return v, true
		}
	}
	return "", false
}

// terminal is the descriptor behind a stream that is a terminal.
func terminal(stream any) (fd int, ok bool) {
	f, ok := stream.(*os.File)
	if !ok || !xterm.IsTerminal(int(f.Fd())) {
		return -1, false
	}
	return int(f.Fd()), true
}

// noArgs refuses arguments.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q", args[0])
	}
	return nil
}

// oneArg refuses anything but one argument, which is what.
func oneArg(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef("give %s", what)
		}
		return nil
	}
}

// hint is the fix that an error carries, for documents.
func hint(err error) string {
	if be, ok := errors.AsType[*backend.Error](err); ok {
		return be.Fix
	}
	return ""
}
