//go:build linux

package hostiletest_test

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// watched collects output and tells when something was said.
type watched struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	want []byte
	seen chan struct{}
}

// watchedMax bounds what is kept of an output.
const watchedMax = 1 << 20

func (o *watched) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf.Write(p[:min(len(p), max(watchedMax-o.buf.Len(), 0))])
	if o.want != nil && bytes.Contains(o.buf.Bytes(), o.want) {
		close(o.seen)
		o.want = nil
	}
	return len(p), nil
}

func (o *watched) bytes() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.buf.Bytes())
}

// saying waits until text was written, or p has ended without it.
func (o *watched) saying(text string, p backend.Process) bool {
	o.mu.Lock()
	if bytes.Contains(o.buf.Bytes(), []byte(text)) {
		o.mu.Unlock()
		return true
	}
	seen := make(chan struct{})
	o.want, o.seen = []byte(text), seen
	o.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	go func() {
		_, _ = p.Wait(ctx)
		cancel()
	}()
	select {
	case <-seen:
		return true
	case <-ctx.Done():
		return bytes.Contains(o.bytes(), []byte(text))
	}
}
