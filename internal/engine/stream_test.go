package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/glovebox-dev/glovebox/backend"
)

func frame(kind byte, content string) string {
	h := make([]byte, 8)
	h[0] = kind
	binary.BigEndian.PutUint32(h[4:], uint32(len(content)))
	return string(h) + content
}

func reading(s string) *Stream { return &Stream{in: strings.NewReader(s)} }

func TestStream_takesFramesApart(t *testing.T) {
	t.Parallel()
	flood := strings.Repeat("e", 3*maxTail)
	for name, tt := range map[string]struct {
		in, out, tail string
		err           error
	}{
		"nothing":          {"", "", "", nil},
		"one":              {frame(1, "abc"), "abc", "", nil},
		"mixed":            {frame(1, "ab") + frame(2, "x") + frame(1, "") + frame(2, "y") + frame(1, "c"), "abc", "xy", nil},
		"flood of errors":  {frame(2, flood+"!") + frame(1, "a"), "a", flood[:maxTail-1] + "!", nil},
		"daemon's words":   {frame(3, "trouble"), "", "trouble", nil},
		"cut in a header":  {frame(1, "abc") + "\x01\x00", "abc", "", io.ErrUnexpectedEOF},
		"cut in a content": {frame(1, "abc")[:9], "a", "", io.ErrUnexpectedEOF},
		"cut in an error":  {frame(2, "abc")[:9], "", "a", io.ErrUnexpectedEOF},
	} {
		s := reading(tt.in)
		out, err := io.ReadAll(s)
		if string(out) != tt.out || !errors.Is(err, tt.err) || string(s.Tail()) != tt.tail {
			t.Errorf("%s: %q, %q, %v", name, out, s.Tail(), err)
		}
	}
	if _, err := io.ReadAll(reading(frame(9, "x"))); err == nil || !strings.Contains(err.Error(), "unknown kind") {
		t.Errorf("an unknown kind: %v", err)
	}
}

// TestStream_deadlineLosesNothing: a deadline amid a header leaves the rest to
// the next read.
func TestStream_deadlineLosesNothing(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe()
	defer there.Close()
	s := &Stream{conn: here, in: here}
	defer s.Close()
	whole := frame(1, "hello")
	for i := 1; i < len(whole); i++ {
		go func() { _, _ = there.Write([]byte(whole[:i])) }()
		var got []byte
		buf := make([]byte, 16)
		for {
			if err := s.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			n, err := s.Read(buf)
			got = append(got, buf[:n]...)
			if err != nil {
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatal(err)
				}
				break
			}
		}
		_ = s.SetReadDeadline(time.Time{})
		go func() { _, _ = there.Write([]byte(whole[i:])) }()
		rest := make([]byte, 5-len(got))
		if _, err := io.ReadFull(s, rest); err != nil || string(got)+string(rest) != "hello" {
			t.Fatalf("cut at %d: %q %q %v", i, got, rest, err)
		}
	}
}

func FuzzStream(f *testing.F) {
	f.Add([]byte(frame(1, "abc") + frame(2, "x")))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := reading(string(data))
		out, _ := io.ReadAll(s)
		if len(out)+len(s.Tail()) > len(data) || len(s.Tail()) > maxTail {
			t.Errorf("%d bytes became %d and %d", len(data), len(out), len(s.Tail()))
		}
	})
}

func FuzzOneLine(f *testing.F) {
	f.Add("a\x1b[31m\n\u202e\xff")
	f.Fuzz(func(t *testing.T, s string) {
		got := oneLine(s)
		if len(got) > maxMessage+5 || !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q became %q", s, got)
		}
	})
}

func FuzzMessages(f *testing.F) {
	f.Add([]byte(`{"status":"x","id":"y","progressDetail":{"current":1,"total":2}}` + "\r\n" + `{"error":"z"}`))
	f.Fuzz(func(_ *testing.T, data []byte) { _ = messages(bytes.NewReader(data), func(message) {}) })
}

func TestMessages(t *testing.T) {
	t.Parallel()
	var seen []message
	err := messages(strings.NewReader(`{"id":"l","progressDetail":{"current":1,"total":2}}`+"\r\n"+`{"error":"boom"}`+"\n{}"), func(m message) { seen = append(seen, m) })
	if err == nil || err.Error() != "boom" || len(seen) != 1 || seen[0].Progress.Total != 2 {
		t.Errorf("%+v, %v", seen, err)
	}
	if err := messages(strings.NewReader(strings.Repeat("x", 2*maxLine)), func(message) {}); err == nil {
		t.Error("a line without an end is read")
	}
}

func TestCapped(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int64]backend.Kind{9: backend.ErrTooLarge, 10: "", 11: ""} {
		got, err := io.ReadAll(&capped{r: strings.NewReader("0123456789"), left: limit, op: "export"})
		if backend.KindOf(err) != want || int64(len(got)) != min(limit, 10) {
			t.Errorf("at most %d: %q %v", limit, got, err)
		}
	}
}

func TestRuncProblem(t *testing.T) {
	t.Parallel()
	for version, bad := range map[string]bool{
		"1.1.5+ds1": true, "1.2.7": true, "1.2.8": false, "1.2.10": false, "1.3.0": true, "1.3.2": true, "1.3.3": false,
		"1.4.0-rc.1": true, "1.4.0-rc.2": true, "1.4.0-rc.3": false, "1.4.0": false, "2.0.0": false, "0.9.1": true,
		"": true, "unknown": true, "v1.3.3": false, "1.2.0-rc.1": true,
	} {
		if got := runcProblem(version); (got != "") != bad {
			t.Errorf("%q: %q", version, got)
		}
	}
}
