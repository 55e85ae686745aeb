package conformance

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func networkCases() []Case {
	off := needs(enforced(backend.ControlNetworkOff), python())
	return []Case{
		{ID: "NW-01", Area: Network, Title: "without a network the host's loopback is out of reach", Needs: off, Run: hostLoopback},
		{ID: "NW-02", Area: Network, Title: "without a network no address is in reach, by TCP or UDP, metadata included", Needs: off, Run: noAddress},
		{ID: "NW-03", Area: Network, Title: "without a network the host's abstract sockets are out of reach", Needs: off, Run: hostAbstract},
		{ID: "NW-04", Area: Network, Title: "without a network no name is resolved", Needs: off, Run: noNames},
		{ID: "NW-05", Area: Network, Title: "a sandbox's own loopback works", Needs: append(off, feature(backend.FeatureDial)), Run: ownLoopback},
		{ID: "NW-06", Area: Network, Title: "no network is the default", Needs: off, Run: noneIsDefault},
	}
}

// offline makes a sandbox that asked for no network.
func (t *T) offline(ctx context.Context) backend.Sandbox {
	return t.Create(ctx, backend.Spec{Network: backend.Network{Mode: backend.NetworkNone}})
}

// greeter listens on the host and greets; its control is that the host itself
// is greeted.
func (t *T) greeter(ctx context.Context, network, addr string) net.Listener {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, network, addr)
	if err != nil {
		t.Inconclusivef("the host cannot listen: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello from the host")
			_ = c.Close()
		}
	}()
	t.Cleanup(func(context.Context) {
		_ = l.Close()
		<-done
	})
	d := net.Dialer{Timeout: 5 * time.Second}
	c, err := d.DialContext(ctx, network, l.Addr().String())
	if err != nil {
		t.Inconclusivef("the host does not reach it itself: %v", err)
	}
	defer c.Close() //nolint:errcheck // was only read
	if got, err := io.ReadAll(io.LimitReader(c, 100)); err != nil || string(got) != "hello from the host" {
		t.Inconclusivef("the host is not greeted itself: %q, %v", got, err)
	}
	return l
}

// reach tries to connect and says what came of it.
const reach = `
import socket, sys
family = {"4": socket.AF_INET, "6": socket.AF_INET6, "u": socket.AF_UNIX}[sys.argv[1]]
try:
    s = socket.socket(family)
    s.settimeout(4)
    s.connect("\0" + sys.argv[2] if sys.argv[1] == "u" else (sys.argv[2], int(sys.argv[3])))
    print("reached", s.recv(100))
except OSError as e:
    print("no", e)
`

func (t *T) unreached(ctx context.Context, sb backend.Sandbox, args ...string) {
	got := t.good(t.exec(ctx, sb, append([]string{"python3", "-c", reach}, args...)...))
	if !strings.HasPrefix(got, "no") {
		t.Errorf("%v: %q", args, got)
	}
}

func hostLoopback(ctx context.Context, t *T) {
	l := t.greeter(ctx, "tcp", "127.0.0.1:0")
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatalf("%v", err)
	}
	sb := t.offline(ctx)
	for _, host := range []string{"127.0.0.1", "127.0.0.2", "0.0.0.0"} {
		t.unreached(ctx, sb, "4", host, port)
	}
	t.unreached(ctx, sb, "6", "::ffff:127.0.0.1", port)
}

func noAddress(ctx context.Context, t *T) {
	got := t.good(t.python(ctx, t.offline(ctx), `
import socket
for host in ("192.0.2.1", "10.0.0.1", "169.254.169.254", "172.17.0.1", "8.8.8.8", "2001:db8::1"):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            s = socket.socket(family, kind)
            s.settimeout(2)
            s.connect((host, 80))
            s.send(b"x")
            print("reached", host, kind)
        except OSError:
            pass
print("tried")
`))
	if got != "tried\n" {
		t.Errorf("%s", got)
	}
}

func hostAbstract(ctx context.Context, t *T) {
	name := fmt.Sprintf("conformance-%d", time.Now().UnixNano())
	t.greeter(ctx, "unix", "@"+name)
	t.unreached(ctx, t.offline(ctx), "u", name)
}

func noNames(ctx context.Context, t *T) {
	got := t.command(ctx, t.offline(ctx), backend.Command{Timeout: 60 * time.Second, Args: []string{"python3", "-c", `
import socket
for name in ("example.com", "metadata.google.internal"):
    try:
        print("resolved", name, socket.getaddrinfo(name, 80))
    except OSError:
        pass
print("tried")
`}})
	if t.good(got) != "tried\n" {
		t.Errorf("%s", got.out)
	}
}

func ownLoopback(ctx context.Context, t *T) {
	got := t.good(t.python(ctx, t.offline(ctx), `
import socket
s = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(s.getsockname())
a, _ = s.accept()
a.sendall(b"hello")
print(c.recv(10).decode())
`))
	if got != "hello\n" {
		t.Errorf("%q", got)
	}
}

func noneIsDefault(ctx context.Context, t *T) {
	if t.run.target.Spec.Network.Mode != "" {
		t.Inconclusivef("the target sets a network mode for every sandbox")
	}
	sb := t.Create(ctx, backend.Spec{})
	if r := sb.Receipt(); r.Network != backend.NetworkNone {
		t.Errorf("%q was granted", r.Network)
	}
	t.unreached(ctx, sb, "4", "192.0.2.1", "80")
}
