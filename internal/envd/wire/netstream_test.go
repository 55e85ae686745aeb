package wire_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

// pair are two ends of one stream.
func pair(t *testing.T) (a, b *wire.NetStream) {
	t.Helper()
	ar, bw := io.Pipe()
	br, aw := io.Pipe()
	a = wire.NewNetStream(ar, aw, nil, func() { _ = aw.Close() })
	b = wire.NewNetStream(br, bw, nil, func() { _ = bw.Close() })
	t.Cleanup(func() {
		for range 2 {
			_ = a.Close()
			_ = b.Close()
		}
		a.Wait()
		b.Wait()
	})
	return a, b
}

func TestNetStream_bothWays(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	data := make([]byte, 3<<20)
	_, _ = rand.Read(data)
	go func() {
		_, _ = io.Copy(b, struct{ io.Reader }{b}) // an echo
		_ = b.CloseWrite()
	}()
	go func() {
		_, _ = a.Write(data)
		_ = a.CloseWrite()
	}()
	got, err := io.ReadAll(a)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d: %v", len(got), len(data), err)
	}
	if _, err := a.Write([]byte{1}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a write after its end: %v", err)
	}
}

// TestNetStream_window: a peer that does not read holds up its writer, which has
// sent no more than a window.
func TestNetStream_window(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	_ = a.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	n, err := a.Write(make([]byte, 1<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) || n != 128<<10 {
		t.Fatalf("%d %v", n, err)
	}
	_ = a.SetWriteDeadline(time.Time{})
	if _, err := io.ReadFull(b, make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write(make([]byte, 1<<10)); err != nil {
		t.Error(err)
	}
}

func TestNetStream_ends(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	_ = b.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("past the deadline: %v", err)
	}
	_ = b.SetReadDeadline(time.Time{})
	_, _ = a.Write([]byte("last"))
	_ = a.Close()
	got, err := io.ReadAll(b)
	if string(got) != "last" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a stream that broke: %q %v", got, err)
	}
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a read after Close: %v", err)
	}
}

// FuzzNetStream: whatever a peer sends, no more than a window is kept.
func FuzzNetStream(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 'a', 0, 0, 0, 0})
	f.Add([]byte{0x80, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		s := wire.NewNetStream(bytes.NewReader(data), io.Discard, nil, func() {})
		defer s.Wait()
		defer s.Close()
		got, err := io.ReadAll(s)
		if len(got) > len(data) {
			t.Errorf("%d bytes of %d", len(got), len(data))
		}
		// Without its last frame a stream has not ended.
		if err == nil && !bytes.Contains(data, []byte{0, 0, 0, 0}) {
			t.Error("an end out of nothing")
		}
	})
}
