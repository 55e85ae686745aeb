package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// transfer makes a call that moves data. It has no deadline as a whole, but
// ends when nothing has moved for some minutes; f says what moves.
func (e *Engine) transfer(ctx context.Context, c call, f func(ctx context.Context, moved func()) error) error {
	if err := e.alive(ctx, true); err != nil {
		return e.classify(ctx, call{op: c.op}, err)
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := newIdle(e.limits.idle, cancel)
	defer timer.stop()
	err := f(inner, timer.moved)
	switch {
	case err == nil:
		e.heard()
		return nil
	case inner.Err() != nil && ctx.Err() == nil:
		err = context.DeadlineExceeded
	}
	return e.classify(ctx, c, err)
}

// idle calls a function when nothing has moved for a while.
type idle struct {
	timer *time.Timer
	after time.Duration
}

func newIdle(after time.Duration, f func()) idle {
	return idle{timer: time.AfterFunc(after, f), after: after}
}

func (i idle) moved() { i.timer.Reset(i.after) }
func (i idle) stop()  { i.timer.Stop() }

// moving tells of each part that is read.
type moving struct {
	r     io.Reader
	moved func()
}

func (m moving) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	if n > 0 {
		m.moved()
	}
	return n, err
}

// message is one of those that the daemon sends while it works.
type message struct {
	ID       string `json:"id"`
	Status   string `json:"status"`
	Error    string `json:"error"`
	Progress struct {
		Current int64 `json:"current"`
		Total   int64 `json:"total"`
	} `json:"progressDetail"`
}

// maxLine bounds one message.
const maxLine = 256 << 10

// messages reads the daemon's messages until they end, or tell of an error.
func messages(r io.Reader, each func(message)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return fmt.Errorf("the daemon's progress cannot be read: %w", err)
		}
		if m.Error != "" {
			return errors.New(m.Error)
		}
		each(m)
	}
	return lines.Err()
}

// capped reads at most left bytes; more is too_large.
type capped struct {
	r    io.Reader
	left int64
	op   string
}

func (c *capped) Read(p []byte) (int, error) {
	if c.left < 0 {
		return 0, c.tooLarge()
	}
	// One byte more than allowed tells the end from too much.
	n, err := c.r.Read(p[:min(int64(len(p)), c.left+1)])
	if c.left -= int64(n); c.left < 0 {
		return n - 1, c.tooLarge()
	}
	return n, err
}

func (c *capped) tooLarge() error {
	return &backend.Error{Op: c.op, Kind: backend.ErrTooLarge, Field: "image", Err: errors.New("it has more bytes than are allowed")}
}
