package envd

import (
	"context"
	"errors"
	"io"
	"time"

	"connectrpc.com/connect"

	"github.com/glovebox-dev/glovebox/backend"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	wireproc "github.com/glovebox-dev/glovebox/internal/envd/wire/process"
)

// inputChunk is how much standard input one message carries.
const inputChunk = 64 << 10

// answerGrace is how long after a command's end its input may be answered for.
const answerGrace = 200 * time.Millisecond

// endOfTransmission is what a terminal takes for the end of its input.
const endOfTransmission = "\x04"

func (p *process) selector() *wireproc.ProcessSelector {
	return &wireproc.ProcessSelector{Selector: &wireproc.ProcessSelector_Pid{Pid: p.pid}}
}

func (p *process) message(b []byte) *wireproc.ProcessInput {
	if p.terminal {
		return &wireproc.ProcessInput{Input: &wireproc.ProcessInput_Pty{Pty: b}}
	}
	return &wireproc.ProcessInput{Input: &wireproc.ProcessInput_Stdin{Stdin: b}}
}

// feed copies r to the command's standard input and closes it. It ends with
// the command, or when r then returns; that input could not be delivered is
// no error.
func (p *process) feed(ctx context.Context, r io.Reader) {
	out := p.sender(ctx)
	buf := make([]byte, inputChunk)
	for {
		n, err := r.Read(buf)
		if ctx.Err() != nil {
			return
		}
		if n > 0 && out.send(buf[:n]) != nil {
			return
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) {
			p.mu.Lock()
			p.warnings = append(p.warnings, "standard input ended early: "+err.Error())
			p.mu.Unlock()
		}
		if p.terminal && out.send([]byte(endOfTransmission)) != nil {
			return
		}
		if out.finish() == nil && !p.terminal {
			_ = p.closeInput(ctx)
		}
		return
	}
}

// sender is a way for standard input to go.
type sender struct {
	send   func([]byte) error
	finish func() error // returns when all has arrived
}

// sender streams to the agent; E2B's envd gets a call for each chunk, since
// proxies in front of it may not pass streams in.
func (p *process) sender(ctx context.Context) sender {
	if !p.ext {
		return sender{
			send:   func(b []byte) error { return p.sendInput(ctx, b) },
			finish: func() error { return nil },
		}
	}
	var stream *connect.ClientStreamForClient[wireproc.StreamInputRequest, wireproc.StreamInputResponse]
	open := func() error {
		if stream != nil {
			return nil
		}
		stream = p.c.streams.StreamInput(ctx)
		return stream.Send(&wireproc.StreamInputRequest{Event: &wireproc.StreamInputRequest_Start{
			Start: &wireproc.StreamInputRequest_StartEvent{Process: p.selector()},
		}})
	}
	return sender{
		send: func(b []byte) error {
			if err := open(); err != nil {
				return err
			}
			return stream.Send(&wireproc.StreamInputRequest{Event: &wireproc.StreamInputRequest_Data{
				Data: &wireproc.StreamInputRequest_DataEvent{Input: p.message(b)},
			}})
		},
		finish: func() error {
			if stream == nil {
				return nil
			}
			_, err := stream.CloseAndReceive()
			return err
		},
	}
}

// sendInput is one unary call, without a bound of its own: a command that
// does not read holds it up.
func (p *process) sendInput(ctx context.Context, b []byte) error {
	w := where{op: "write input"}
	if err := p.alive(w); err != nil {
		return err
	}
	bctx, done, err := p.c.begin(ctx)
	if err != nil {
		return p.c.fail(ctx, w, err)
	}
	defer done()
	bctx, cancel := context.WithCancelCause(bctx)
	defer cancel(nil)
	// What the command took before it ended has an answer under way.
	defer p.whenEnded(func() { time.AfterFunc(answerGrace, func() { cancel(errEnded) }) })()
	for len(b) > 0 {
		n := min(len(b), inputChunk)
		req := connect.NewRequest(&wireproc.SendInputRequest{Process: p.selector(), Input: p.message(b[:n])})
		if _, err := p.c.proc.SendInput(bctx, req); err != nil {
			if ctx.Err() == nil && p.alive(w) != nil {
				return p.alive(w)
			}
			return p.c.fail(bctx, w, err)
		}
		b = b[n:]
	}
	return nil
}

