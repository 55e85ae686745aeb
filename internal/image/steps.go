package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/image/dockerfile"
)

// StepRunner runs the steps of a template.
type StepRunner interface {
	// RunSteps runs steps one after the other in a root file system like
	// base's, files for them taken from files, and gives the result as a tar
	// archive to consume, which reads all of it. base stays as it is. When it
	// returns, nothing of the sandbox is left.
	RunSteps(ctx context.Context, w Work, consume func(io.Reader) error) error
}

// Work is what a StepRunner has to do.
type Work struct {
	Base  Template
	Steps []dockerfile.Step
	Files *dockerfile.Context // nil when nothing is copied
	// Report is told of each step, and of each line that it says, made fit to be
	// shown.
	Report func(step, of int, text, line string)
}

// Sandboxed runs steps in a sandbox.
//
// Security: steps are a stranger's code. They get a root with capabilities, so
// the sandbox must have a kernel of its own, and what it gives back is read as
// a stranger's archive.
type Sandboxed struct {
	// Executor makes the sandbox. It knows the template Spec.Template as the
	// base of the work, with a root that has capabilities and can be written.
	Executor backend.Executor
	// Spec is the sandbox's: template, network with the registries' allowlist,
	// limits, lifetime. The level is kernel at the least whatever it says.
	Spec backend.Spec
	// Timeout bounds each step; 0 is ten minutes.
	Timeout time.Duration
	// CA are certificate authorities, in PEM, that programs of steps trust in the
	// place of their own; nil for none. They are no part of the image.
	CA []byte
}

const (
	stepTimeout = 10 * time.Minute
	// tailBytes is how much of a failed step's output the error quotes.
	tailBytes = 2 << 10
)

// RunSteps implements StepRunner.
func (s *Sandboxed) RunSteps(ctx context.Context, w Work, consume func(io.Reader) error) (err error) {
	spec := s.Spec
	spec.MinIsolation = max(spec.MinIsolation, backend.IsolationKernel)
	sb, err := s.Executor.Create(ctx, spec)
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, sb.Destroy(end))
	}()
	if err := s.trust(ctx, sb); err != nil {
		return err
	}
	for i, step := range w.Steps {
		report := func(line string) {
			if w.Report != nil {
				w.Report(i+1, len(w.Steps), step.Text, line)
			}
		}
		report("")
		if err := s.step(ctx, sb, w, step, report); err != nil {
			return &StepError{Line: step.Line, Text: step.Text, Err: err}
		}
	}
	return s.export(ctx, sb, consume)
}

// StepError is a step that failed.
type StepError struct {
	Line int // of the Dockerfile; 0 for packages
	Text string
	Err  error
}

// Error implements error.
func (e *StepError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %v", e.Text, e.Err)
	}
	return fmt.Sprintf("line %d: %s: %v", e.Line, e.Text, e.Err)
}

// Unwrap gives the cause.
func (e *StepError) Unwrap() error { return e.Err }

func (s *Sandboxed) step(ctx context.Context, sb backend.Sandbox, w Work, step dockerfile.Step, report func(line string)) error {
	env := s.environment()
	if step.User != "" && step.User != "root" {
		delete(env, "HOME")
	}
	maps.Copy(env, w.Base.Config.Env)
	maps.Copy(env, step.Env)
	dir := step.Dir
	if dir == "" {
		dir = w.Base.Config.WorkDir
	}
	switch {
	case step.Copy != nil:
		return s.copy(ctx, sb, w.Files, step.Copy)
	case step.Run == nil:
		return s.run(ctx, sb, backend.Command{Args: []string{"mkdir", "-p", "--", step.Dir}, Dir: "/", User: "root"})
	case dir == "":
		dir = "/"
	}
	user := step.User
	if user == "" {
		user = "root"
	}
	cmd := backend.Command{Args: step.Run, Env: env, Dir: dir, User: user}
	cmd.Output.Stdout = &tail{line: report}
	return s.run(ctx, sb, cmd)
}

// copy streams files into a tar that runs inside, where names of owners mean
// something.
func (s *Sandboxed) copy(ctx context.Context, sb backend.Sandbox, files *dockerfile.Context, c *dockerfile.Copy) error {
	if files == nil {
		return errors.New("there is no context to copy from")
	}
	parent := path.Dir(c.Dest) // of one that ends with a slash, itself
	if err := s.run(ctx, sb, backend.Command{Args: []string{"mkdir", "-p", "--", parent}, Dir: "/", User: "root"}); err != nil {
		return err
	}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { // ends when the command does: its end of the pipe is closed below
		err := files.WriteTar(w, c)
		w.CloseWithError(err)
		done <- err
	}()
	args := []string{"tar", "-C", "/", "--keep-directory-symlink", "-xpf", "-"}
	err := s.run(ctx, sb, backend.Command{Args: args, Dir: "/", User: "root", Stdin: r})
	r.CloseWithError(errEnded)
	// It need not read what comes after the last file.
	if werr := <-done; werr != nil && !errors.Is(werr, errEnded) && err == nil {
		return werr
	}
	return err
}

var errEnded = errors.New("the command that took the files has ended")

// run runs one command to its end; one that fails is an error with the end of
// its output.
func (s *Sandboxed) run(ctx context.Context, sb backend.Sandbox, cmd backend.Command) error {
	out, ok := cmd.Output.Stdout.(*tail)
	if !ok {
		out = &tail{}
	}
	if cmd.Output.Stdout == nil {
		cmd.Output.Stdout = out
	}
	cmd.Output.Stderr = out
	if cmd.Timeout = s.Timeout; cmd.Timeout == 0 {
		cmd.Timeout = stepTimeout
	}
	exit, err := backend.RunIn(ctx, sb, cmd)
	if err != nil {
		if text := out.String(); text != "" && ctx.Err() == nil {
			return fmt.Errorf("%w; the last that it said: %s", err, text)
		}
		return err
	}
	if exit.Success() {
		return nil
	}
	return failed(exit, out.String())
}

// export streams the sandbox's root file system out.
func (s *Sandboxed) export(ctx context.Context, sb backend.Sandbox, consume func(io.Reader) error) error {
	args := []string{"tar", "-C", "/", "--sort=name", "--numeric-owner", "--one-file-system", "-cf", "-"}
	for _, dir := range []string{"proc", "sys", "dev", "run", "tmp", "var/tmp", ".glovebox"} {
		args = append(args, "--exclude=./"+dir+"/*")
	}
	// They say what this sandbox was called and how it was connected.
	for _, file := range []string{"etc/hostname", "etc/hosts", "etc/resolv.conf"} {
		args = append(args, "--exclude=./"+file)
	}
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { // ends with the pipe, which is closed below
		err := consume(r)
		r.CloseWithError(errors.New("nobody reads the archive any more"))
		done <- err
	}()
	err := s.run(ctx, sb, backend.Command{Args: append(args, "."), Dir: "/", User: "root", Output: backend.Output{Stdout: w}})
	w.CloseWithError(err)
	if cerr := <-done; cerr != nil && (err == nil || ctx.Err() == nil) {
		return cerr
	}
	return err
}

var _ StepRunner = (*Sandboxed)(nil)
