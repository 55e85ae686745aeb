package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/internal/term"
)

func (a *App) execCommand() *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use: "exec [flags] SANDBOX COMMAND [args...]", Aliases: []string{"ex"},
		Short: "Run a command in a kept sandbox",
		Long: `Run a command in a kept sandbox.

The exit code is the command's own, as of run. Signals are passed on to the command;
a third one ends it. A command without a terminal ends at --timeout, one with a terminal
or with --detach when the sandbox does.`,
		Example: "  glovebox exec s1a2 python3 -c 'print(1)'\n  glovebox exec -it s1a2 bash\n  tar c src | glovebox exec -i s1a2 tar x",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 && args[1] == "--" {
				args = append(args[:1:1], args[2:]...)
			}
			return a.orDocument(a.exec(cmd.Context(), f, args), f.json, exitOurs)
		},
		ValidArgsFunction: a.completeIDs(true),
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false) // what follows the sandbox is the command's
	f.registerEnv(fl)
	f.registerCommand(fl)
	fl.Var(limit(&f.limits.CPUTime, config.ParseDuration, "DURATION"), "cpu-time", "CPU time")
	fl.BoolVarP(&f.detach, "detach", "d", false, "leave the command running and print its ID")
	fl.BoolVar(&f.json, "json", false, "print one JSON document, the command's output inside it")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "no warnings")
	return cmd
}

func (a *App) shellCommand() *cobra.Command {
	f := &runFlags{tty: true}
	cmd := &cobra.Command{
		Use: "shell [flags] SANDBOX", Aliases: []string{"connect", "cn"},
		Short: "Open a shell in a kept sandbox",
		Long: `Open a login shell in a kept sandbox on this terminal: bash where there is one, else sh.

The sandbox stays when the shell ends. The exit code is the shell's.`,
		Args: oneSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			shell := "command -v bash >/dev/null 2>&1 && exec bash -l; exec sh -l"
			return a.exec(cmd.Context(), f, []string{args[0], "/bin/sh", "-c", shell})
		},
		ValidArgsFunction: a.completeIDs(true),
	}
	fl := cmd.Flags()
	f.registerEnv(fl)
	fl.StringVarP(&f.workdir, "workdir", "w", "", "start in `DIR` inside; the home when empty")
	fl.StringVarP(&f.user, "user", "u", "", "run as `USER` inside")
	return cmd
}

// exec runs a command in a kept sandbox.
func (a *App) exec(ctx context.Context, f *runFlags, args []string) error {
	switch {
	case len(args) == 0:
		return usagef("name a sandbox; see: glovebox ps")
	case len(args) == 1:
		return usagef("no command for %s; for a shell: glovebox shell %s", args[0], args[0])
	case f.tty && f.json:
		return usagef("--tty and --json exclude each other: a terminal's output is no data")
	case f.detach && (f.tty || f.stdin):
		return usagef("--detach: nobody is there to read from; leave out --tty and --stdin")
	}
	if f.tty {
		if err := a.needTTY(); err != nil {
			return err
		}
	}
	fl, err := a.fleet(ctx)
	if err != nil {
		return err
	}
	defer fl.close()
	sb, e, err := fl.one(ctx, args[0])
	if err != nil {
		return because(ctx, err)
	}
	req, err := a.commandIn(f, fl.limits(e.Template), args[1:])
	if err != nil {
		return err
	}
	if f.detach {
		return a.execDetached(ctx, f, sb, req)
	}
	out := a.follow(ctx, f, sb, req)
	if f.json {
		code := out.code()
		if err := a.printReport(&out, code); err != nil || code == 0 {
			return err
		}
		return &exitError{code: code}
	}
	a.remark(f, &out)
	return ended(out.code(), out.err)
}

// commandIn is a request for a command in a sandbox that is there.
func (a *App) commandIn(f *runFlags, limits config.Limits, args []string) (*request, error) {
	wall, err := timeout(f.limits.Over(limits), f.limits.Timeout, f.detach || f.tty)
	if err != nil {
		return nil, err
	}
	r := &request{}
	if r.command, err = a.command(f, r, wall); err != nil {
		return nil, err
	}
	r.command.Args, r.command.Tag = args, execTag
	r.command.CPUTime = time.Duration(f.limits.CPUTime)
	if _, set := r.command.Env["TERM"]; f.tty && !set {
		if t, ok := a.getenv("TERM"); ok {
			r.command.Env["TERM"] = t
		}
	}
	r.spec.Limits.Output = int64(limits.Output)
	if err := r.command.Validate(); err != nil {
		return nil, &usageError{err}
	}
	return r, nil
}

func (a *App) execDetached(ctx context.Context, f *runFlags, sb backend.Sandbox, req *request) error {
	p, err := sb.Start(ctx, req.command)
	if err != nil {
		return because(ctx, err)
	}
	if f.json {
		return printJSON(a.Stdout, map[string]string{"id": sb.ID(), "command": p.ID()})
	}
	_, err = fmt.Fprintln(a.Stdout, term.String(p.ID()))
	return err
}

// follow runs the command on our streams. Once it has started, signals are its
// to act upon.
func (a *App) follow(ctx context.Context, f *runFlags, sb backend.Sandbox, req *request) (out outcome) {
	fw := newForwarder()
	defer fw.stop()
	if out.err = context.Cause(ctx); out.err != nil {
		return out // told before there was anything to pass it on to
	}
	rctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	// Until it has started, being told to stop is ours; but it may have started
	// already without our knowing.
	begun := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		select {
		case <-begun:
		case <-rctx.Done():
		case <-time.After(startGrace):
			cancel(context.Cause(ctx))
		}
	})()
	s := &session{app: a, req: req, flags: f, progress: &progress{}}
	s.onStart = func(_ context.Context, p backend.Process) {
		close(begun)
		fw.pass(rctx, p, cancel)
	}
	out.timeout = req.command.Timeout
	s.execute(rctx, cancel, sb, &out)
	return out
}

// remark says what is worth knowing of a command's end.
func (a *App) remark(f *runFlags, out *outcome) {
	if f.quiet || out.exit == nil {
		return
	}
	switch e := out.exit; e.Reason {
	case backend.ReasonExited, backend.ReasonSignaled:
		if len(e.Hits) > 0 {
			a.warn(ending(*e))
		}
	default:
		a.warn("the command ended with " + ending(*e))
	}
}
