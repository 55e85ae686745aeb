//go:build linux

package keeper_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/envd"
	"github.com/glovebox-dev/glovebox/internal/keeper"
)

// echo answers with what it is sent, as it comes.
func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Trailer", "X-Sum")
	w.WriteHeader(http.StatusAccepted)
	w.(http.Flusher).Flush() //nolint:forcetypeassert // HTTP/2 can
	sum := sha256.New()
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Body.Read(buf)
		sum.Write(buf[:n])
		if _, werr := w.Write(buf[:n]); werr != nil {
			return
		}
		w.(http.Flusher).Flush() //nolint:forcetypeassert // HTTP/2 can
		if err != nil {
			break
		}
	}
	w.Header().Set("X-Sum", fmt.Sprintf("%x", sum.Sum(nil)))
	w.Header().Set(http.TrailerPrefix+"X-Asked", r.Trailer.Get("X-Last"))
}

func behind(t *testing.T, h http.Handler) *envd.Transport {
	t.Helper()
	s := newStore(t)
	sb := s.newSandbox(t, "sone")
	host, _ := agent(t, h)
	s.hold(t, sb, &keeper.Stream{Files: []*os.File{host}})
	t.Cleanup(sb.kill)
	return sb.client(t)
}

func TestFront_bothWaysAtOnce(t *testing.T) {
	t.Parallel()
	rt := behind(t, http.HandlerFunc(echo))
	pr, pw := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://sandbox/echo?a=1;b=%zz", pr)
	if err != nil {
		t.Fatal(err)
	}
	req.Trailer = http.Header{"X-Last": nil}
	res, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusAccepted {
		t.Errorf("status %d", res.StatusCode)
	}
	// The answer has begun before the request ends: each word comes back before
	// the next is sent.
	for i := range 50 {
		word := fmt.Sprintf("word %d", i)
		if _, err := io.WriteString(pw, word); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(word))
		if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != word {
			t.Fatalf("got %q %v", got, err)
		}
	}
	req.Trailer.Set("X-Last", "said last")
	pw.Close()
	if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 {
		t.Errorf("the rest: %q %v", rest, err)
	}
	if len(res.Trailer.Get("X-Sum")) != 64 || res.Trailer.Get("X-Asked") != "said last" {
		t.Errorf("trailers: %v", res.Trailer)
	}
}

func TestFront_passesRequestsAsTheyAre(t *testing.T) {
	t.Parallel()
	type seen struct {
		method, uri, host string
		header            http.Header
	}
	got := make(chan seen, 1)
	rt := behind(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- seen{r.Method, r.URL.RequestURI(), r.Host, r.Header}
		w.Header().Add("X-Answer", "one")
		w.Header().Add("X-Answer", "two")
		w.WriteHeader(http.StatusTeapot)
	}))
	req, err := http.NewRequestWithContext(t.Context(), "REPORT", "http://49983-x.example:80/a%2Fb//c?q=1;r=%zz&s", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{
		"X-Forwarded-For": {"192.0.2.1"}, "Forwarded": {"for=x"}, "Authorization": {"Basic eA=="}, "User-Agent": {"me"}, "X-Twice": {"a", "b"},
	}
	res, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	s := <-got
	if s.method != "REPORT" || s.uri != "/a%2Fb//c?q=1;r=%zz&s" || s.host != "49983-x.example:80" {
		t.Errorf("%s %s of %s", s.method, s.uri, s.host)
	}
	if fmt.Sprint(s.header) != fmt.Sprint(req.Header) {
		t.Errorf("headers: %v, want %v", s.header, req.Header)
	}
	if res.StatusCode != http.StatusTeapot || fmt.Sprint(res.Header["X-Answer"]) != "[one two]" {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
}

func TestFront_largeBodies(t *testing.T) {
	t.Parallel()
	rt := behind(t, http.HandlerFunc(echo))
	const size = 64 << 20
	chunk := bytes.Repeat([]byte("0123456789abcdef"), 4<<10)
	want := sha256.New()
	body := io.TeeReader(io.LimitReader(&repeat{chunk: chunk}, size), want)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://sandbox/", body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got := sha256.New()
	n, err := io.Copy(got, res.Body)
	if n != size || err != nil || !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Errorf("%d bytes, %v", n, err)
	}
}

type repeat struct {
	chunk []byte
	at    int
}

func (r *repeat) Read(p []byte) (int, error) {
	n := copy(p, r.chunk[r.at:])
	r.at = (r.at + n) % len(r.chunk)
	return n, nil
}

// An agent that floods an answer nobody reads is held up, and others are not.
func TestFront_backPressure(t *testing.T) {
	t.Parallel()
	ended := make(chan int, 1)
	rt := behind(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/flood" {
			fmt.Fprint(w, "calm")
			return
		}
		n, chunk := 0, make([]byte, 64<<10)
		for r.Context().Err() == nil {
			m, err := w.Write(chunk)
			if n += m; err != nil {
				break
			}
		}
		ended <- n
	}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sandbox/flood", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for range 100 {
		if got, err := get(t, rt, "/"); got != "calm" || err != nil {
			t.Fatalf("beside a flood: %q %v", got, err)
		}
	}
	cancel() // a caller that leaves is noticed by the agent
	if n := <-ended; n > 32<<20 {
		t.Errorf("%d bytes were taken that nobody read", n)
	}
}

