package conformance

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
)

func fullNetworkCases() []Case {
	full := needs(network(backend.NetworkFull), enforced(backend.ControlNetworkOff), python())
	return []Case{
		{ID: "NW-07", Area: Network, Title: "with a whole network a program reaches what a rule names, and nothing else of the host", Needs: full, Run: fullReaches},
		{ID: "NW-08", Area: Network, Title: "with a whole network datagrams reach what a rule names, and nothing else of the host", Needs: full, Run: fullDatagrams},
		{ID: "NW-09", Area: Network, Title: "with a whole network private, link-local and metadata addresses are refused at once", Needs: full, Run: fullSpecial},
		{ID: "NW-10", Area: Network, Title: "with a whole network nobody gets the device or makes packets of his own", Needs: full, Run: fullDevice},
		{ID: "NW-11", Area: Network, Title: "a kept sandbox's whole network is held, and its rules can be replaced", Needs: append(full, feature(backend.FeatureFind)), Run: fullKept},
	}
}

// own is an address of the host's that is not its loopback's.
func (t *T) own() netip.Addr {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Inconclusivef("%v", err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP.To4()); ok && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
				return ip
			}
		}
	}
	t.Inconclusivef("the host has no address but its loopback's")
	return netip.Addr{}
}

// online makes a sandbox with a whole network, of which rules are added to.
func (t *T) online(ctx context.Context, allow ...backend.Rule) backend.Sandbox {
	sb := t.Create(ctx, backend.Spec{Network: backend.Network{Mode: backend.NetworkFull, Allow: allow}})
	if r := sb.Receipt(); r.Network != backend.NetworkFull {
		t.Errorf("%q was granted", r.Network)
	}
	return sb
}

func fullReaches(ctx context.Context, t *T) {
	own := t.own()
	l := t.greeter(ctx, "tcp4", netip.AddrPortFrom(own, 0).String())
	other := t.greeter(ctx, "tcp4", netip.AddrPortFrom(own, 0).String())
	at, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		t.Fatalf("%v", err)
	}
	_, otherPort, _ := net.SplitHostPort(other.Addr().String())
	sb := t.online(ctx)
	t.unreached(ctx, sb, "4", own.String(), fmt.Sprint(at.Port()))
	// A range that contains it is no consent.
	sb = t.online(ctx, backend.Rule{CIDR: "0.0.0.0/0"})
	t.unreached(ctx, sb, "4", own.String(), fmt.Sprint(at.Port()))
	sb = t.online(ctx, backend.Rule{CIDR: own.String(), Ports: []uint16{at.Port()}})
	got := t.good(t.exec(ctx, sb, "python3", "-c", reach, "4", own.String(), fmt.Sprint(at.Port())))
	if !strings.Contains(got, "hello from the host") {
		t.Errorf("what a rule names: %q", got)
	}
	t.unreached(ctx, sb, "4", own.String(), otherPort)
	t.unreached(ctx, sb, "4", "127.0.0.1", fmt.Sprint(at.Port()))
	t.unreached(ctx, sb, "6", "::ffff:127.0.0.1", otherPort)
	t.unreached(ctx, sb, "6", "::ffff:"+own.String(), otherPort)
	t.unreached(ctx, sb, "6", "2001:db8::1", otherPort)
}

// sendTo sends a datagram and says what comes back.
const sendTo = `
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(float(sys.argv[3]))
try:
    for _ in range(5):
        s.sendto(b"ping", (sys.argv[1], int(sys.argv[2])))
        try:
            print("reached", s.recvfrom(100)[0])
            break
        except TimeoutError:
            pass
    else:
        print("no answer")
except OSError as e:
    print("no", e)
`

