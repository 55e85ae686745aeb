package engine

import (
	"bufio"
	"io"
	"net"
	"testing"
)

// TestStreamDetach: whatever was read of the frames, what is given away and
// what was read before are the whole.
func TestStreamDetach(t *testing.T) {
	t.Parallel()
	frames := "\x01\x00\x00\x00\x00\x00\x00\x05hello\x02\x00\x00\x00\x00\x00\x00\x03err\x01\x00\x00\x00\x00\x00\x00\x05world"
	for _, size := range []int{1, 3, 5} {
		near, far := socketPair(t)
		go func() {
			io.WriteString(far, frames)
			far.Close()
		}()
		s := &Stream{conn: near, in: bufio.NewReader(near)}
		got := make([]byte, size)
		if _, err := io.ReadFull(s, got); err != nil {
			t.Fatal(err)
		}
		d, err := s.Detach()
		if err != nil {
			t.Fatal(err)
		}
		defer d.File.Close()
		rest, err := io.ReadAll(d.File)
		if err != nil {
			t.Fatal(err)
		}
		again := &Stream{in: bufio.NewReader(readers(d.Ahead, rest)), left: d.Left, kind: frameOut}
		if d.LeftError {
			again.kind = frameErr
		}
		tail, err := io.ReadAll(again)
		if err != nil || string(got)+string(tail) != "helloworld" || string(again.Tail()) != "err" {
			t.Errorf("after %d bytes: %q %q %q %v", size, got, tail, again.Tail(), err)
		}
		if _, err := s.Write(nil); err == nil {
			t.Error("it can still be written to")
		}
	}
	a, b := net.Pipe()
	defer b.Close()
	if _, err := (&Stream{conn: a, in: a}).Detach(); err == nil {
		t.Error("a connection without a descriptor was given away")
	}
}

func readers(parts ...[]byte) io.Reader {
	r, w := io.Pipe()
	go func() {
		for _, p := range parts {
			w.Write(p)
		}
		w.Close()
	}()
	return r
}

func socketPair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}
