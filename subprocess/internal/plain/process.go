package plain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

const (
	// heldFor is how long output that descendants hold is waited for.
	heldFor = time.Second
	// lingerEvery is how often a group that outlives its command is looked at.
	// It is short against the time in which a system could use up all its
	// process numbers, so that a number is never taken for another's.
	lingerEvery = 250 * time.Millisecond
	// A program that was just written is busy while any child that is being
	// started elsewhere in this process still holds a copy of its descriptor.
	busyTries = 50
	busyPause = 4 * time.Millisecond
)

// process is one command: a child and the group it leads.
type process struct {
	sb      *sandbox
	id      string
	cmd     *exec.Cmd // nil when the program could not be executed
	started time.Time
	timer   *time.Timer
	in      *input // nil unless there is standard input
	keep    bool   // Command.KeepInput
	stdout  *stream
	stderr  *stream

	reaped chan struct{} // closed when the child has ended
	done   chan struct{} // closed when exit is set
	over   chan struct{} // closed when nothing of it is left

	mu       sync.Mutex
	gone     bool // reaped, and nothing of its group was left when last looked at
	killed   bool
	reason   backend.Reason // why it was killed, if not on the caller's word
	warnings []string

	exit backend.Exit // valid once done is closed
	err  error
}

// newProcess starts cmd in dir. A program that cannot be executed is a process
// that has ended.
func (sb *sandbox) newProcess(ctx context.Context, id, dir string, cmd backend.Command) (*process, error) {
	p := &process{
		sb: sb, id: id, keep: cmd.KeepInput, started: time.Now(),
		reaped: make(chan struct{}), done: make(chan struct{}), over: make(chan struct{}),
	}
	ends, err := openPipes(cmd.Stdin != nil || cmd.KeepInput)
	if err != nil {
		return nil, sb.fault("start", backend.ErrCapacity, "", fmt.Errorf("make the command's pipes: %w", err), "")
	}
	limit, over := sb.spec.Limits.Output, func() {}
	if sb.spec.Limits.KillOnOutput {
		over = func() { p.kill(backend.ReasonOutputLimit) }
	}
	p.stdout = newStream(ends.ours[1], cmd.Output.Stdout, limit, over)
	p.stderr = newStream(ends.ours[2], cmd.Output.Stderr, limit, over)
	execErr, err := p.launch(ctx, cmd, dir, ends)
	if err != nil {
		ends.close()
		return nil, err
	}
	ends.closeChild()
	if ends.ours[0] != nil {
		p.in = newInput(ends.ours[0])
	}
	sb.adopt(p)
	if execErr == nil {
		p.arm(cmd.Timeout)
	}
	if cmd.Stdin != nil && execErr == nil {
		// It has no waiter: only the caller's reader knows when it returns.
		go p.feed(cmd.Stdin)
	}
	go p.stdout.run()
	go p.stderr.run()
	go p.await(cmd.Args[0], execErr)
	return p, nil
}

// launch executes the program. execErr is why it could not be, which is a
// result.
func (p *process) launch(ctx context.Context, cmd backend.Command, dir string, e *ends) (execErr, err error) {
	env, path := p.sb.environ(cmd.Env)
	file, execErr := lookup(cmd.Args[0], dir, path)
	if execErr != nil {
		return execErr, nil
	}
	try := func(file string, args []string) error {
		// ctx is never cancelled: it bounded the start, and not the command.
		p.cmd = exec.CommandContext(ctx, file)
		p.cmd.Args, p.cmd.Env, p.cmd.Dir, p.cmd.SysProcAttr = args, env, dir, attributes()
		if e.child[0] != nil {
			p.cmd.Stdin = e.child[0] // a typed nil would be no /dev/null
		}
		p.cmd.Stdout, p.cmd.Stderr = e.child[1], e.child[2]
		return p.cmd.Start()
	}
	err = try(file, cmd.Args)
	for n := 0; isBusy(err) && n < busyTries; n++ {
		<-time.After(busyPause)
		err = try(file, cmd.Args)
	}
	if isNoProgram(err) && shell != "" {
		// A file that is no program is a script of sh, as for execvp.
		err = try(shell, append([]string{"sh", file}, cmd.Args[1:]...))
	}
	switch {
	case err == nil:
		return nil, nil
	case isMissing(err), errors.Is(err, os.ErrPermission), isNoProgram(err), isBusy(err):
		p.cmd = nil
		return err, nil
	}
	return nil, p.sb.fault("start", kindOf(err, backend.ErrUnavailable), "command.args", causeOf(err), "")
}

// arm starts the command's timeout.
func (p *process) arm(timeout time.Duration) {
	if timeout == backend.UntilSandboxEnds {
		return
	}
	if timeout == 0 {
		timeout = backend.DefaultTimeout
	}
	p.timer = time.AfterFunc(timeout, func() { p.kill(backend.ReasonTimeout) })
}

