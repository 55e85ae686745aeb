package cli

import (
	"fmt"
	"io"
	"sync"
	"time"

	xterm "golang.org/x/term"

	"github.com/glovebox-dev/glovebox/internal/image"
	"github.com/glovebox-dev/glovebox/internal/term"
)

// imageProgress shows what a build is doing: on a terminal in one line that
// moves, elsewhere in one line for each phase.
type imageProgress struct {
	w    io.Writer // nil: silent
	fd   int       // of the terminal, -1 for none
	mu   sync.Mutex
	last image.Progress
	at   time.Time
	open bool // a line stands there
	from time.Time
}

func (a *App) imageProgress(silent bool) *imageProgress {
	p := &imageProgress{w: a.Stderr, fd: -1, from: time.Now()}
	if fd, ok := terminal(a.Stderr); ok {
		p.fd = fd
	}
	if silent {
		p.w = nil
	}
	return p
}

// show is told of each step.
func (p *imageProgress) show(now image.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fresh := now.Image != p.last.Image || now.Phase != p.last.Phase
	p.last = now
	if p.w == nil {
		return
	}
	if p.fd < 0 {
		if fresh {
			fmt.Fprintf(p.w, "glovebox: %s: %s\n", term.String(now.Image), term.String(now.Phase))
		}
		return
	}
	if !fresh && time.Since(p.at) < 100*time.Millisecond {
		return
	}
	p.at, p.open = time.Now(), true
	fmt.Fprintf(p.w, "\r\x1b[K%s", p.line())
}

func (p *imageProgress) line() string {
	s := fmt.Sprintf("%s: %3.0fs ", p.last.Image, time.Since(p.from).Seconds())
	if p.last.Total > 0 {
		s += fmt.Sprintf("[%d/%d] ", p.last.Done, p.last.Total)
	}
	s += p.last.Phase
	if p.last.Item != "" {
		s += " " + p.last.Item
	}
	s = term.String(s)
	if width, _, err := xterm.GetSize(p.fd); err == nil && width > 1 && len(s) >= width {
		s = s[:width-1]
	}
	return s
}

// end takes the line away.
func (p *imageProgress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open {
		p.open = false
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	p.from = time.Now()
}
