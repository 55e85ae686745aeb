package cli

import (
	"cmp"
	"context"
	"errors"
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
	rctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	// Until it has started, being told to stop is ours.
	untold := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer untold()
	s := &session{app: a, req: req, flags: f, progress: &progress{}}
	s.onStart = func(_ context.Context, p backend.Process) {
		if untold() {
			fw.pass(rctx, p, cancel)
		}
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

func (a *App) logsCommand() *cobra.Command {
	var follow bool
	var command string
	cmd := &cobra.Command{
		Use: "logs [flags] SANDBOX", Short: "Print what the program of run -d has written",
		Long: `Print what the program of run -d has written: the end of it, since a sandbox holds the
newest 256KiB of each command until it ends itself.

With --follow it goes on until the program ends. --command is for what exec -d started.`,
		Args: oneSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.logs(cmd.Context(), args[0], command, follow)
		},
		ValidArgsFunction: a.completeIDs(true),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the program ends")
	cmd.Flags().StringVar(&command, "command", "", "the `ID` of another command, as exec -d prints it")
	return cmd
}

// settled is how long a running program's output is silent when all that was
// held has come, and settledMost how long that is waited for: no backend says
// where what was held ends and what is written now begins.
const (
	settled     = 200 * time.Millisecond
	settledMost = 3 * time.Second
)

func (a *App) logs(parent context.Context, name, command string, follow bool) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	fl, err := a.fleet(ctx)
	if err != nil {
		return err
	}
	defer fl.close()
	sb, e, err := fl.one(ctx, name)
	if err != nil {
		return err
	}
	d := a.display(ctx, false, cancel)
	defer d.close()
	still := &silence{wait: settled, over: make(chan struct{})}
	out := backend.Output{Stdout: still.before(d.out), Stderr: still.before(d.err)}
	p, err := attach(ctx, sb, e, command, backend.AttachOptions{Output: out, Replay: true})
	if err != nil {
		return err
	}
	wctx, stop := context.WithCancel(ctx)
	defer stop()
	if !follow {
		still.begin()
		most := time.AfterFunc(settledMost, stop)
		defer most.Stop()
		go func() {
			select {
			case <-still.over:
				stop()
			case <-wctx.Done():
			}
		}()
	}
	_, err = p.Wait(wctx)
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errClosedPipe):
		return &exitError{code: exitSIGPIPE}
	case cause != nil:
		return cmp.Or(because(ctx, err), cause)
	case err != nil && wctx.Err() != nil:
		return nil // enough was waited for
	}
	return err
}

func (a *App) waitCommand() *cobra.Command {
	var asJSON, rm bool
	var command string
	cmd := &cobra.Command{
		Use: "wait [flags] SANDBOX", Short: "Wait for the program of run -d to end",
		Long: `Wait for the program of run -d to end, print its exit code and end with it.

The sandbox stays; with --rm it is removed then. When the sandbox ends first, the exit
code is 125.`,
		Args: oneSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.orDocument(a.wait(cmd.Context(), args[0], command, asJSON, rm), asJSON, exitOurs)
		},
		ValidArgsFunction: a.completeIDs(true),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, with how and why it ended")
	cmd.Flags().BoolVar(&rm, "rm", false, "then remove the sandbox")
	cmd.Flags().StringVar(&command, "command", "", "the `ID` of another command, as exec -d prints it")
	return cmd
}

func (a *App) wait(ctx context.Context, name, command string, asJSON, rm bool) error {
	fl, err := a.fleet(ctx)
	if err != nil {
		return err
	}
	defer fl.close()
	sb, e, err := fl.one(ctx, name)
	if err != nil {
		return because(ctx, err)
	}
	p, err := attach(ctx, sb, e, command, backend.AttachOptions{})
	if err != nil {
		return because(ctx, err)
	}
	exit, err := p.Wait(ctx)
	if err != nil {
		return because(ctx, err)
	}
	out := outcome{exit: &exit}
	if rm {
		dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTimeout)
		defer cancel()
		out.err = sb.Destroy(dctx)
	}
	code := out.code()
	if !asJSON {
		a.remark(&runFlags{}, &out)
	}
	if asJSON {
		err = printJSON(a.Stdout, report{OK: code == 0, Exit: out.exit, Code: code, Error: newFailure(out.err)})
	} else {
		_, err = fmt.Fprintln(a.Stdout, code)
	}
	if err != nil || code == 0 {
		return err
	}
	if asJSON {
		return &exitError{code: code}
	}
	return ended(code, out.err)
}
