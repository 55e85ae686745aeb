package netstack_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/glovebox-dev/glovebox/internal/netstack"
	"github.com/glovebox-dev/glovebox/internal/netstack/netstacktest"
)

const mtu = 65520

var (
	inside  = netip.MustParseAddr("192.0.0.2")
	gateway = netip.MustParseAddr("192.0.0.1")
	remote  = netip.MustParseAddrPort("198.51.100.9:7777")
)

// world is a guest and its stack.
type world struct {
	*netstacktest.Guest
	s        *netstack.Stack
	attempts atomic.Int64
	flows    atomic.Int64
}

func newWorld(t testing.TB, change func(*netstack.Options)) *world {
	t.Helper()
	w := &world{}
	o := netstack.Options{Address: inside, Gateway: gateway, MTU: mtu, MaxTCP: 64, MaxUDP: 16}
	o.TCP = func(ctx context.Context, a *netstack.Attempt) {
		c, err := a.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		defer context.AfterFunc(ctx, func() { _ = c.Close() })()
		_, _ = io.Copy(c, c)
	}
	o.UDP = func(_ context.Context, d *netstack.Datagrams) {
		buf := make([]byte, 1<<16)
		for {
			n, err := d.Read(buf)
			if err != nil {
				return
			}
			d.Used()
			_, _ = d.Write(buf[:n])
		}
	}
	if change != nil {
		change(&o)
	}
	tcp, udp := o.TCP, o.UDP
	o.TCP = func(ctx context.Context, a *netstack.Attempt) { w.attempts.Add(1); tcp(ctx, a) }
	o.UDP = func(ctx context.Context, d *netstack.Datagrams) { w.flows.Add(1); udp(ctx, d) }
	var err error
	if w.s, err = netstack.New(o); err != nil {
		t.Fatal(err)
	}
	toHost, fromGuest := pipe(t)
	toGuest, fromHost := pipe(t)
	if w.Guest, err = netstacktest.New(inside, mtu, fromGuest); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() { _ = w.s.Receive(toHost) })
	wg.Go(func() { _ = w.s.Send(ctx, fromHost) })
	wg.Go(func() { w.Run(ctx, toGuest) })
	t.Cleanup(func() {
		for range 2 {
			if err := w.s.Close(); err != nil {
				t.Error(err)
			}
		}
		cancel()
		for _, c := range []io.Closer{fromGuest, fromHost, toHost, toGuest} {
			_ = c.Close()
		}
		wg.Wait()
		w.Guest.Close()
	})
	return w
}

func pipe(t testing.TB) (*os.File, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

func dial(t *testing.T, w *world, to netip.AddrPort) (net.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := w.Dial(ctx, to)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, nil
}

// echoed sends data and checks that it comes back, and then the end.
func echoed(t *testing.T, c net.Conn, data []byte) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		_, _ = c.Write(data)
		if h, ok := c.(interface{ CloseWrite() error }); ok {
			_ = h.CloseWrite()
		}
	})
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
	}
}

// TestStack_carriesConnections: to any address, in full, to the end.
func TestStack_carriesConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for _, to := range []netip.AddrPort{remote, netip.MustParseAddrPort("8.8.8.8:1"), netip.AddrPortFrom(gateway, 80)} {
		c, err := dial(t, w, to)
		if err != nil {
			t.Fatal(to, err)
		}
		echoed(t, c, bytes.Repeat([]byte("0123456789abcdef"), 1<<16))
	}
}

// TestStack_carriesDatagrams of all sizes, apart.
func TestStack_carriesDatagrams(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	c, err := w.DialUDP(remote)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	for _, size := range []int{1, 1400, 60000} {
		if _, err := c.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 1<<16)
		if n, err := c.Read(buf); err != nil || n != size {
			t.Errorf("%d of %d, %v", n, size, err)
		}
	}
	if n := w.flows.Load(); n != 1 {
		t.Errorf("%d flows", n)
	}
}

// TestStack_refusesAtOnce: a program learns that there is nobody.
func TestStack_refusesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *netstack.Options) { o.TCP = func(context.Context, *netstack.Attempt) {} })
	if _, err := dial(t, w, remote); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
}

// TestStack_boundsConnections: one more than there may be is refused, and when
// one ends there is room.
func TestStack_boundsConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *netstack.Options) { o.MaxTCP = 2 })
	var first net.Conn
	for range 2 {
		c, err := dial(t, w, remote)
		if err != nil {
			t.Fatal(err)
		}
		first = c
	}
	if _, err := dial(t, w, remote); err == nil {
		t.Fatal("a third one")
	}
	echoed(t, first, []byte("bye"))
	deadline := time.Now().Add(20 * time.Second)
	for {
		c, err := dial(t, w, remote)
		if err == nil {
			echoed(t, c, []byte("again"))
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("there is no room again")
		}
		runtime.Gosched()
	}
}

// packet makes one as a program with raw sockets would.
func packet(from, to netip.Addr, proto tcpip.TransportProtocolNumber, payload []byte) []byte {
	p := make([]byte, header.IPv4MinimumSize+len(payload))
	ip := header.IPv4(p)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(p)), TTL: 64, Protocol: uint8(proto),
		SrcAddr: tcpip.AddrFrom4(from.As4()), DstAddr: tcpip.AddrFrom4(to.As4()),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	copy(p[header.IPv4MinimumSize:], payload)
	return p
}

