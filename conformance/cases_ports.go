package conformance

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func dialNobody(ctx context.Context, t *T) {
	_, err := find[backend.Dialer](t, "dial", t.Create(ctx, backend.Spec{})).DialContext(ctx, "tcp", "127.0.0.1:7777")
	t.kind("dial", err, backend.ErrUnavailable)
}

// upper answers each connection in capitals until the other side ends.
const upper = `
import socket, threading
s = socket.create_server(("127.0.0.1", 7777), backlog=50)
print("ready", flush=True)
def serve(c):
    while data := c.recv(65536): c.sendall(data.upper())
    c.sendall(b".")
    c.close()
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
`

func (t *T) listening(ctx context.Context) (backend.Sandbox, backend.Dialer) {
	sb := t.Create(ctx, backend.Spec{})
	_, out, errs := t.start(ctx, sb, backend.Command{Args: []string{"python3", "-c", upper}, Timeout: backend.UntilSandboxEnds})
	t.until(ctx, "it listens", func() bool { return out.String() == "ready\n" || errs.String() != "" })
	return sb, find[backend.Dialer](t, "dial", sb)
}

// converse sends text, ends its side, and gives what came back.
func converse(conn net.Conn, text string) (string, error) {
	defer conn.Close() //nolint:errcheck // all is said
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return "", err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(conn, text)
		if c, ok := conn.(interface{ CloseWrite() error }); ok && err == nil {
			err = c.CloseWrite()
		}
		sent <- err
	}()
	got, err := io.ReadAll(conn)
	if serr := <-sent; err == nil {
		err = serr
	}
	return string(got), err
}

func dialEcho(ctx context.Context, t *T) {
	_, d := t.listening(ctx)
	for _, addr := range []string{"7777", "127.0.0.1:7777", "localhost:7777"} {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			t.Fatalf("%s: %v", addr, err)
		}
		want := strings.Repeat("ABC", 100_000)
		if got, err := converse(conn, strings.ToLower(want)); err != nil || got != want+"." {
			t.Errorf("%s: %d bytes, %v", addr, len(got), err)
		}
	}
}

func dialInvalid(ctx context.Context, t *T) {
	_, d := t.listening(ctx)
	for _, addr := range []string{"10.0.0.1:80", "example.com:80", "127.0.0.1", "0", "70000", "127.0.0.1:x", "", "[::ffff:10.0.0.1]:80"} {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		t.kind(addr, err, backend.ErrInvalid)
	}
	if conn, err := d.DialContext(ctx, "udp", "127.0.0.1:7777"); err == nil {
		_ = conn.Close()
		t.Errorf("udp is dialled")
	}
}

func dialMany(ctx context.Context, t *T) {
	_, d := t.listening(ctx)
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			conn, err := d.DialContext(ctx, "tcp", "7777")
			if err != nil {
				t.Errorf("%v", err)
				return
			}
			if got, err := converse(conn, fmt.Sprintf("number %d", i)); err != nil || got != fmt.Sprintf("NUMBER %d.", i) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	wg.Wait()
}

func dialDestroyed(ctx context.Context, t *T) {
	sb, d := t.listening(ctx)
	conn, err := d.DialContext(ctx, "tcp", "7777")
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer conn.Close() //nolint:errcheck // it is over
	if err := sb.Destroy(ctx); err != nil {
		t.Errorf("%v", err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Logf("no deadline: %v", err)
	}
	_, err = conn.Read(make([]byte, 1))
	if ne, ok := err.(net.Error); err == nil || ok && ne.Timeout() { //nolint:errorlint // the very error
		t.Errorf("it goes on: %v", err)
	}
}

// get asks a URL over rt.
func get(ctx context.Context, rt http.RoundTripper, url string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	res, err := rt.RoundTrip(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return res.StatusCode, body, err
}
