package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
)

func (a *App) killCommand() *cobra.Command {
	var asJSON, all, force bool
	var sig, command string
	var filters []string
	cmd := &cobra.Command{
		Use: "kill [flags] SANDBOX...", Aliases: []string{"rm", "destroy", "kl"},
		Short: "End kept sandboxes with everything in them",
		Long: `End kept sandboxes with everything in them.

A sandbox is named by its ID, the beginning of it, or its --name. With --signal the
sandbox stays and the signal goes to the program of run -d, or to --command.`,
		Example: "  glovebox kill s1a2\n  glovebox kill --all --filter label=job=7\n  glovebox kill -s HUP web",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			switch {
			case all == (len(args) > 0):
				return usagef("name sandboxes, or give --all")
			case len(filters) > 0 && !all:
				return usagef("--filter chooses among --all")
			case command != "" && sig == "":
				return usagef("--command is for --signal")
			}
			end := destroy
			if sig != "" {
				n, err := parseSignal(sig)
				if err != nil {
					return err
				}
				end = func(ctx context.Context, e entry) error { return signalMain(ctx, e, command, n) }
			}
			if all {
				return a.killAll(ctx, filters, asJSON, end)
			}
			return a.each(ctx, args, asJSON, force, end)
		},
		ValidArgsFunction: a.completeIDs(false),
	}
	fl := cmd.Flags()
	fl.BoolVar(&asJSON, "json", false, "print JSON")
	fl.BoolVar(&all, "all", false, "all kept sandboxes of every backend")
	fl.BoolVarP(&force, "force", "f", false, "one that is not there is fine")
	fl.StringVarP(&sig, "signal", "s", "", "send this `SIGNAL` to its program instead")
	fl.StringVar(&command, "command", "", "with --signal: the `ID` of another command, as exec -d prints it")
	fl.StringArrayVar(&filters, "filter", nil, "with --all: only those that match `KEY=VALUE`, as in ps (repeatable)")
	return cmd
}

func (a *App) killAll(ctx context.Context, filters []string, asJSON bool, end func(context.Context, entry) error) error {
	match, err := parseFilters(filters)
	if err != nil {
		return err
	}
	fl, err := a.fleet(ctx)
	if err != nil {
		return err
	}
	defer fl.close()
	all, unasked := fl.list(ctx)
	var targets []entry
	results := make([]done, 0, len(all))
	for _, e := range all {
		if e.Keep && match.match(e) {
			targets = append(targets, e)
			results = append(results, done{ID: e.ID})
		}
	}
	for i, err := range doAll(ctx, targets, end) {
		results[i].err = err
	}
	err = a.tell(results, asJSON, true)
	for _, e := range unasked {
		if _, absent := errors.AsType[*notThere](e); absent {
			continue
		}
		a.warn(e.Error())
		err = cmp.Or(err, error(&exitError{code: exitFailed})) // some may be left
	}
	return err
}

// destroy ends a sandbox. Once begun, being told to stop does not stop it.
func destroy(ctx context.Context, e entry) error {
	sb, err := e.find(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTimeout)
	defer cancel()
	return sb.Destroy(ctx)
}

// signalMain signals a sandbox's main command, or the one that is named.
func signalMain(ctx context.Context, e entry, command string, sig backend.Signal) error {
	sb, err := e.find(ctx)
	if err != nil {
		return err
	}
	p, _, err := attach(ctx, sb, e, command, backend.AttachOptions{})
	if err != nil {
		return err
	}
	return p.Signal(ctx, sig)
}

// parseSignal reads a signal's name, with or without SIG, or its number.
func parseSignal(s string) (backend.Signal, error) {
	names := []string{
		"", "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
		"STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
	}
	if n, err := strconv.Atoi(s); err == nil && n >= 1 && n <= 64 {
		return backend.Signal(n), nil
	}
	short := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	for n, name := range names {
		if n > 0 && name == short {
			return backend.Signal(n), nil
		}
	}
	return 0, usagef("--signal: %q is no signal; write TERM, SIGTERM or 15", s)
}

