package backendtest

import (
	"sync"
	"time"
)

// Clock is a clock that stands still until it is told to move. It is safe for
// concurrent use.
type Clock struct {
	mu     sync.Mutex
	now    time.Time
	timers map[*timer]struct{}
}

type timer struct {
	at time.Time
	f  func()
}

// NewClock makes a Clock that shows the beginning of the year 2030, UTC.
func NewClock() *Clock {
	return &Clock{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), timers: map[*timer]struct{}{}}
}

// Now is the time the clock shows.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock by d, which must not be negative, and calls what
// falls due on the way, in order, before it returns.
func (c *Clock) Advance(d time.Duration) {
	end := c.Now().Add(d)
	for {
		f := c.next(end)
		if f == nil {
			return
		}
		f()
	}
}

// next moves to the next timer due by end and gives its function, or moves to
// end and gives nil.
func (c *Clock) next(end time.Time) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var first *timer
	for t := range c.timers {
		if !t.at.After(end) && (first == nil || t.at.Before(first.at)) {
			first = t
		}
	}
	if first == nil {
		if end.After(c.now) {
			c.now = end
		}
		return nil
	}
	delete(c.timers, first)
	if first.at.After(c.now) {
		c.now = first.at
	}
	return first.f
}

// AfterFunc calls f once the clock has moved by d, from Advance. stop prevents
// a call that has not begun; it may be called repeatedly.
func (c *Clock) AfterFunc(d time.Duration, f func()) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &timer{at: c.now.Add(d), f: f}
	c.timers[t] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.timers, t)
	}
}

// Timers is how many calls are due in the future: what a test waits for before
// it advances.
func (c *Clock) Timers() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}
