//go:build linux

package egress

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

// device is one whose other end is the kernel of a test.
func device(t *testing.T) (dev, kernel *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	dev, kernel = os.NewFile(uintptr(fds[0]), "device"), os.NewFile(uintptr(fds[1]), "kernel")
	t.Cleanup(func() { _ = kernel.Close() })
	return dev, kernel
}

// carried is a Service with a device, and its host's side.
type carried struct {
	kernel *os.File
	url    string
	client *http.Client
	svc    *Service
}

func newCarried(t *testing.T) *carried {
	t.Helper()
	c := &carried{}
	var dev *os.File
	dev, c.kernel = device(t)
	var err error
	if c.svc, err = New(Options{Device: dev, Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(c.svc.Handler())
	srv.EnableHTTP2 = true
	srv.StartTLS()
	c.url, c.client = srv.URL, srv.Client()
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		for range 2 {
			if err := c.svc.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return c
}

func (c *carried) post(ctx context.Context, t *testing.T, path, session string, body io.Reader) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(wire.HeaderNetSession, session)
	res, err := c.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

func (c *carried) open(t *testing.T, session string) {
	t.Helper()
	res := c.post(t.Context(), t, wire.NetOpenPath, "", strings.NewReader(`{"session":"`+session+`"}`)) //nolint:bodyclose // post closes it
	if res.StatusCode != http.StatusNoContent {
		t.Fatal(res.Status)
	}
}

func frame(p string) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(p))), p...)
}

// TestPackets_bothWays: whole, in order, and to the session that decides alone;
// another takes over from it.
func TestPackets_bothWays(t *testing.T) {
	t.Parallel()
	c := newCarried(t)
	c.open(t, "one")
	other := c.post(t.Context(), t, wire.NetPacketsPath, "other", http.NoBody) //nolint:bodyclose // post closes it
	if other.StatusCode != http.StatusConflict {
		t.Errorf("a stranger: %s", other.Status)
	}
	for _, session := range []string{"one", "two"} {
		c.open(t, session)
		pr, pw := io.Pipe()
		res := c.post(t.Context(), t, wire.NetPacketsPath, session, pr) //nolint:bodyclose // post closes it
		if res.StatusCode != http.StatusOK {
			t.Fatal(res.Status)
		}
		for _, p := range []string{"a packet", strings.Repeat("x", 60000), "b"} {
			if _, err := c.kernel.Write([]byte(p)); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(p)+2)
			if _, err := io.ReadFull(res.Body, got); err != nil || !bytes.Equal(got, frame(p)) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			if _, err := pw.Write(frame(p)); err != nil {
				t.Fatal(err)
			}
			_ = c.kernel.SetReadDeadline(time.Now().Add(10 * time.Second))
			back := make([]byte, 1<<16)
			if n, err := c.kernel.Read(back); err != nil || string(back[:n]) != p {
				t.Fatalf("%d bytes, %v", n, err)
			}
		}
		if session == "one" {
			c.open(t, "two")                     // cuts it
			_, _ = io.Copy(io.Discard, res.Body) // it ends
		}
		_ = pw.Close()
	}
}

// TestPackets_noProxy: nothing listens, and commands are told of none.
func TestPackets_noProxy(t *testing.T) {
	t.Parallel()
	c := newCarried(t)
	if env := c.svc.Env(); len(env) != 0 {
		t.Errorf("%v", env)
	}
	if c.svc.proxy != nil || c.svc.dns != nil {
		t.Error("something listens")
	}
}
