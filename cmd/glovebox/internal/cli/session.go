package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// destroyTimeout bounds the end of the sandbox, which a signal must not cut
// short.
const destroyTimeout = 30 * time.Second

// outcome is what came of a run. Err is our own failure; Exit is nil when no
// command ended.
type outcome struct {
	exit     *backend.Exit
	receipt  *backend.Receipt
	stdout   collected // with --json
	stderr   collected
	files    []fetched
	warnings []string
	timeout  time.Duration // of the command
	err      error
}

// fetched is a file that was to be copied out.
type fetched struct {
	Guest string `json:"guest"`
	Host  string `json:"host"`
	Bytes int64  `json:"bytes"`
	Error string `json:"error,omitempty"`
}

// session is one run under way.
type session struct {
	app      *App
	req      *request
	flags    *runFlags
	progress *progress
	onStart  func(context.Context, backend.Process) // nil: nobody wants to know
}

// run makes the sandbox, runs the command and destroys the sandbox, whatever
// happens. The context's cause says why a run was cut short.
func (s *session) run(parent context.Context, ex backend.Executor) (out outcome) {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	out.warnings, out.timeout = slices.Clone(s.req.warn), s.req.command.Timeout
	end := s.progress.phase("making the sandbox")
	sb, err := ex.Create(ctx, s.req.spec)
	end()
	if err != nil {
		out.err = because(ctx, err)
		return out
	}
	defer func() {
		dctx, stop := context.WithTimeout(context.WithoutCancel(parent), destroyTimeout)
		defer stop()
		defer s.progress.phase("removing the sandbox")()
		if err := sb.Destroy(dctx); err != nil {
			out.err = errors.Join(out.err, err)
		}
	}()
	receipt := sb.Receipt()
	out.receipt = &receipt
	if err := s.upload(ctx, sb.Files()); err != nil {
		out.err = because(ctx, err)
		return out
	}
	s.execute(ctx, cancel, sb, &out)
	if out.exit != nil && context.Cause(ctx) == nil {
		out.files = s.fetchAll(ctx, sb.Files())
	}
	return out
}

// because is the reason that ctx ended with, where err only says that it did.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && (errors.Is(err, context.Canceled) || errors.Is(err, ctx.Err())) {
		return cause
	}
	return err
}

func (s *session) upload(ctx context.Context, files backend.Filesystem) error {
	defer s.progress.phase("copying files in")()
	if p := s.req.program; p != nil {
		if err := backend.WriteFile(ctx, files, p.Name, p.Source, 0o644); err != nil {
			return fmt.Errorf("copying the program in: %w", err)
		}
	}
	for _, u := range s.req.uploads {
		if err := uploadOne(ctx, files, u); err != nil {
			return fmt.Errorf("copying %s in: %w", cmp.Or(u.host, "standard input"), err)
		}
	}
	return nil
}

func uploadOne(ctx context.Context, files backend.Filesystem, u upload) error {
	if u.reader != nil {
		return files.Write(ctx, u.guest, u.reader, 0)
	}
	f, err := openRegular(u.host)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // read side
	perm := fs.FileMode(0o644)
	if info, err := f.Stat(); err == nil && info.Mode()&0o100 != 0 {
		perm = 0o755
	}
	return files.Write(ctx, u.guest, f, perm)
}

// execute runs the command to its end and puts what it gave into out.
func (s *session) execute(ctx context.Context, cancel context.CancelCauseFunc, sb backend.Sandbox, out *outcome) {
	cmd := s.req.command
	if err := s.arguments(ctx, sb, &cmd); err != nil {
		out.err = because(ctx, err)
		return
	}
	if s.flags.stdin || s.flags.tty {
		cmd.Stdin = s.app.Stdin
	}
	var finish func()
	cmd.Output, finish = s.output(ctx, cancel, out)
	target := started{sb: sb}
	if s.onStart != nil {
		target.on = append(target.on, s.onStart)
	}
	if s.flags.tty {
		tty, err := s.app.openTTY()
		if err != nil {
			finish()
			out.err = err
			return
		}
		defer tty.restore()
		cmd.Terminal = tty.size()
		target.on = append(target.on, tty.follow)
	}
	exit, err := backend.RunIn(ctx, target, cmd)
	finish()
	if exit.Reason != "" {
		exit.StdoutTruncated = exit.StdoutTruncated || out.stdout.truncated
		exit.StderrTruncated = exit.StderrTruncated || out.stderr.truncated
		if (exit.StdoutTruncated || exit.StderrTruncated) && !slices.Contains(exit.Hits, backend.HitOutput) {
			exit.Hits = append(slices.Clip(exit.Hits), backend.HitOutput)
		}
		out.exit = &exit
	}
	if err != nil {
		out.err = because(ctx, err)
	} else if cause := context.Cause(ctx); cause != nil {
		out.err = cause // it ended by itself while we were told to stop
	}
	s.explain127(ctx, sb, out)
}

