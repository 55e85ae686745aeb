//go:build linux

package hostiletest_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func networkAttacks() []attack {
	connect := func(id string, kinds ...string) attack {
		return attack{id: id, program: "net.py", args: []string{"connect"}, before: listenFor(kinds...), outside: nothingHeard, control: control{works: heardAll}}
	}
	return []attack{
		connect("NW-01", "tcp4", "mptcp", "tfo"),
		connect("NW-02", "udp4"),
		connect("NW-03", "tcp6", "udp6"),
		connect("NW-04", "dns"),
		connect("NW-08", "abstract", "abstract datagram"),
		connect("NW-09", "path"),
		{id: "NW-07", program: "net.py", args: []string{"connect"}, before: wellKnown, control: control{none: "no such service runs here; NW-01 has the control"}},
		{id: "NW-10", program: "net.py", args: []string{"sockets"}, control: control{
			shows: []string{"vsock", "vsock by the 32 bit gate", "inet by the 32 bit gate", "raw", "packet", "netlink 0"},
		}},
		{id: "NW-13-root", only: asRoot, user: "root", program: "net.py", args: []string{"sockets"}, control: control{shows: []string{"raw", "packet"}}},
		{id: "NW-14", program: "net.py", args: []string{"interfaces"}, control: control{shows: []string{"SIOCSIFFLAGS", "SO_MARK"}}},
		{id: "NW-26", program: "net.py", args: []string{"loopback"}, inside: func(s *scene, o *outcome) {
			if s.report(o, "inside").N != 1 {
				s.Error("the sandbox's own loopback does not work, so no attack says anything")
			}
		}, control: control{none: "it is the control of the others"}},
	}
}

// ears are the listeners of one attack and what they heard.
type ears struct {
	mu    sync.Mutex
	heard []string
}

func (e *ears) hear(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, what)
}

func (e *ears) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.heard)
}

// listenFor opens listeners on every address of the host and tells the program
// where they are.
func listenFor(kinds ...string) func(*scene, *box) {
	return func(s *scene, _ *box) {
		e := &ears{}
		s.kept["ears"] = e
		for _, kind := range kinds {
			switch kind {
			case "tcp4", "mptcp", "tfo":
				for _, a := range hostAddresses(s.T, false) {
					s.args = append(s.args, fmt.Sprintf("%s=%s|%d", kind, a, e.stream(s.T, "tcp4", a.String()+":0", kind+" "+a.String()).(*net.TCPAddr).Port))
				}
			case "tcp6":
				for _, a := range hostAddresses(s.T, true) {
					s.args = append(s.args, fmt.Sprintf("tcp6=%s|%d", a, e.stream(s.T, "tcp6", "["+a.String()+"]:0", "tcp6 "+a.String()).(*net.TCPAddr).Port))
				}
			case "udp4", "dns":
				for _, a := range hostAddresses(s.T, false) {
					s.args = append(s.args, fmt.Sprintf("%s=%s|%d", kind, a, e.packets(s.T, "udp4", a.String()+":0", kind+" "+a.String()).(*net.UDPAddr).Port))
				}
			case "udp6":
				for _, a := range hostAddresses(s.T, true) {
					s.args = append(s.args, fmt.Sprintf("udp6=%s|%d", a, e.packets(s.T, "udp6", "["+a.String()+"]:0", "udp6 "+a.String()).(*net.UDPAddr).Port))
				}
			case "abstract":
				e.stream(s.T, "unix", "@hostile-"+s.nonce, "abstract")
				s.args = append(s.args, "abstract=hostile-"+s.nonce)
			case "abstract datagram":
				e.packets(s.T, "unixgram", "@hostile-"+s.nonce+"-dgram", "abstract datagram")
				s.args = append(s.args, "abstract datagram=hostile-"+s.nonce)
			case "path":
				for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
					place := filepath.Dir(plant(s.T, dir).path)
					path := filepath.Join(place, "socket")
					e.stream(s.T, "unix", path, "path "+path)
					if err := os.Chmod(path, 0o777); err != nil {
						s.Fatal(err)
					}
					s.args = append(s.args, "path="+path)
				}
			}
		}
	}
}

// hostAddresses are this host's addresses of one family.
func hostAddresses(t *testing.T, v6 bool) (out []netip.Addr) {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().Is6() == v6 && !p.Addr().IsLinkLocalUnicast() {
			out = append(out, p.Addr())
		}
	}
	return out
}

func (e *ears) stream(t *testing.T, network, addr, name string) net.Addr {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			e.hear(name)
			c.Close()
		}
	}()
	return l.Addr()
}

