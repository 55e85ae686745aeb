package backendtest

import (
	"context"
	"errors"
	"io"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

type process struct {
	sb      *sandbox
	id      string
	pid     int
	cmd     backend.Command
	env     map[string]string
	started time.Time
	stdin   io.Reader
	input   *io.PipeWriter // with Command.KeepInput
	stdout  *stream
	stderr  *stream

	decided  chan struct{} // closed when exit is set
	done     chan struct{} // closed when output is delivered too
	returned chan struct{} // closed when the program returned

	mu      sync.Mutex
	exit    backend.Exit
	signals chan backend.Signal // nil: the program handles none
	size    backend.TerminalSize
}

func newProcess(sb *sandbox, n int, cmd backend.Command) *process {
	limits := sb.spec.Limits
	p := &process{
		sb: sb, id: "p" + strconv.Itoa(n), pid: n + 1, cmd: cmd, started: sb.host.clock.Now(),
		env:     maps.Clone(sb.spec.Env),
		stdin:   strings.NewReader(""),
		decided: make(chan struct{}), done: make(chan struct{}), returned: make(chan struct{}),
	}
	if p.env == nil {
		p.env = map[string]string{}
	}
	maps.Copy(p.env, cmd.Env)
	if cmd.Stdin != nil {
		p.stdin = cmd.Stdin
	}
	if cmd.KeepInput {
		p.stdin, p.input = io.Pipe()
	}
	over := func() {}
	if limits.KillOnOutput {
		over = func() { p.kill(backend.ReasonOutputLimit, backend.SIGKILL) }
	}
	p.stdout = newStream(cmd.Output.Stdout, limits.Output, over)
	p.stderr = newStream(cmd.Output.Stderr, limits.Output, over)
	if cmd.Terminal != nil {
		p.size = *cmd.Terminal
		p.stderr = p.stdout
	}
	return p
}

// run starts the program and the goroutine that ends the command.
func (p *process) run(ctx context.Context, program Program) {
	ctx, cancel := context.WithCancel(ctx)
	stop := func() {}
	if p.cmd.Timeout >= 0 {
		timeout := p.cmd.Timeout
		if timeout == 0 {
			timeout = backend.DefaultTimeout
		}
		stop = p.sb.host.clock.AfterFunc(timeout, func() { p.kill(backend.ReasonTimeout, backend.SIGKILL) })
	}
	proc := &Proc{
		Args: p.cmd.Args, Env: p.env, Dir: p.cmd.Dir, User: backend.DefaultUser,
		Stdin: p.stdin, Stdout: p.stdout, Stderr: p.stderr, Files: p.sb.files, process: p,
	}
	go func() {
		defer close(p.returned)
		p.decide(program(ctx, proc))
	}()
	go func() {
		<-p.decided
		cancel()
		stop()
		if p.input != nil {
			_ = p.stdin.(io.Closer).Close() // a blocked WriteInput ends
		}
		written, truncated := p.stdout.end()
		errWritten, errTruncated := p.stderr.end()
		p.finish(written, errWritten, truncated, errTruncated)
		close(p.done)
	}()
}

func (p *process) finish(stdout, stderr int64, stdoutTruncated, stderrTruncated bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.exit.Usage.Wall = p.sb.host.clock.Now().Sub(p.started)
	p.exit.Usage.Stdout, p.exit.StdoutTruncated = stdout, stdoutTruncated
	if p.stderr != p.stdout {
		p.exit.Usage.Stderr, p.exit.StderrTruncated = stderr, stderrTruncated
	}
	if stdoutTruncated || stderrTruncated {
		p.exit.Hits = append(p.exit.Hits, backend.HitOutput)
	}
}

// decide sets the exit, the first one given.
func (p *process) decide(exit backend.Exit) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.decided:
		return false
	default:
	}
	p.exit = exit
	close(p.decided)
	return true
}

func (p *process) kill(reason backend.Reason, sig backend.Signal) bool {
	exit := backend.Exit{Reason: reason, Code: 128 + int(sig), Signal: sig}
	if reason != backend.ReasonSignaled {
		exit.KillScope = "tree"
	}
	return p.decide(exit)
}

func (p *process) handle() <-chan backend.Signal {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.signals == nil {
		p.signals = make(chan backend.Signal, 16)
	}
	return p.signals
}

func (p *process) terminal() backend.TerminalSize {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size
}

// ID implements backend.Process.
func (p *process) ID() string { return p.id }

// Signal implements backend.Process.
func (p *process) Signal(ctx context.Context, sig backend.Signal) error {
	return p.sb.do(ctx, OpSignal, sig, func() error { return p.signal(sig) })
}

func (p *process) signal(sig backend.Signal) error {
	if sig < 0 || sig > 64 {
		return &backend.Error{Op: "signal", Kind: backend.ErrInvalid, Sandbox: p.sb.id, Field: "signal"}
	}
	p.mu.Lock()
	signals := p.signals
	p.mu.Unlock()
	select {
	case <-p.decided:
		return p.gone("signal")
	default:
	}
	switch {
	case sig == 0, sig == backend.SIGSTOP:
		return nil
	case sig == backend.SIGKILL || signals == nil:
		if !p.kill(backend.ReasonSignaled, sig) {
			return p.gone("signal")
		}
		return nil
	}
	select {
	case signals <- sig:
	default:
	}
	return nil
}

func (p *process) gone(op string) error {
	return &backend.Error{Op: op, Kind: backend.ErrNotFound, Sandbox: p.sb.id, Err: errors.New("the command has ended")}
}

// Wait implements backend.Process. A command's end is known after its sandbox's.
func (p *process) Wait(ctx context.Context) (backend.Exit, error) {
	var exit backend.Exit
	err := p.sb.host.do(ctx, Call{Op: OpWait, Sandbox: p.sb.id, Arg: p.id}, func() error {
		select {
		case <-p.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		exit = p.exit
		return nil
	})
	return exit, err
}

// info describes the command.
func (p *process) info() backend.ProcessInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	info := backend.ProcessInfo{
		ID: p.id, PID: p.pid, Tag: p.cmd.Tag, Args: p.cmd.Args, Env: p.cmd.Env, Dir: p.cmd.Dir,
		User: backend.DefaultUser, Started: p.started,
	}
	select {
	case <-p.done:
		exit := p.exit
		info.Exit = &exit
	default:
	}
	return info
}

var _ backend.Process = (*process)(nil)