// arguments makes the program, where one is given, the command.
func (s *session) arguments(ctx context.Context, sb backend.Sandbox, cmd *backend.Command) error {
	if s.req.program == nil {
		return nil
	}
	where, err := s.programPath(ctx, sb)
	if err != nil {
		return err
	}
	cmd.Args = s.req.program.Args(where, s.req.args...)
	return nil
}

// output is where the command's output goes. finish is called when it has
// ended and puts what was collected into out.
func (s *session) output(ctx context.Context, cancel context.CancelCauseFunc, out *outcome) (backend.Output, func()) {
	if s.flags.json {
		limit := cmp.Or(s.req.spec.Limits.Output, backend.DefaultOutput)
		stdout, stderr := &collector{limit: limit}, &collector{limit: limit}
		return backend.Output{Stdout: stdout, Stderr: stderr}, func() {
			out.stdout, out.stderr = stdout.end(), stderr.end()
		}
	}
	d := s.app.display(ctx, s.flags.tty, cancel)
	return backend.Output{Stdout: d.out, Stderr: d.err}, d.close
}

// programPath is the program's name as its interpreter is given it: relative
// to the home, where it starts, and absolute when it starts elsewhere, as in
// another user's home.
func (s *session) programPath(ctx context.Context, sb backend.Sandbox) (string, error) {
	name := s.req.program.Name
	if r := sb.Receipt(); s.req.command.Dir+s.req.command.User+r.Dir+r.User == "" {
		return name, nil
	}
	info, err := sb.Files().Stat(ctx, name)
	if err != nil {
		return "", err
	}
	if attr, ok := info.Sys().(*backend.FileAttr); ok && path.IsAbs(attr.Path) {
		return attr.Path, nil
	}
	return path.Join(backend.DefaultHome, name), nil
}

// explain127 says what to do when the interpreter is missing. The program may
// have ended with 127 by itself, so the sandbox is asked whether it is there.
func (s *session) explain127(ctx context.Context, sb backend.Sandbox, out *outcome) {
	p := s.req.program
	if p == nil || out.exit == nil || out.exit.Reason != backend.ReasonExited || out.exit.Code != 127 {
		return
	}
	interpreter := p.Language.Interpreter[0]
	for _, dir := range systemPath() {
		if _, err := sb.Files().Stat(ctx, path.Join(dir, interpreter)); !errors.Is(err, fs.ErrNotExist) {
			return // it is there, or we cannot tell
		}
	}
	out.warnings = append(out.warnings, missing(interpreter, p.Language.Package, s.flags.template != ""))
}

// systemPath is where sandboxes made of the host's own directories look for
// programs.
func systemPath() []string {
	return []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
}

// missing says how to get an interpreter into sandboxes.
func missing(interpreter, pkg string, template bool) string {
	if template {
		return fmt.Sprintf("%s is not in the template; add it there", interpreter)
	}
	text := fmt.Sprintf("%s is not in the sandbox, which shows this machine's system directories; on Debian: apt install %s", interpreter, pkg)
	if where, err := exec.LookPath(interpreter); err == nil && !slices.Contains(systemPath(), path.Dir(where)) {
		text += fmt.Sprintf("; or bring %s in with -v DIR:DIR:ro and start it with -- COMMAND", where)
	}
	return text
}

// fetchAll copies files out. The sandbox still lives, but nothing of it is
// trusted: names are ours, sizes are bounded.
func (s *session) fetchAll(ctx context.Context, files backend.Filesystem) []fetched {
	if len(s.req.outs) == 0 {
		return nil
	}
	defer s.progress.phase("copying files out")()
	limit := s.req.spec.Limits.WithDefaults().Disk
	var out []fetched
	for _, o := range s.req.outs {
		f := fetched{Guest: o.guest, Host: o.host}
		n, err := fetchOne(ctx, files, o, limit)
		if err != nil {
			f.Error = err.Error()
		}
		f.Bytes = n
		out = append(out, f)
	}
	return out
}

func fetchOne(ctx context.Context, files backend.Filesystem, o fetch, limit int64) (int64, error) {
	src, err := files.Open(ctx, o.guest)
	if err != nil {
		return 0, err
	}
	defer src.Close()
	return saveFile(o.host, src, limit)
}

// started is a sandbox that tells about the process it starts.
type started struct {
	sb backend.Sandbox
	on []func(context.Context, backend.Process)
}

func (s started) ID() string                        { return s.sb.ID() }
func (s started) Files() backend.Filesystem         { return s.sb.Files() }
func (s started) Receipt() backend.Receipt          { return s.sb.Receipt() }
func (s started) Destroy(ctx context.Context) error { return s.sb.Destroy(ctx) }
func (s started) Unwrap() any                       { return s.sb }

func (s started) Start(ctx context.Context, cmd backend.Command) (backend.Process, error) {
	p, err := s.sb.Start(ctx, cmd)
	if err == nil {
		for _, on := range s.on {
			on(ctx, p)
		}
	}
	return p, err
}

var (
	_ backend.Sandbox = started{}
	_ io.Writer       = (*collector)(nil)
)