func (a *App) pauseCommand() *cobra.Command {
	return a.lifeCommand("pause SANDBOX...", "Freeze kept sandboxes in place",
		"Freeze kept sandboxes in place. A paused sandbox uses no CPU and keeps its memory; its\ndeadline does not run.",
		func(ctx context.Context, e entry) error {
			return withSandbox(ctx, e, "pause", func(p backend.Pauser) error { return p.Pause(ctx, backend.PauseOptions{}) })
		})
}

func (a *App) resumeCommand() *cobra.Command {
	return a.lifeCommand("resume SANDBOX...", "Continue paused sandboxes",
		"Continue paused sandboxes, each with a new lifetime of the length it was made with.",
		func(ctx context.Context, e entry) error {
			return withSandbox(ctx, e, "resume", func(p backend.Pauser) error { return p.Resume(ctx) })
		})
}

// lifeCommand is a command that does one thing with several sandboxes.
func (a *App) lifeCommand(use, short, long string, do func(context.Context, entry) error) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: sandboxArgs(1), ValidArgsFunction: a.completeIDs(false),
		RunE: func(cmd *cobra.Command, args []string) error { return a.each(cmd.Context(), args, asJSON, false, do) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *App) extendCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "extend SANDBOX... DURATION", Short: "Move the end of kept sandboxes",
		Long:    "Move the end of kept sandboxes: each ends DURATION from now, whether that is later or\nearlier than before.",
		Example: "  glovebox extend s1a2 1h",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usagef("name sandboxes and a duration: glovebox extend SANDBOX 1h")
			}
			last := len(args) - 1
			d, err := config.ParseDuration(args[last])
			if err != nil {
				return &usageError{err}
			}
			if time.Duration(d) > backend.MaxLifetime {
				return usagef("%s is longer than %s, the most a sandbox lives", args[last], backend.MaxLifetime)
			}
			return a.each(cmd.Context(), args[:last], asJSON, false, func(ctx context.Context, e entry) error {
				return withSandbox(ctx, e, "extend", func(x backend.Extender) error { return x.SetLifetime(ctx, time.Duration(d)) })
			})
		},
		ValidArgsFunction: a.completeIDs(false),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// withSandbox takes a sandbox up and does something with its optional T.
func withSandbox[T any](ctx context.Context, e entry, op string, do func(T) error) error {
	sb, err := e.find(ctx)
	if err != nil {
		return err
	}
	t, ok := backend.As[T](sb)
	if !ok {
		return unsupported(op, e)
	}
	return do(t)
}

// attach takes up a command of a sandbox, the one of that ID, else its main one,
// else what its template started, and tells whether it had ended before.
func attach(ctx context.Context, sb backend.Sandbox, e entry, id string, opts backend.AttachOptions) (p backend.Process, ended bool, err error) {
	pf, ok := backend.As[backend.ProcessFinder](sb)
	if !ok {
		return nil, false, unsupported("attach", e)
	}
	all, err := pf.Processes(ctx)
	if err != nil {
		return nil, false, err
	}
	for _, tag := range []string{mainTag, backend.StartupTag} {
		for _, info := range all {
			if id == "" && info.Tag == tag || id != "" && info.ID == id {
				p, err = pf.Attach(ctx, info.ID, opts)
				return p, info.Exit != nil, err
			}
		}
	}
	missing := &backend.Error{
		Op: "attach", Kind: backend.ErrNotFound, Backend: e.Backend, Sandbox: e.ID,
		Err: errors.New("it has no program that run -d has started"), Fix: "name a command of exec -d with --command",
	}
	if id != "" {
		missing.Err, missing.Fix = fmt.Errorf("there is no command %q, or it is forgotten", id), ""
	}
	return nil, false, missing
}