func fullDatagrams(ctx context.Context, t *T) {
	own := t.own()
	var lc net.ListenConfig
	c, err := lc.ListenPacket(ctx, "udp4", netip.AddrPortFrom(own, 0).String())
	if err != nil {
		t.Inconclusivef("the host cannot listen: %v", err)
	}
	heard := make(chan struct{}, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 100)
		for {
			_, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			select {
			case heard <- struct{}{}:
			default:
			}
			_, _ = c.WriteTo([]byte("pong"), from)
		}
	}()
	t.Cleanup(func(context.Context) { _ = c.Close(); <-done })
	_, port, _ := net.SplitHostPort(c.LocalAddr().String())
	at, _ := netip.ParseAddrPort(c.LocalAddr().String())
	sb := t.online(ctx)
	if got := t.good(t.exec(ctx, sb, "python3", "-c", sendTo, own.String(), port, "0.3")); strings.HasPrefix(got, "reached") {
		t.Errorf("without a rule: %q", got)
	}
	if len(heard) > 0 {
		t.Errorf("the host heard a datagram")
	}
	sb = t.online(ctx, backend.Rule{CIDR: own.String(), Ports: []uint16{at.Port()}})
	if got := t.good(t.exec(ctx, sb, "python3", "-c", sendTo, own.String(), port, "3")); !strings.HasPrefix(got, "reached b'pong'") {
		t.Errorf("with a rule: %q", got)
	}
	if len(heard) == 0 {
		t.Errorf("the host heard nothing of what a rule names")
	}
}

func fullSpecial(ctx context.Context, t *T) {
	got := t.good(t.python(ctx, t.online(ctx), `
import socket, time
for host in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "10.0.0.1", "172.17.0.1", "192.168.1.1", "100.64.0.1", "192.0.0.1", "240.0.0.1"):
    began = time.time()
    try:
        s = socket.create_connection((host, 80), 5)
        print("reached", host)
    except TimeoutError:
        print("waited for", host)
    except OSError:
        pass
for host in ("metadata.google.internal", "metadata"):
    try:
        print("resolved", host, socket.getaddrinfo(host, 80))
    except OSError:
        pass
print("tried")
`))
	if got != "tried\n" {
		t.Errorf("%s", got)
	}
}

// fullDevice looks from inside as the strongest user there is.
func fullDevice(ctx context.Context, t *T) {
	sb := t.online(ctx)
	const program = `
import fcntl, os, socket, struct
for path in ("/dev/net/tun", "/dev/tun"):
    try:
        fd = os.open(path, os.O_RDWR)
        fcntl.ioctl(fd, 0x400454ca, struct.pack("16sH22x", b"net0", 0x1001))
        print("has the device")
    except OSError:
        pass
for family, kind, proto in ((socket.AF_INET, socket.SOCK_RAW, 255), (socket.AF_PACKET, socket.SOCK_RAW, 0x300), (socket.AF_PACKET, socket.SOCK_DGRAM, 0x300)):
    try:
        socket.socket(family, kind, proto)
        print("has raw packets", family, kind)
    except OSError:
        pass
try:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fcntl.ioctl(s, 0x8914, struct.pack("16sH22x", b"net0", 0))
    print("shut the device")
except OSError:
    pass
for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
    try:
        for fd in os.listdir("/proc/%s/fd" % pid):
            if "tun" in os.readlink("/proc/%s/fd/%s" % (pid, fd)):
                print("sees the device in", pid)
    except OSError:
        pass
print("tried")
`
	users := []string{""}
	if t.Caps().Has(backend.FeatureUsers) {
		users = append(users, "root")
	}
	for _, user := range users {
		got := t.command(ctx, sb, backend.Command{Args: []string{"python3", "-c", program}, User: user})
		if out := t.good(got); out != "tried\n" {
			t.Errorf("as %q: %s", user, out)
		}
	}
}

func fullKept(ctx context.Context, t *T) {
	own := t.own()
	l := t.greeter(ctx, "tcp4", netip.AddrPortFrom(own, 0).String())
	_, port, _ := net.SplitHostPort(l.Addr().String())
	sb := t.Create(ctx, backend.Spec{
		Keep: true, Network: backend.Network{Mode: backend.NetworkFull, Allow: []backend.Rule{{CIDR: own.String()}}},
	})
	reached := func() string { return t.good(t.exec(ctx, sb, "python3", "-c", reach, "4", own.String(), port)) }
	if got := reached(); !strings.Contains(got, "hello from the host") {
		t.Errorf("what a rule names: %q", got)
	}
	u, ok := backend.As[backend.NetworkUpdater](sb)
	if !ok {
		return
	}
	if err := u.SetNetwork(ctx, backend.Network{Mode: backend.NetworkFull}); err != nil {
		t.Fatalf("%v", err)
	}
	if got := reached(); !strings.HasPrefix(got, "no") {
		t.Errorf("after the rule was taken away: %q", got)
	}
}
