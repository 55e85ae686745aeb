package cli

import (
	"context"
	"fmt"
	"sync"

	xterm "golang.org/x/term"

	"github.com/glovebox-dev/glovebox/backend"
)

// tty is our terminal while a program has it.
type tty struct {
	in, out int
	state   *xterm.State
	stop    context.CancelFunc
	wg      sync.WaitGroup
}

// needTTY refuses --tty where there is no terminal to give.
func (a *App) needTTY() error {
	if _, ok := terminal(a.Stdin); !ok {
		return usagef("--tty: standard input is not a terminal; use --stdin")
	}
	if _, ok := terminal(a.Stdout); !ok {
		return usagef("--tty: standard output is not a terminal; leave --tty out")
	}
	return nil
}

// openTTY puts our terminal into raw mode. The caller calls restore.
func (a *App) openTTY() (*tty, error) {
	in, _ := terminal(a.Stdin) // needTTY has looked
	out, _ := terminal(a.Stdout)
	state, err := xterm.MakeRaw(in)
	if err != nil {
		return nil, fmt.Errorf("--tty: %w", err)
	}
	return &tty{in: in, out: out, state: state}, nil
}

// restore gives the terminal back as it was.
func (t *tty) restore() {
	if t.stop != nil {
		t.stop()
	}
	t.wg.Wait()
	_ = xterm.Restore(t.in, t.state) // nothing else could be done
}

// size is the terminal's size, nil's default where it cannot be told.
func (t *tty) size() *backend.TerminalSize {
	cols, rows, err := xterm.GetSize(t.out)
	if err != nil || cols <= 0 || rows <= 0 || cols > 0xffff || rows > 0xffff {
		return &backend.TerminalSize{}
	}
	return &backend.TerminalSize{Cols: uint16(cols), Rows: uint16(rows)}
}

// follow passes changes of our terminal's size on to p until restore.
func (t *tty) follow(ctx context.Context, p backend.Process) {
	r, ok := backend.As[backend.Resizer](p)
	if !ok {
		return
	}
	ctx, t.stop = context.WithCancel(context.WithoutCancel(ctx))
	changes, stop := sizeChanges()
	t.wg.Go(func() {
		defer stop()
		for {
			select {
			case <-changes:
				_ = r.Resize(ctx, *t.size()) // a size that does not arrive is no reason to end
			case <-ctx.Done():
				return
			}
		}
	})
}
