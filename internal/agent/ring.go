//go:build linux

package agent

import "sync"

// stream says which output bytes belong to.
type stream uint32

const (
	streamStdout stream = iota
	streamStderr
	streamPTY
	streamEnd // no bytes: the command has ended
)

// maxRuns bounds the bookkeeping of a program that alternates between its
// streams byte by byte.
const maxRuns = 4096

// run is consecutive bytes of one stream.
type run struct {
	kind stream
	n    int32
}

// ring keeps the newest output of one command in order over its streams. It
// takes no memory before the first byte. Its owner's lock guards it.
type ring struct {
	buf     []byte
	start   int // of the oldest byte
	n       int
	runs    []run
	written int64
}

// append adds p, dropping the oldest bytes. grow is asked before the buffer
// grows by a number of bytes.
func (r *ring) append(kind stream, p []byte, grow func(int) bool) {
	r.written += int64(len(p))
	if len(p) > ringSize {
		p = p[len(p)-ringSize:]
	}
	r.reserve(len(p), grow)
	if len(r.buf) == 0 {
		return
	}
	if len(p) > len(r.buf) {
		p = p[len(p)-len(r.buf):]
	}
	r.drop(r.n + len(p) - len(r.buf))
	at := (r.start + r.n) % len(r.buf)
	copied := copy(r.buf[at:], p)
	copy(r.buf, p[copied:])
	r.n += len(p)
	if last := len(r.runs) - 1; last >= 0 && r.runs[last].kind == kind {
		r.runs[last].n += int32(len(p))
		return
	}
	if len(r.runs) == maxRuns {
		r.drop(int(r.runs[0].n))
	}
	r.runs = append(r.runs, run{kind, int32(len(p))})
}

// reserve grows the buffer towards room for n more bytes.
func (r *ring) reserve(n int, grow func(int) bool) {
	size := max(len(r.buf), 1024)
	for size < r.n+n && size < ringSize {
		size *= 2
	}
	if size == len(r.buf) || !grow(size-len(r.buf)) {
		return
	}
	buf := make([]byte, size)
	copy(buf, r.bytes())
	r.buf, r.start = buf, 0
}

// drop forgets the oldest n bytes.
func (r *ring) drop(n int) {
	if n <= 0 {
		return
	}
	r.start = (r.start + n) % len(r.buf)
	r.n -= n
	gone := 0
	for n > 0 {
		k := min(n, int(r.runs[gone].n))
		r.runs[gone].n -= int32(k)
		n -= k
		if r.runs[gone].n == 0 {
			gone++
		}
	}
	r.runs = append(r.runs[:0], r.runs[gone:]...)
}

// bytes is a copy of what the ring holds, oldest first.
func (r *ring) bytes() []byte {
	out := make([]byte, r.n)
	if r.n > 0 {
		k := copy(out, r.buf[r.start:])
		copy(out[k:], r.buf)
	}
	return out
}

// shrink frees what the ring does not use and says how much that was.
func (r *ring) shrink() int {
	freed := len(r.buf) - r.n
	r.buf, r.start = r.bytes(), 0
	r.runs = append([]run(nil), r.runs...)
	return freed
}

// clear frees everything and says how much that was.
func (r *ring) clear() int {
	freed := len(r.buf)
	r.buf, r.runs, r.start, r.n = nil, nil, 0, 0
	return freed
}

// rings bounds what all commands' rings hold together. The lock order is a
// running command's, then an ended command's, then the rings'.
type rings struct {
	mu    sync.Mutex
	total int
	ended []*command // whose rings may be dropped, oldest first
}

// grow takes n bytes from the budget, dropping ended commands' output for it.
func (g *rings) grow(n int) bool {
	for {
		g.mu.Lock()
		if g.total+n <= ringsTotal {
			g.total += n
			g.mu.Unlock()
			return true
		}
		if len(g.ended) == 0 {
			g.mu.Unlock()
			return false
		}
		victim := g.ended[0]
		g.ended = g.ended[1:]
		g.mu.Unlock()
		g.free(victim.clearRing())
	}
}

func (g *rings) free(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.total -= n
}

// retire makes an ended command's output the first to go.
func (g *rings) retire(c *command) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = append(g.ended, c)
	if len(g.ended) > 2*maxEnded {
		// Those in front were forgotten by the table, their rings are empty.
		g.ended = append([]*command(nil), g.ended[len(g.ended)-maxEnded:]...)
	}
}
