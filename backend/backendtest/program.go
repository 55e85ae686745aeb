package backendtest

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// Program is what a command of a fake sandbox runs. ctx ends when the command
// is killed: its end has then been decided, and what is still written is lost.
// A program that does not return then is a leak.
type Program func(ctx context.Context, p *Proc) backend.Exit

// Proc is a command as its Program sees it.
type Proc struct {
	Args []string
	Env  map[string]string // the sandbox's and the command's
	Dir  string
	User string

	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Files  backend.Filesystem

	process *process
}

// Exited is the Exit of a program that ends by itself.
func Exited(code int) backend.Exit {
	return backend.Exit{Reason: backend.ReasonExited, Code: code}
}

// Signals makes the program handle its signals, SIGKILL excepted, which come
// through the channel from now on. Up to 16 wait; more are dropped.
func (p *Proc) Signals() <-chan backend.Signal { return p.process.handle() }

// Size is the size of the program's terminal, zero without one.
func (p *Proc) Size() backend.TerminalSize { return p.process.terminal() }

// Sleep waits until the fake's clock has moved by d; false when killed first.
func (p *Proc) Sleep(ctx context.Context, d time.Duration) bool {
	woken := make(chan struct{})
	stop := p.process.sb.host.clock.AfterFunc(d, func() { close(woken) })
	defer stop()
	select {
	case <-woken:
		return true
	case <-ctx.Done():
		return false
	}
}

// Listen opens a port that backend.Dialer reaches. The listener closes with
// the sandbox.
func (p *Proc) Listen(port uint16) (net.Listener, error) { return p.process.sb.listen(port) }

// Programs are the standard ones: true, false, echo, cat (its arguments, or
// standard input), env, exit CODE, sleep SECONDS, hang (until killed), flood
// BYTES (to standard output), and oom, which hits the memory limit.
func Programs() map[string]Program {
	return map[string]Program{
		"true":  func(context.Context, *Proc) backend.Exit { return Exited(0) },
		"false": func(context.Context, *Proc) backend.Exit { return Exited(1) },
		"echo": func(_ context.Context, p *Proc) backend.Exit {
			_, _ = fmt.Fprintln(p.Stdout, strings.Join(p.Args[1:], " "))
			return Exited(0)
		},
		"cat": cat,
		"env": func(_ context.Context, p *Proc) backend.Exit {
			for k, v := range p.Env {
				_, _ = fmt.Fprintf(p.Stdout, "%s=%s\n", k, v)
			}
			return Exited(0)
		},
		"exit": func(_ context.Context, p *Proc) backend.Exit { return Exited(p.number()) },
		"sleep": func(ctx context.Context, p *Proc) backend.Exit {
			p.Sleep(ctx, time.Duration(p.number())*time.Second)
			return Exited(0)
		},
		"hang": func(ctx context.Context, _ *Proc) backend.Exit {
			<-ctx.Done()
			return Exited(0)
		},
		"flood": flood,
		"oom": func(context.Context, *Proc) backend.Exit {
			return backend.Exit{
				Reason: backend.ReasonMemoryLimit, Code: 137, Signal: backend.SIGKILL,
				Hits: []backend.Hit{backend.HitMemory},
			}
		},
	}
}

// number is the first argument as a number, 0 without one.
func (p *Proc) number() int {
	if len(p.Args) < 2 {
		return 0
	}
	n, err := strconv.Atoi(p.Args[1])
	if err != nil {
		return 2
	}
	return n
}

func cat(ctx context.Context, p *Proc) backend.Exit {
	if len(p.Args) == 1 {
		_, _ = io.Copy(p.Stdout, p.Stdin)
		return Exited(0)
	}
	for _, name := range p.Args[1:] {
		data, err := backend.ReadFile(ctx, p.Files, name, backend.DefaultOutput)
		if err != nil {
			_, _ = fmt.Fprintln(p.Stderr, err)
			return Exited(1)
		}
		_, _ = p.Stdout.Write(data)
	}
	return Exited(0)
}

func flood(ctx context.Context, p *Proc) backend.Exit {
	line := []byte(strings.Repeat("x", 1023) + "\n")
	for left := p.number(); left > 0 && ctx.Err() == nil; left -= len(line) {
		_, _ = p.Stdout.Write(line[:min(left, len(line))])
	}
	return Exited(0)
}
