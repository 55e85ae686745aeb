package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/backend"
)

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
	settled     = 300 * time.Millisecond
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
	p, ended, err := attach(ctx, sb, e, command, backend.AttachOptions{Output: out, Replay: true})
	if err != nil {
		return err
	}
	wctx, stop := context.WithCancel(ctx)
	defer stop()
	if !follow && !ended {
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
	p, _, err := attach(ctx, sb, e, command, backend.AttachOptions{})
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
		err = printJSON(a.Stdout, runReport{OK: code == 0, Exit: out.exit, Code: code, Error: newFailure(out.err)})
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