func (e *ears) packets(t *testing.T, network, addr, name string) net.Addr {
	t.Helper()
	var c net.PacketConn
	var err error
	if network == "unixgram" {
		c, err = net.ListenUnixgram(network, &net.UnixAddr{Net: network, Name: addr})
	} else {
		c, err = net.ListenPacket(network, addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() {
		for buf := make([]byte, 2048); ; {
			_, from, err := c.ReadFrom(buf)
			if err != nil && errors.Is(err, net.ErrClosed) {
				return
			}
			e.hear(name)
			if from != nil && network != "unixgram" {
				_, _ = c.WriteTo([]byte("pong"), from)
			}
		}
	}()
	return c.LocalAddr()
}

// nothingHeard: no listener of the host was reached.
func nothingHeard(s *scene, _ *box, _ *outcome) {
	if heard := s.kept["ears"].(*ears).all(); len(heard) > 0 {
		s.Errorf("open: %v were reached", heard)
	}
}

// heardAll: outside, each of them is.
func heardAll(s *scene, o *outcome) {
	want := map[string]bool{}
	for name, how := range s.tries(o, "outside") {
		want[name] = true
		if how != "ok" {
			s.Errorf("inconclusive: %s is not reached outside either: %s", name, how)
		}
	}
	e := s.kept["ears"].(*ears)
	if !eventually(5*time.Second, func() bool { return len(e.all()) >= len(want) }) {
		s.Errorf("inconclusive: outside only %v were heard of %d", e.all(), len(want))
	}
}

// wellKnown are the places that code looks for a way out at.
func wellKnown(s *scene, _ *box) {
	addrs := []string{"127.0.0.1", "169.254.169.254", "100.100.100.200", "10.0.0.1", "172.17.0.1", "192.168.0.1"}
	for _, a := range hostAddresses(s.T, false) {
		addrs = append(addrs, a.String())
	}
	for _, a := range addrs {
		for _, port := range []int{22, 53, 80, 443, 2375, 2376, 5000, 6443, 8080, 10250} {
			s.args = append(s.args, fmt.Sprintf("open=%s|%d", a, port))
		}
	}
	s.args = append(s.args, "resolve=metadata.google.internal", "resolve=x.test")
	for _, path := range []string{
		"/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket", "/run/systemd/notify",
		"/run/systemd/private", "/tmp/.X11-unix/X0", "/run/podman/podman.sock", "/run/crio/crio.sock", "/run/snapd.socket", os.Getenv("SSH_AUTH_SOCK"),
	} {
		if path != "" {
			s.args = append(s.args, "path="+path)
		}
	}
}

// ingress: what listens in a sandbox is reached neither from the host nor from
// another sandbox; NW-18, NW-19, NW-20 and XR-04.
func ingress(t *testing.T) {
	b := newBox(t, backend.Spec{})
	s := &scene{T: t, a: &attack{program: "net.py"}, nonce: nonce()}
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	name := "tenant-" + s.nonce
	s.args = []string{"listen", strconv.Itoa(port), name}
	s.upload(b)
	s.a.during = func(s *scene, _ *box) {
		for _, a := range append(hostAddresses(t, false), hostAddresses(t, true)...) {
			c, err := net.DialTimeout("tcp", net.JoinHostPort(a.String(), strconv.Itoa(port)), time.Second)
			if err == nil {
				c.Close()
				t.Errorf("open: the host reaches it at %s", a)
			}
		}
		if c, err := net.Dial("unix", "@"+name); err == nil {
			c.Close()
			t.Error("open: the host reaches its abstract socket")
		}
		other := newBox(t, backend.Spec{})
		n := &scene{T: t, a: &attack{program: "net.py"}, nonce: nonce(), args: []string{"connect", "abstract=" + name}}
		for _, a := range hostAddresses(t, false) {
			n.args = append(n.args, fmt.Sprintf("tcp4=%s|%d", a, port))
		}
		n.upload(other)
		n.blocked(n.start(other))
		// In its own sandbox it is there.
		n.args = []string{"connect", "abstract=" + name, fmt.Sprintf("tcp4=127.0.0.1|%d", port), fmt.Sprintf("tcp6=::1|%d", port)}
		n.nonce = nonce()
		n.upload(b)
		for try, how := range n.tries(n.start(b), "beside it") {
			if how == "EADDRNOTAVAIL" && strings.HasPrefix(try, "tcp6") {
				continue // a sandbox without IPv6
			}
			if how != "ok" {
				t.Errorf("inconclusive: %s is not reached in its own sandbox either: %s", try, how)
			}
		}
	}
	if r := s.report(s.start(b), "inside"); r.N != 3 {
		t.Errorf("inconclusive: it listens at %d places", r.N)
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(port))
}