func syn(port uint16) []byte {
	b := make([]byte, header.TCPMinimumSize)
	header.TCP(b).Encode(&header.TCPFields{SrcPort: port, DstPort: 80, SeqNum: 1, DataOffset: 20, Flags: header.TCPFlagSyn, WindowSize: 1000})
	return b
}

func udp(port uint16, payload []byte) []byte {
	b := make([]byte, header.UDPMinimumSize+len(payload))
	header.UDP(b).Encode(&header.UDPFields{SrcPort: port, DstPort: 80, Length: uint16(len(b))})
	copy(b[8:], payload)
	return b
}

// TestStack_dropsWhatIsNotTheSandboxs: spoofed sources, other protocols and
// versions, and what is no packet. The control is the last one.
func TestStack_dropsWhatIsNotTheSandboxs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	other := netip.MustParseAddr("203.0.113.7")
	echo := []byte{8, 0, 0, 0, 0, 1, 0, 1}
	binary.BigEndian.PutUint16(echo[2:], ^checksum.Checksum(echo, 0))
	bad := [][]byte{
		{},
		{0x45},
		make([]byte, 20), bytes.Repeat([]byte{0xff}, 40), bytes.Repeat([]byte{0x60}, 60),
		packet(other, remote.Addr(), header.TCPProtocolNumber, syn(1)),
		packet(gateway, remote.Addr(), header.TCPProtocolNumber, syn(2)),
		packet(other, remote.Addr(), header.UDPProtocolNumber, udp(3, []byte("x"))),
		packet(inside, inside, header.UDPProtocolNumber, udp(4, []byte("x"))),
		packet(inside, netip.MustParseAddr("224.0.0.251"), header.UDPProtocolNumber, udp(5, []byte("x"))),
		packet(inside, netip.MustParseAddr("255.255.255.255"), header.UDPProtocolNumber, udp(6, []byte("x"))),
		packet(inside, netip.IPv4Unspecified(), header.UDPProtocolNumber, udp(7, []byte("x"))),
		packet(inside, remote.Addr(), header.ICMPv4ProtocolNumber, echo),
		packet(inside, remote.Addr(), 132, echo),
		packet(inside, remote.Addr(), header.TCPProtocolNumber, syn(8)[:10]),
	}
	for _, p := range bad {
		if err := w.Inject(p); err != nil {
			t.Fatal(err)
		}
	}
	c, err := dial(t, w, remote)
	if err != nil {
		t.Fatal(err)
	}
	echoed(t, c, []byte("control"))
	if a, f := w.attempts.Load(), w.flows.Load(); a != 1 || f != 0 {
		t.Errorf("%d connections, %d flows", a, f)
	}
}

// TestStack_floodsAreBounded: of connections that are never made, and of ports.
func TestStack_floodsAreBounded(t *testing.T) {
	before := runtime.NumGoroutine()
	w := newWorld(t, func(o *netstack.Options) { o.MaxTCP = 32 })
	const many = 20_000
	for i := range many {
		if err := w.Inject(packet(inside, remote.Addr(), header.TCPProtocolNumber, syn(uint16(i)))); err != nil {
			t.Fatal(err)
		}
		if err := w.Inject(packet(inside, remote.Addr(), header.UDPProtocolNumber, udp(uint16(i), []byte("x")))); err != nil {
			t.Fatal(err)
		}
		if i%1000 == 0 {
			if now := runtime.NumGoroutine(); now > before+400 {
				t.Fatalf("%d goroutines more", now-before)
			}
		}
	}
	c, err := w.DialUDP(remote)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 10)
	for { // datagrams may be lost
		_, _ = c.Write([]byte("y"))
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := c.Read(buf); err == nil {
			break
		} else if !errors.Is(err, os.ErrDeadlineExceeded) && !strings.Contains(err.Error(), "timeout") {
			t.Fatal(err)
		}
	}
}

// TestStack_closesInTheMiddle: of connections being made, open, and half closed.
func TestStack_closesInTheMiddle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	if _, err := dial(t, w, remote); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		if err := w.Inject(packet(inside, remote.Addr(), header.TCPProtocolNumber, syn(uint16(2000+i)))); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	if err := w.s.Close(); err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
}

// FuzzStack: frames of anything end in nothing but what they are.
func FuzzStack(f *testing.F) {
	f.Add([]byte{0, 1, 2})
	frame := func(p []byte) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(p))), p...) }
	f.Add(frame(packet(inside, remote.Addr(), header.TCPProtocolNumber, syn(9))))
	f.Add(frame(packet(inside, remote.Addr(), header.UDPProtocolNumber, udp(9, []byte("xyz")))))
	f.Add(frame(packet(inside, gateway, header.ICMPv4ProtocolNumber, []byte{8, 0, 0xf7, 0xfe, 0, 0, 0, 1})))
	s, err := netstack.New(netstack.Options{
		Address: inside, Gateway: gateway, MTU: mtu, MaxTCP: 8, MaxUDP: 8,
		TCP: func(context.Context, *netstack.Attempt) {}, UDP: func(context.Context, *netstack.Datagrams) {},
	})
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Send(ctx, io.Discard) }()
	f.Cleanup(func() { _ = s.Close(); cancel(); <-done })
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := s.Receive(bytes.NewReader(data)); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
		if err := s.Receive(bytes.NewReader(frame(packet(inside, remote.Addr(), header.TCPProtocolNumber, data[:min(len(data), 1000)])))); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}
