//go:build linux

package agent

import (
	"context"
	"os"
	"time"

	"connectrpc.com/connect"
)

// input writes to a command's standard input or terminal, one writer after the
// other. A nil input is a command without one.
type input struct {
	s    *Server
	file *os.File
	tty  bool
	turn chan struct{} // of size 1: taken by the one who writes
}

func newInput(s *Server, file *os.File, tty bool) *input {
	return &input{s: s, file: file, tty: tty, turn: make(chan struct{}, 1)}
}

// write waits until the command has taken all of p, ended, or ctx is over.
func (in *input) write(ctx context.Context, p []byte) error {
	if in == nil {
		return fail(connect.CodeInternal, "error writing to stdin: stdin not enabled or closed")
	}
	n := int64(len(p))
	if in.s.pending.Add(n) > maxPending {
		in.s.pending.Add(-n)
		return fail(connect.CodeResourceExhausted, "%d bytes of input wait to be read already", maxPending)
	}
	defer in.s.pending.Add(-n)
	if err := in.take(ctx); err != nil {
		return err
	}
	defer in.give()

	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = in.file.SetWriteDeadline(time.Unix(1, 0))
		close(woken)
	})
	_, err := in.file.Write(p)
	if !stop() {
		<-woken
		_ = in.file.SetWriteDeadline(time.Time{})
	}
	if err != nil {
		if ctx.Err() != nil {
			return contextError(ctx)
		}
		return fail(connect.CodeInternal, "error writing to stdin: stdin not enabled or closed")
	}
	return nil
}

// closeAfter ends the input once everything that waits was written.
func (in *input) closeAfter(ctx context.Context) error {
	if err := in.take(ctx); err != nil {
		return err
	}
	defer in.give()
	in.close()
	return nil
}

func (in *input) take(ctx context.Context) error {
	select {
	case in.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return contextError(ctx)
	}
}

func (in *input) give() { <-in.turn }

// close ends a pipe at once. A terminal is its reader's to close.
func (in *input) close() {
	if in != nil && !in.tty {
		_ = in.file.Close()
	}
}