var errEnded = errors.New("the command has ended")

// whenEnded calls f at the command's end unless the returned function was
// called first.
func (p *process) whenEnded(f func()) func() {
	over := make(chan struct{})
	p.c.spawn(func() {
		select {
		case <-p.ended:
			f()
		case <-over:
		}
	})
	return func() { close(over) }
}

// alive is ErrNotFound once the command has ended.
func (p *process) alive(w where) error {
	select {
	case <-p.ended:
		return p.c.error(w, backend.ErrNotFound, errEnded)
	default:
		return nil
	}
}

func (p *process) closeInput(ctx context.Context) error {
	w := where{op: "close input"}
	if p.terminal {
		return p.c.error(w, backend.ErrUnsupported, errors.New("a terminal's input has no end"))
	}
	if err := p.alive(w); err != nil {
		return err
	}
	_, err := unary(ctx, p.c, w, "", &wireproc.CloseStdinRequest{Process: p.selector()}, p.c.proc.CloseStdin)
	return err
}

// Signal implements [backend.Process].
func (p *process) Signal(ctx context.Context, sig backend.Signal) error {
	w := where{op: "signal"}
	if sig < 1 || sig > maxSignal {
		return p.c.error(w, backend.ErrInvalid, errors.New("a signal is 1 to 64"))
	}
	return p.signal(ctx, w, sig, false)
}

func (p *process) signal(ctx context.Context, w where, sig backend.Signal, tree bool) error {
	if err := p.alive(w); err != nil {
		return err
	}
	if p.ext {
		req := &gloveboxv1.SignalRequest{Id: p.id, Signal: int32(sig), Tree: tree}
		_, err := unary(ctx, p.c, w, "", req, p.c.box.Signal)
		return err
	}
	if sig != backend.SIGKILL && sig != backend.SIGTERM {
		return p.c.error(w, backend.ErrUnsupported, errors.New("envd of E2B sends SIGKILL and SIGTERM only"))
	}
	req := &wireproc.SendSignalRequest{Process: p.selector(), Signal: wireproc.Signal(sig)}
	_, err := unary(ctx, p.c, w, "", req, p.c.proc.SendSignal)
	return err
}

// kill kills as much of the command's tree as the server can.
func (p *process) kill(ctx context.Context) error {
	return p.signal(ctx, where{op: "kill"}, backend.SIGKILL, p.ext)
}

// As hands out what this command can do.
func (p *process) As(target any) bool {
	switch t := target.(type) {
	case *backend.Resizer:
		if p.terminal {
			*t = resizer{p}
		}
		return p.terminal
	case *backend.Inputter:
		if p.input {
			*t = inputter{p}
		}
		return p.input
	case *backend.TreeKiller:
		if p.ext {
			*t = treeKiller{p}
		}
		return p.ext
	}
	return false
}

type resizer struct{ p *process }

func (r resizer) Resize(ctx context.Context, size backend.TerminalSize) error {
	w := where{op: "resize"}
	if err := r.p.alive(w); err != nil {
		return err
	}
	req := &wireproc.UpdateRequest{Process: r.p.selector(), Pty: pty(size)}
	_, err := unary(ctx, r.p.c, w, "", req, r.p.c.proc.Update)
	return err
}

type inputter struct{ p *process }

func (i inputter) WriteInput(ctx context.Context, b []byte) error { return i.p.sendInput(ctx, b) }
func (i inputter) CloseInput(ctx context.Context) error           { return i.p.closeInput(ctx) }

type treeKiller struct{ p *process }

func (k treeKiller) KillTree(ctx context.Context) error { return k.p.kill(ctx) }

var (
	_ backend.Resizer    = resizer{}
	_ backend.Inputter   = inputter{}
	_ backend.TreeKiller = treeKiller{}
)
