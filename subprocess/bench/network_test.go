//go:build linux

package bench_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/testenv/ratio"
)

// fetch reads all that a server sends: by itself, or through the SOCKS proxy.
const fetch = `
import socket, struct, sys
host, port, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if way == "socks":
    s = socket.create_connection(("127.0.0.1", 3128))
    s.sendall(b"\x05\x01\x00")
    s.recv(2)
    s.sendall(b"\x05\x01\x00\x01" + socket.inet_aton(host) + struct.pack(">H", port))
    s.recv(10)
else:
    s = socket.create_connection((host, port))
buf, n = bytearray(1 << 20), 0
while True:
    got = s.recv_into(buf)
    if not got: break
    n += got
assert n == int(sys.argv[4]), n
`

// BenchmarkNetwork fetches 64 MiB of the host in each mode of the network.
func BenchmarkNetwork(b *testing.B) {
	const size = 64 << 20
	ex := open(b)
	var lc net.ListenConfig
	l, err := lc.Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	go func() {
		buf := make([]byte, 256<<10)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			for range size / len(buf) {
				if _, err := c.Write(buf); err != nil {
					break
				}
			}
			_ = c.Close()
		}
	}()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	allow := []backend.Rule{{CIDR: "127.0.0.1/32"}}
	run := func(mode backend.NetworkMode, host, way string) func() error {
		sb, err := ex.Create(b.Context(), backend.Spec{Network: backend.Network{Mode: mode, Allow: allow}})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = sb.Destroy(context.WithoutCancel(b.Context())) })
		return func() error {
			exit, err := backend.RunIn(b.Context(), sb, backend.Command{
				Args:   []string{"python3", "-c", fetch, host, port, way, fmt.Sprint(size)},
				Output: backend.Output{Stdout: io.Discard, Stderr: io.Discard},
			})
			if err == nil && !exit.Success() {
				err = fmt.Errorf("%v", exit)
			}
			return err
		}
	}
	ratio.Medians(b, 0, []ratio.Of{ratio.Timed("full", run(backend.NetworkFull, "192.0.0.1", "direct"))},
		[]ratio.Of{ratio.Timed("allowlist", run(backend.NetworkAllowlist, "127.0.0.1", "socks"))})
}