func TestFront_hostileAgent(t *testing.T) {
	t.Parallel()
	rt := behind(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/abort":
			w.Write([]byte("half"))
			w.(http.Flusher).Flush() //nolint:forcetypeassert // HTTP/2 can
			panic(http.ErrAbortHandler)
		case "/early":
			// Set once: of a request that was given up net/http still reads them.
			w.Header().Set("X-Pad", strings.Repeat("x", 1000))
			for range 1000 {
				w.WriteHeader(http.StatusEarlyHints)
			}
		}
		fmt.Fprint(w, "ok")
	}))
	if got, err := get(t, rt, "/abort"); err == nil {
		t.Errorf("broken off: %.100q", got)
	}
	if got, err := get(t, rt, "/"); got != "ok" || err != nil {
		t.Fatalf("after what was broken off: %q %v", got, err)
	}
	get(t, rt, "/early")
	if got, err := get(t, rt, "/"); got != "ok" || err != nil {
		t.Fatalf("after early hints: %q %v", got, err)
	}
}

// What is no HTTP/2 ends the sandbox's stream and nobody else's.
func TestFront_noise(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	calm := s.newSandbox(t, "scalm")
	host, _ := agent(t, says("calm"))
	s.hold(t, calm, &keeper.Stream{Files: []*os.File{host}})
	for i, noise := range [][]byte{
		[]byte("HTTP/1.1 200 OK\r\n\r\n"), bytes.Repeat([]byte{0xff}, 1<<20), {0, 0, 0, 4}, nil,
	} {
		sb := s.newSandbox(t, fmt.Sprintf("snoise%d", i))
		mine, theirs := pair(t)
		s.hold(t, sb, &keeper.Stream{Files: []*os.File{mine}})
		go func() {
			theirs.Write(noise)
			theirs.Close()
		}()
		if got, err := get(t, sb.client(t), "/"); err == nil {
			t.Errorf("%.20q: %q", noise, got)
		}
		eventually(t, "it is let go", func() bool { return !sb.served() })
		sb.kill()
	}
	sb := s.newSandbox(t, "sheaders")
	host, _ = agent(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for i := range 10000 {
			w.Header().Set(fmt.Sprintf("X-H-%d", i), strings.Repeat("x", 100))
		}
	}))
	s.hold(t, sb, &keeper.Stream{Files: []*os.File{host}})
	if got, err := get(t, sb.client(t), "/"); err == nil {
		t.Errorf("a megabyte of headers: %q", got)
	}
	sb.kill()
	if got, err := get(t, calm.client(t), "/"); got != "calm" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	calm.kill()
}

func TestFront_pipes(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	sb := s.newSandbox(t, "sone")
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ended := serveOn(t, http.HandlerFunc(echo), &pipes{r: inR, w: outW})
	s.hold(t, sb, &keeper.Stream{Files: []*os.File{outR, inW}})
	exchange(t, sb.client(t))
	if err := s.k.Release(t.Context(), sb.id); err != nil {
		t.Fatal(err)
	}
	<-ended
	sb.kill()
}

func exchange(t *testing.T, rt http.RoundTripper) {
	t.Helper()
	text := strings.Repeat("to and fro ", 20000)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://sandbox/", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	res, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got, err := io.ReadAll(res.Body); string(got) != text || err != nil {
		t.Errorf("%d bytes of %d came back, %v", len(got), len(text), err)
	}
}

// pipes is a connection of two pipes.
type pipes struct {
	net.Conn // for what is not called
	r, w     *os.File
}

func (p *pipes) Read(b []byte) (int, error)         { return p.r.Read(b) }
func (p *pipes) Write(b []byte) (int, error)        { return p.w.Write(b) }
func (p *pipes) Close() error                       { return errors.Join(p.r.Close(), p.w.Close()) }
func (p *pipes) SetReadDeadline(d time.Time) error  { return p.r.SetReadDeadline(d) }
func (p *pipes) SetWriteDeadline(d time.Time) error { return p.w.SetWriteDeadline(d) }
func (p *pipes) SetDeadline(d time.Time) error      { return p.SetReadDeadline(d) }
func (p *pipes) RemoteAddr() net.Addr               { return &net.UnixAddr{} }
func (p *pipes) LocalAddr() net.Addr                { return &net.UnixAddr{} }

func TestFront_dockerFrames(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	sb := s.newSandbox(t, "sone")
	mine, theirs := pair(t)
	conn, err := net.FileConn(theirs)
	if err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	serveOn(t, http.HandlerFunc(echo), &framed{Conn: conn})
	// The reader was amid a frame of error output, and had read into the next.
	ahead := append([]byte("rest"), 2, 0, 0, 0, 0, 0, 0, 3)
	if _, err := conn.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	s.hold(t, sb, &keeper.Stream{
		Files: []*os.File{mine}, Framing: keeper.DockerAttach, Ahead: ahead, Left: 4, LeftError: true,
	})
	exchange(t, sb.client(t))
	sb.kill()
}

// framed writes as an attached container does, error output between.
type framed struct{ net.Conn }

func (f *framed) Write(p []byte) (int, error) {
	for i := 0; i < len(p); {
		n := min(len(p)-i, 1000)
		out := []byte{2, 0, 0, 0, 0, 0, 0, 5, 'n', 'o', 'i', 's', 'e', 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}
		binary.BigEndian.PutUint32(out[len(out)-4:], uint32(n))
		if _, err := f.Conn.Write(append(out, p[i:i+n]...)); err != nil {
			return i, err
		}
		i += n
	}
	return len(p), nil
}
