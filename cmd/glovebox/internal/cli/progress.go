package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// patience is how long something may take before we say what it is.
const patience = time.Second

// progress tells on a terminal what takes long. Without a terminal it is
// silent.
type progress struct {
	w io.Writer // nil: silent
}

func (a *App) newProgress(quiet bool) *progress {
	if _, ok := terminal(a.Stderr); !ok || quiet {
		return &progress{}
	}
	return &progress{a.Stderr}
}

// phase begins something that may take long; the caller calls end when it is
// over.
func (p *progress) phase(what string) (end func()) {
	if p.w == nil {
		return func() {}
	}
	var mu sync.Mutex
	shown, over := false, false
	timer := time.AfterFunc(patience, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			shown = true
			fmt.Fprintf(p.w, "glovebox: %s …", what)
		}
	})
	return func() {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		over = true
		if shown {
			fmt.Fprint(p.w, "\r\x1b[K")
		}
	}
}
