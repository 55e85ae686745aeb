package plain

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/glovebox-dev/glovebox/backend"
)

// ends are the files of one command, ours and the child's: standard input,
// output and errors. Without input both its ends are nil.
type ends struct {
	ours, child [3]*os.File
}

func openPipes(stdin bool) (*ends, error) {
	e := &ends{}
	var err error
	if stdin {
		e.child[0], e.ours[0], err = os.Pipe()
	}
	for i := 1; i <= 2 && err == nil; i++ {
		e.ours[i], e.child[i], err = os.Pipe()
	}
	if err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *ends) closeChild() {
	for _, f := range e.child {
		if f != nil {
			_ = f.Close()
		}
	}
}

func (e *ends) close() {
	e.closeChild()
	for _, f := range e.ours {
		if f != nil {
			_ = f.Close()
		}
	}
}

// input is our end of a command's standard input.
type input struct {
	w    *os.File
	turn chan struct{} // holds a token while nobody writes
	once sync.Once
}

func newInput(w *os.File) *input {
	in := &input{w: w, turn: make(chan struct{}, 1)}
	in.turn <- struct{}{}
	return in
}

// close ends the input; a write under way ends with it.
func (in *input) close() { in.once.Do(func() { _ = in.w.Close() }) }

// feed copies r to the command and closes its input. It ends with the command,
// or when r then returns.
func (p *process) feed(r io.Reader) {
	defer p.in.close()
	buf := make([]byte, chunk)
	for !p.hasEnded() {
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := p.in.w.Write(buf[:n]); err != nil {
				return // the command does not want it
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			p.mu.Lock()
			p.warnings = append(p.warnings, "standard input ended early: "+err.Error())
			p.mu.Unlock()
			return
		}
	}
}

// inputter is a process with its standard input kept open.
type inputter struct{ p *process }

// WriteInput implements backend.Inputter. When ctx ends first, any part of b
// may be written, then or later.
func (i inputter) WriteInput(ctx context.Context, b []byte) error {
	in := i.p.in
	if err := i.usable(); err != nil {
		return err
	}
	select {
	case <-in.turn:
	case <-i.p.reaped:
		return i.p.ended("write input")
	case <-ctx.Done():
		return ctx.Err()
	}
	// Not every system can interrupt a write to a pipe, so it is left behind;
	// it ends with the command. The caller may use b again.
	result := make(chan error, 1)
	data := bytes.Clone(b)
	go func() {
		_, err := in.w.Write(data)
		in.turn <- struct{}{}
		result <- err
	}()
	select {
	case err := <-result:
		return i.fault(err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (i inputter) usable() error {
	if err := i.p.sb.alive("write input"); err != nil {
		return err
	}
	if i.p.hasEnded() {
		return i.p.ended("write input")
	}
	return nil
}

func (i inputter) fault(err error) error {
	switch {
	case err == nil:
		return nil
	case i.p.hasEnded():
		return i.p.ended("write input")
	}
	return i.p.sb.fault("write input", backend.ErrNotFound, "", errors.New("the command's standard input is closed"), "")
}

// CloseInput implements backend.Inputter. It waits for writes under way, which
// closing would cut off.
func (i inputter) CloseInput(ctx context.Context) error {
	if err := i.p.sb.alive("close input"); err != nil {
		return err
	}
	select {
	case <-i.p.in.turn:
	case <-i.p.reaped:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	i.p.in.close()
	i.p.in.turn <- struct{}{}
	return nil
}
