package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/internal/term"
)

func (a *App) createCommand() *cobra.Command {
	f := &runFlags{keep: true}
	cmd := &cobra.Command{
		Use: "create [flags] [TEMPLATE]", Aliases: []string{"cr"},
		Short: "Make a sandbox that stays, and print its ID",
		Long: `Make a sandbox that stays, and print its ID.

It outlives this process and ends at its deadline, which --lifetime sets and extend
moves, or with kill. exec, shell, cp and the other commands find it by its ID, the
beginning of it, or its --name.`,
		Example: "  glovebox create --lifetime 1h --name build\n  glovebox exec build make\n  glovebox kill build",
		RunE: func(cmd *cobra.Command, args []string) error {
			err := a.create(cmd.Context(), f, args)
			return a.orDocument(err, f.json, exitFailed)
		},
	}
	f.registerEnv(cmd.Flags())
	f.registerSandbox(cmd.Flags())
	_ = cmd.RegisterFlagCompletionFunc("from", a.completeSnapshots) // the flag was just added
	return cmd
}

// orDocument is err, or, where JSON is asked for, err as a document.
func (a *App) orDocument(err error, asJSON bool, code int) error {
	if err == nil || !asJSON {
		return err
	}
	if ee, ok := errors.AsType[*exitError](err); ok {
		return ee
	}
	if ue := (*usageError)(nil); errors.As(err, &ue) && code == exitFailed {
		code = exitUsage
	}
	if s := (*signalError)(nil); errors.As(err, &s) {
		code = 128 + int(s.sig)
	}
	doc := struct {
		Error *failure `json:"error"`
	}{newFailure(err)}
	if perr := printJSON(a.Stdout, doc); perr != nil {
		return perr
	}
	return &exitError{code: code}
}

func (a *App) create(ctx context.Context, f *runFlags, args []string) error {
	switch {
	case len(args) > 1:
		return usagef("unexpected argument %q; a command is started with: glovebox run -d", args[1])
	case len(args) == 1 && f.template != "" && f.template != args[0]:
		return usagef("the template is given twice, as %s and %s", f.template, args[0])
	case len(args) == 1:
		f.template = args[0]
	}
	if err := f.check(); err != nil {
		return err
	}
	l, reg, err := a.load(f.settings())
	if err != nil {
		return err
	}
	req, err := a.emptyRequest(f, l.Config)
	if err != nil {
		return err
	}
	executors := config.Open(l.Config, reg)
	ex, err := executors.Executor(ctx, config.DefaultExecutor)
	if err == nil {
		s := &session{app: a, req: req, flags: f, progress: a.newProgress(f.quiet || f.json)}
		err = s.keep(ctx, ex)
	}
	return errors.Join(err, executors.Close())
}

// emptyRequest is a sandbox without a command.
func (a *App) emptyRequest(f *runFlags, cfg config.Config) (*request, error) {
	r := &request{}
	var err error
	if r.spec, err = f.spec(f.limits.Over(cfg.LimitsFor(f.template)), 0); err != nil {
		return nil, err
	}
	if r.command, err = a.command(f, r, 0); err != nil {
		return nil, err
	}
	r.spec.Env, r.command.Env = r.command.Env, nil
	return r, r.files(f, a.Stdin)
}

// kept is what run -d --json prints.
type kept struct {
	ID       string          `json:"id"`
	Command  string          `json:"command"` // its program's, for logs and wait
	Warnings []string        `json:"warnings,omitempty"`
	Receipt  backend.Receipt `json:"receipt"`
}

// keep makes a sandbox that stays, starts the program in it where there is one,
// and prints its ID. When anything goes wrong nothing stays.
func (s *session) keep(ctx context.Context, ex backend.Executor) (err error) {
	if err := s.nameIsFree(ctx); err != nil {
		return err
	}
	end := s.progress.phase("making the sandbox")
	sb, err := ex.Create(ctx, s.req.spec)
	end()
	if err != nil {
		return because(ctx, err)
	}
	defer func() {
		if err == nil {
			return
		}
		dctx, stop := context.WithTimeout(context.WithoutCancel(ctx), destroyTimeout)
		defer stop()
		err = errors.Join(because(ctx, err), sb.Destroy(dctx))
	}()
	if err := s.upload(ctx, sb.Files()); err != nil {
		return err
	}
	doc := kept{ID: sb.ID(), Warnings: s.req.warn, Receipt: sb.Receipt()}
	if s.flags.detach {
		cmd := s.req.command
		if err := s.arguments(ctx, sb, &cmd); err != nil {
			return err
		}
		p, err := sb.Start(ctx, cmd)
		if err != nil {
			return err
		}
		doc.Command = p.ID()
	}
	if err := s.app.writeReceipt(s.flags.receipt, &doc.Receipt); err != nil {
		return fmt.Errorf("--receipt: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return err // told to stop: nobody would learn of it
	}
	return s.announce(&doc)
}

// announce prints what was made.
func (s *session) announce(doc *kept) error {
	a, f := s.app, s.flags
	if !f.quiet {
		for _, w := range doc.Warnings {
			a.warn(w)
		}
	}
	switch {
	case f.json && f.detach:
		return printJSON(a.Stdout, doc)
	case f.json:
		return printJSON(a.Stdout, doc.Receipt)
	}
	if _, err := fmt.Fprintln(a.Stdout, term.String(doc.ID)); err != nil {
		return err
	}
	if f.quiet {
		return nil
	}
	r := &doc.Receipt
	if f.verbose {
		lines := receiptLines(r, nil, s.req.command.Timeout, true)
		fmt.Fprint(a.Stderr, strings.Join(lines, "\n")+"\n")
		return nil
	}
	for _, w := range r.Warnings {
		a.warn(w)
	}
	until := ""
	if !r.Deadline.IsZero() {
		until = fmt.Sprintf(", until %s (%s)", r.Deadline.Local().Format(time.TimeOnly), time.Until(r.Deadline).Round(time.Second))
	}
	what := ""
	if f.detach {
		what = "; it stays that long when its program has ended"
	}
	fmt.Fprintf(a.Stderr, "glovebox: kept on %s, isolation %s%s%s\n", term.String(r.Backend), r.Achieved, until, what)
	return nil
}

// nameIsFree refuses a name that another kept sandbox has.
func (s *session) nameIsFree(ctx context.Context) error {
	name := s.flags.name
	if name == "" {
		return nil
	}
	fl, err := s.app.fleet(ctx)
	if err != nil {
		return err
	}
	defer fl.close()
	all, _ := fl.list(ctx) // a backend that cannot be asked now may still have one of that name; pick tells
	for _, e := range all {
		if e.Keep && e.Labels[nameLabel] == name {
			return &backend.Error{
				Op: "create", Kind: backend.ErrConflict, Field: "name", Err: fmt.Errorf("%s is called %q already", e.ID, name),
				Fix: "choose another name, or end it with: glovebox kill " + name,
			}
		}
	}
	return nil
}
