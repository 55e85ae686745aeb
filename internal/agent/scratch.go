//go:build linux

package agent

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// scratchEvery is how often the scratch is looked at while commands run. One
// that is full for a shorter time, between two looks, is missed.
const scratchEvery = 100 * time.Millisecond

// Names of limits of the scratch, on the wire.
const (
	hitDisk  = "disk"
	hitFiles = "files"
)

// scratch watches how full Options.Scratch is, since the kernel tells nobody of
// a write it refuses.
type scratch struct {
	mu    sync.Mutex
	armed bool
}

// watchScratch has the scratch looked at for as long as commands run.
func (s *Server) watchScratch() {
	s.scratch.mu.Lock()
	defer s.scratch.mu.Unlock()
	if !s.scratch.armed {
		s.scratch.armed = true
		time.AfterFunc(scratchEvery, s.lookAtScratch)
	}
}

// lookAtScratch notes what is full with every running command.
func (s *Server) lookAtScratch() {
	if hits := s.fullScratch(); len(hits) > 0 {
		for _, c := range s.table.live() {
			c.noteHits(hits)
		}
	}
	s.scratch.mu.Lock()
	defer s.scratch.mu.Unlock()
	// Commands are in the table before they ask for the watch, so that one
	// which found it armed is seen here.
	s.scratch.armed = len(s.table.live()) > 0 && s.ctx.Err() == nil
	if s.scratch.armed {
		time.AfterFunc(scratchEvery, s.lookAtScratch)
	}
}

// fullScratch names the limits of the scratch that are reached now.
func (s *Server) fullScratch() []string {
	var st unix.Statfs_t
	if s.opts.Scratch == "" || unix.Statfs(s.opts.Scratch, &st) != nil {
		return nil
	}
	var hits []string
	if st.Blocks > 0 && st.Bavail == 0 {
		hits = append(hits, hitDisk)
	}
	if st.Files > 0 && st.Ffree == 0 {
		hits = append(hits, hitFiles)
	}
	return hits
}

// noteHits adds to the limits that were reached while the command ran.
func (c *command) noteHits(hits []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range hits {
		if !slices.Contains(c.hits, h) {
			c.hits = append(c.hits, h)
		}
	}
}
