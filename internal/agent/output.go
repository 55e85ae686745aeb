//go:build linux

package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// output reads one of a command's streams. It holds no buffer while the
// command is silent.
type output struct {
	c       *command
	kind    stream
	size    int // of a chunk
	file    *os.File
	closing atomic.Bool

	drained chan struct{} // closed when everything that counts was delivered
	held    bool          // valid once drained: others still hold the stream
}

func newOutput(kind stream, file *os.File) *output {
	size := chunkSize
	if kind == streamPTY {
		size = ptyChunkSize
	}
	return &output{kind: kind, size: size, file: file, drained: make(chan struct{})}
}

// wrapUp makes the reader finish with what is in the pipe now.
func (o *output) wrapUp() {
	o.closing.Store(true)
	_ = o.file.SetReadDeadline(time.Unix(1, 0)) // wakes it
}

// run delivers until the stream's end, or until it is told to wrap up and the
// pipe is empty. Then it reads to nowhere, so that descendants that still
// write get no SIGPIPE.
func (o *output) run() {
	defer o.file.Close() //nolint:errcheck // read side
	for spent := 0; spent < heldBudget; {
		closing := o.closing.Load()
		ch, err := o.read(!closing)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = o.file.SetReadDeadline(time.Time{})
			continue
		case err != nil:
			close(o.drained)
			return
		}
		if ch == nil {
			break
		}
		if closing {
			spent += len(ch.data)
		}
		o.c.publish(o.kind, ch)
	}
	o.held = true
	close(o.drained)
	o.discard()
}

// read takes what is there. Without wait it returns nil for an empty pipe.
func (o *output) read(wait bool) (*chunk, error) {
	rc, err := o.file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var ch *chunk
	var n int
	var rerr error
	err = rc.Read(func(fd uintptr) bool {
		ch = o.c.s.newChunk()
		for {
			n, rerr = unix.Read(int(fd), ch.buf[:o.size])
			if !errors.Is(rerr, unix.EINTR) {
				break
			}
		}
		if n > 0 {
			ch.data = ch.buf[:n]
			return true
		}
		o.c.s.release(ch)
		ch = nil
		return !wait || !errors.Is(rerr, unix.EAGAIN)
	})
	switch {
	case ch != nil:
		return ch, nil
	case err != nil:
		return nil, err
	case errors.Is(rerr, unix.EAGAIN):
		return nil, nil //nolint:nilnil // nothing there is no error
	case rerr != nil:
		return nil, rerr
	}
	return nil, io.EOF
}

// discard reads to nowhere until the stream or the sandbox ends.
func (o *output) discard() {
	if o.c.s.drains.Add(1) > maxDrains {
		o.c.s.drains.Add(-1)
		return // beyond the bound writers do get SIGPIPE
	}
	defer o.c.s.drains.Add(-1)
	// The server's end wakes it; the command may have been forgotten by then.
	defer context.AfterFunc(o.c.s.ctx, o.wrapUp)()
	for o.c.s.ctx.Err() == nil {
		ch, err := o.read(true)
		o.c.s.release(ch)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			_ = o.file.SetReadDeadline(time.Time{})
		} else if err != nil {
			return
		}
	}
}
