//go:build linux

package hostiletest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/glovebox-dev/glovebox/backend"
)

// metadataServices are where clouds answer with the machine's credentials, and
// publicServer an address that is none of theirs.
func metadataServices() []string {
	return []string{"169.254.169.254", "100.100.100.200", "fd00:ec2::254"}
}

const publicServer = "93.184.216.34"

// metadataSeen is what a helper with fake services says.
type metadataSeen struct {
	Control []string          // who was reached from the helper itself
	None    []string          // from a sandbox without a network
	Allowed []string          // from one that may reach every address
	Tries   map[string]string // of the latter
}

// metadata asks for credentials where clouds have them; NW-06. The services are
// fakes, on the loopback of a network namespace that is thrown away, in which the
// supervisor with its proxy is as well.
func metadata(t *testing.T) {
	if os.Geteuid() != 0 {
		declared(t, "only root can make a network namespace for the fakes")
	}
	h := startHelperIn(t, syscall.CLONE_NEWNET, "metadata")
	var seen metadataSeen
	if err := json.Unmarshal([]byte(h.line(t)), &seen); err != nil {
		t.Fatal(err)
	}
	h.in.Close()
	if err := h.cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, h.errs.bytes())
	}
	if want := len(metadataServices()) + 1; len(seen.Control) != want {
		t.Errorf("inconclusive: outside only %v of %d are reached", seen.Control, want)
	}
	if len(seen.None) > 0 {
		t.Errorf("open: without a network %v were reached", seen.None)
	}
	if !slices.Equal(seen.Allowed, []string{publicServer}) {
		t.Errorf("open, or inconclusive: where everything is allowed %v were reached: %v", seen.Allowed, seen.Tries)
	}
	for name, how := range seen.Tries {
		if good := strings.Contains(name, publicServer); (how == "ok") != good {
			t.Errorf("%s inside: %s", name, how)
		}
	}
}

// helpMetadata has the fakes, and sandboxes that ask them.
func helpMetadata(ctx context.Context, ex backend.Executor) error {
	e := &ears{}
	if err := serveFakes(ctx, e); err != nil {
		return err
	}
	var seen metadataSeen
	direct := &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second} // by no proxy
	for _, a := range append(metadataServices(), publicServer) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(a, "80")+"/", nil)
		if err != nil {
			return err
		}
		resp, err := direct.Do(req)
		for tries := 0; err != nil && tries < 50; tries++ { // a new address is not there at once
			<-time.After(50 * time.Millisecond)
			resp, err = direct.Do(req)
		}
		if err != nil {
			return err
		}
		resp.Body.Close()
	}
	seen.Control = e.drain()
	names, closeNames, err := serveNames()
	if err != nil {
		return err
	}
	defer closeNames()
	var args []string
	for _, a := range metadataServices() {
		args = append(args, "fetch=http://"+net.JoinHostPort(a, "80")+"/latest/meta-data/", "open="+a+"|80")
	}
	args = append(args, "fetch=http://metadata.google.internal/x", "fetch=http://innocent.test/x", "fetch=http://0xa9fea9fe/x", "fetch=http://[::ffff:169.254.169.254]/x")
	if _, err := askFrom(ctx, ex, backend.Network{}, args); err != nil {
		return fmt.Errorf("without a network: %w", err)
	}
	seen.None = e.drain()
	all := backend.Network{Mode: backend.NetworkAllowlist, DNS: []string{names}, Allow: []backend.Rule{
		{CIDR: "0.0.0.0/0"}, {CIDR: "::/0"}, {CIDR: publicServer + "/32"},
	}}
	seen.Tries, err = askFrom(ctx, ex, all, append(args, "fetch=http://"+publicServer+"/"))
	if err != nil {
		return fmt.Errorf("with every address allowed: %w", err)
	}
	seen.Allowed = e.drain()
	return json.NewEncoder(os.Stdout).Encode(seen)
}

// serveFakes answers at each address, until ctx ends.
func serveFakes(ctx context.Context, e *ears) error {
	commands := [][]string{{"link", "set", "lo", "up"}}
	for _, a := range append(metadataServices(), publicServer) {
		commands = append(commands, []string{"addr", "add", a, "dev", "lo"})
		if strings.Contains(a, ":") {
			commands[len(commands)-1] = []string{"-6", "addr", "add", a + "/128", "dev", "lo", "nodad"}
		}
	}
	for _, args := range commands {
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
	}
	for _, a := range append(metadataServices(), publicServer) {
		l, err := net.Listen("tcp", net.JoinHostPort(a, "80"))
		if err != nil {
			return err
		}
		srv := &http.Server{ReadHeaderTimeout: 5 * time.Second, ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				e.hear(a)
			}
		}, Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "credentials\n") })}
		srv.SetKeepAlivesEnabled(false)
		go srv.Serve(l)
	}
	return nil
}

// serveNames is a DNS server that knows every name as a metadata service's.
func serveNames() (addr string, stop func(), err error) {
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	go func() {
		for buf := make([]byte, 2048); ; {
			n, from, err := c.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			var m dnsmessage.Message
			if err != nil || m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response = true
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1},
					Body:   &dnsmessage.AResource{A: [4]byte{169, 254, 169, 254}},
				}}
			}
			m.Additionals = nil
			if data, err := m.Pack(); err == nil {
				_, _ = c.WriteTo(data, from)
			}
		}
	}()
	return c.LocalAddr().String(), func() { c.Close() }, nil
}

// askFrom runs the network program in a sandbox.
func askFrom(ctx context.Context, ex backend.Executor, n backend.Network, args []string) (map[string]string, error) {
	files := map[string]backend.File{}
	for _, name := range []string{"probe.py", "net.py"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			return nil, err
		}
		files[name] = backend.File{Data: data}
	}
	res, err := backend.Run(ctx, ex, backend.RunSpec{
		Spec: backend.Spec{Network: n}, Files: files,
		Command: backend.Command{Args: append([]string{"/usr/bin/python3", "net.py", "n", "connect"}, args...), Timeout: 2 * time.Minute},
	})
	if err != nil {
		return nil, err
	}
	said := parse(res.Stdout, "n")
	if said == nil {
		return nil, fmt.Errorf("the program never reported: %s %.600s", res.Exit, res.Stderr)
	}
	return said.Tries, nil
}

// drain is what was heard since the last time, each once.
func (e *ears) drain() []string {
	<-time.After(200 * time.Millisecond) // a connection that is on its way
	e.mu.Lock()
	defer e.mu.Unlock()
	out := slices.Compact(slices.Sorted(slices.Values(e.heard)))
	e.heard = nil
	return out
}