// kill kills the command's group. reason is "" on the caller's word.
func (p *process) kill(reason backend.Reason) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone || p.cmd == nil {
		return false
	}
	if !p.killed {
		p.killed, p.reason = true, reason
	}
	killGroup(p.cmd.Process)
	return true
}

// await sees the command to its end, and its group after it.
func (p *process) await(name string, execErr error) {
	defer close(p.over)
	var exit backend.Exit
	if execErr != nil {
		exit = p.notExecuted(name, execErr)
	} else {
		exit = p.reap()
	}
	p.look()
	close(p.reaped)
	if p.timer != nil {
		p.timer.Stop()
	}
	if p.in != nil {
		p.in.close()
	}
	wall := time.Since(p.started)
	grace := make(chan struct{})
	t := time.AfterFunc(heldFor, func() { close(grace) })
	p.stdout.finish(grace)
	p.stderr.finish(grace)
	t.Stop()
	p.settle(exit, wall)
	close(p.done)
	// What the sandbox's end cut short is left for bury.
	if p.linger() && p.drain() {
		p.sb.drop(p)
	}
}

// reap waits for the child and says how it ended.
func (p *process) reap() backend.Exit {
	err := p.cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		p.err = p.sb.fault("wait", backend.ErrLost, "", causeOf(err), "")
		return backend.Exit{}
	}
	state := p.cmd.ProcessState
	exit := backend.Exit{Reason: backend.ReasonExited, Code: state.ExitCode()}
	if sig := signalOf(state); sig != 0 {
		exit = backend.Exit{Reason: backend.ReasonSignaled, Signal: sig, Code: 128 + int(sig)}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killed && wasKilled(state) {
		exit = backend.Exit{Reason: backend.ReasonSignaled, Signal: backend.SIGKILL, Code: 128 + int(backend.SIGKILL)}
		if p.reason != "" {
			exit.Reason, exit.KillScope = p.reason, killScope
		}
	}
	exit.Usage.CPU = state.UserTime() + state.SystemTime()
	exit.Usage.PeakMemory = peakMemory(state)
	return exit
}

// notExecuted ends a command as a shell would.
func (p *process) notExecuted(name string, err error) backend.Exit {
	exit, text := backend.Exit{Reason: backend.ReasonExited, Code: 126}, "cannot be executed"
	switch {
	case isMissing(err):
		exit.Code, text = 127, "not found"
	case errors.Is(err, os.ErrPermission):
		text = "Permission denied"
	}
	// Nobody holds the pipe, so its reader has ended or is about to.
	<-p.stderr.closed
	p.stderr.say(fmt.Sprintf("%.256s: %s\n", name, text))
	return exit
}

// look tells whether something of the group is left after its leader's end.
func (p *process) look() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = p.gone || p.cmd == nil || !groupAlive(p.cmd.Process)
	return !p.gone
}

// linger waits for the end of the group. It is false when the sandbox ends
// first.
func (p *process) linger() bool {
	t := time.NewTicker(lingerEvery)
	defer t.Stop()
	for p.look() {
		select {
		case <-t.C:
		case <-p.sb.ending:
			return false
		}
	}
	return true
}

// drain waits until nobody holds the output any more. It is false when the
// sandbox ends first.
func (p *process) drain() bool {
	for _, s := range []*stream{p.stdout, p.stderr} {
		select {
		case <-s.closed:
		case <-p.sb.ending:
			return false
		}
	}
	return true
}

// settle completes the exit.
func (p *process) settle(exit backend.Exit, wall time.Duration) {
	exit.Usage.Wall = wall
	var outHeld, errHeld bool
	exit.Usage.Stdout, exit.StdoutTruncated, outHeld = p.stdout.result()
	exit.Usage.Stderr, exit.StderrTruncated, errHeld = p.stderr.result()
	exit.OutputHeld = outHeld || errHeld
	if exit.StdoutTruncated || exit.StderrTruncated {
		exit.Hits = append(exit.Hits, backend.HitOutput)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	exit.Warnings = p.warnings
	p.exit = exit
}

// bury waits for the end of what was killed. Only a command itself that does
// not end is an error: the rest of its group was sent SIGKILL too, and may be
// zombies for as long as the system's first process lets them.
func (p *process) bury() error {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	late := false
	for reaped := p.reaped; !late && (reaped != nil || p.look()); {
		p.kill("") // again: what was being forked may have been missed
		select {
		case <-reaped:
			reaped = nil
		case <-t.C:
		case <-deadline.C:
			if reaped != nil {
				return fmt.Errorf("command %s did not end when it was killed", p.id)
			}
			late = true
		}
	}
	if late {
		deadline.Reset(0)
	}
	// What its output's writer does not take in time is not waited for.
	select {
	case <-p.done:
	case <-deadline.C:
		deadline.Reset(0)
	}
	p.stdout.stop()
	p.stderr.stop()
	for _, over := range []chan struct{}{p.over, p.stdout.closed, p.stderr.closed} {
		select {
		case <-over:
		case <-deadline.C:
			deadline.Reset(0)
		}
	}
	return nil
}
