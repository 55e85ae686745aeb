//go:build linux

package egress

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

func newService(t testing.TB, dir string) *Service {
	t.Helper()
	s, err := New(Options{ProxyAddr: "127.0.0.1:0", DNSAddr: "127.0.0.1:0", Dir: dir, Bundles: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

// TestNames_areBounded: the least recently asked for make room.
func TestNames_areBounded(t *testing.T) {
	t.Parallel()
	s := newService(t, t.TempDir())
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{127, 65, byte(i >> 8), byte(i)}) }
	const port = 18080
	for i := range maxNames + 50 {
		if err := s.names.listen(fmt.Sprint("n", i), addr(i), []uint16{port}); err != nil {
			t.Fatal(err)
		}
		if err := s.names.listen("kept", addr(60_000), []uint16{port, port + 1}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.names.byName); n != maxNames {
		t.Errorf("%d names", n)
	}
	if n := s.names.count; n != maxNames+1 {
		t.Errorf("%d listeners", n)
	}
	dial := func(a netip.Addr) error {
		c, err := net.Dial("tcp", netip.AddrPortFrom(a, port).String())
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	if err := dial(addr(0)); err == nil {
		t.Error("the oldest is still listened on")
	}
	if err := dial(addr(60_000)); err != nil {
		t.Error(err)
	}
	// A name's new address takes the place of its old one.
	if err := s.names.listen("kept", addr(60_001), []uint16{port}); err != nil {
		t.Fatal(err)
	}
	if err := dial(addr(60_000)); err == nil {
		t.Error("the old address is still listened on")
	}
}

// TestConns_areBounded: connections that say nothing take no more than their
// share, and give it back.
func TestConns_areBounded(t *testing.T) {
	t.Parallel()
	s := newService(t, t.TempDir())
	var open []net.Conn
	for range maxConns + 1 {
		c, err := net.Dial("tcp", s.ProxyAddr())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	last := open[maxConns]
	if _, err := last.Read(make([]byte, 1)); err == nil {
		t.Error("one too many was kept")
	}
	for _, c := range open {
		_ = c.Close()
	}
}

func TestTrust_writesWhatProgramsRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	known := filepath.Join(dir, "known.pem")
	if err := os.WriteFile(known, []byte("KNOWN"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newService(t, dir)
	s.opts.Bundles = []string{filepath.Join(dir, "none"), known}
	if env := s.Env(); env["SSL_CERT_FILE"] != "" || env["HTTPS_PROXY"] != "http://"+s.ProxyAddr() || env["https_proxy"] != env["HTTPS_PROXY"] {
		t.Errorf("%v", env)
	}
	if err := s.trust("OWN"); err != nil {
		t.Fatal(err)
	}
	file := s.Env()["NODE_EXTRA_CA_CERTS"]
	data, err := os.ReadFile(file)
	if err != nil || string(data) != "OWN\nKNOWN" {
		t.Errorf("%q %v", data, err)
	}
	for path, want := range map[string]os.FileMode{file: 0o644, filepath.Dir(file): 0o755} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v %v", path, st.Mode(), err)
		}
	}
	if err := s.trust(""); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(file)); err == nil || s.Env()["SSL_CERT_FILE"] != "" {
		t.Errorf("it is still there: %v", err)
	}
}

func TestOpen_refusesWhatIsNone(t *testing.T) {
	t.Parallel()
	s := newService(t, t.TempDir())
	for body, want := range map[string]int{"{}": 204, "": 400, `{"authority":1}`: 400, `{"authority":"` + strings.Repeat("a", maxOpen) + `"}`: 400} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x/glovebox/net/open", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		w := &answer{h: http.Header{}}
		s.Handler().ServeHTTP(w, req)
		if w.status != want {
			t.Errorf("%.20q: %d", body, w.status)
		}
	}
}

type answer struct {
	h      http.Header
	status int
}

func (a *answer) Header() http.Header         { return a.h }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(p []byte) (int, error) { return io.Discard.Write(p) }

// FuzzDNS: whatever is asked, an answer is a message with the question's id and
// never an address without a host that allows it.
func FuzzDNS(f *testing.F) {
	for _, name := range []string{"a.test.", "localhost.", "."} {
		m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{{
			Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET,
		}}}
		b, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	s := newService(f, f.TempDir())
	s.cancel() // no host will answer
	f.Fuzz(func(t *testing.T, q []byte) {
		a := s.dns.answer(q)
		if a == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(a); err != nil || !m.Response || a[0] != q[0] || a[1] != q[1] {
			t.Fatalf("%v: %v %+v", q, err, m)
		}
		for _, r := range m.Answers {
			if body, ok := r.Body.(*dnsmessage.AResource); !ok || body.A != [4]byte{127, 0, 0, 1} {
				t.Fatalf("%v: %+v", q, r)
			}
		}
	})
}
