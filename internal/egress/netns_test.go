//go:build linux

package egress_test

import (
	"bytes"
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
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	agentegress "github.com/glovebox-dev/glovebox/internal/agent/egress"
	"github.com/glovebox-dev/glovebox/internal/egress"
	"github.com/glovebox-dev/glovebox/internal/envd"
)

const childArg = "egress-test-sandbox"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == childArg {
		if err := child(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// order is a program to run in the sandbox, outcome what came of it.
type order struct {
	Args []string
	// Bare takes the proxy's variables away.
	Bare bool
}

type outcome struct {
	Output string
	Code   int
}

// child is a sandbox as far as the network goes: a namespace with a loopback,
// the agent's side of the way out, and programs that are run on order.
func child(dir string) error {
	if err := loopback0(dir); err != nil {
		return err
	}
	svc, err := agentegress.New(agentegress.Options{Dir: dir, Bundles: []string{}})
	if err != nil {
		return err
	}
	defer svc.Close()
	c, err := net.FileConn(os.NewFile(3, "connection"))
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: svc.Handler(), Protocols: new(http.Protocols)}
	srv.Protocols.SetUnencryptedHTTP2(true)
	l := &single{conn: c, done: make(chan struct{})}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			return nil // the test has ended
		}
		if err := out.Encode(run(o, svc.Env())); err != nil {
			return err
		}
	}
}

func run(o order, env map[string]string) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, o.Args[0], o.Args[1:]...)
	cmd.Env = os.Environ()
	for k, v := range env {
		if !o.Bare || !strings.Contains(strings.ToLower(k), "proxy") {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		b = append(b, err.Error()...)
	}
	return outcome{Output: string(b), Code: cmd.ProcessState.ExitCode()}
}

func loopback0(dir string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0o644); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	conf := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver 127.0.0.1\n"), 0o644); err != nil {
		return err
	}
	return unix.Mount(conf, "/etc/resolv.conf", "", unix.MS_BIND, "")
}

// single is a listener with one connection.
type single struct {
	mu   sync.Mutex
	conn net.Conn
	done chan struct{}
}

func (l *single) Accept() (net.Conn, error) {
	l.mu.Lock()
	c := l.conn
	l.conn = nil
	l.mu.Unlock()
	if c == nil {
		<-l.done
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l *single) Close() error   { close(l.done); return nil }
func (l *single) Addr() net.Addr { return &net.UnixAddr{} }

// sandbox is a child from outside.
type sandbox struct {
	*rig
	mu  sync.Mutex
	in  *json.Encoder
	out *json.Decoder
	pid int
}

func newSandbox(t *testing.T, n backend.Network) *sandbox {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], childArg, dir)
	cmd.ExtraFiles = []*os.File{far}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = far.Close()
	conn, err := net.FileConn(near)
	if err != nil {
		t.Fatal(err)
	}
	_ = near.Close()
	sb := &sandbox{in: json.NewEncoder(stdin), out: json.NewDecoder(stdout), pid: cmd.Process.Pid}
	sb.rig = newHost(t, n)
	rt := envd.NewTransport(func(context.Context) (net.Conn, error) { return conn, nil })
	go func() { sb.ended <- sb.Serve(t.Context(), rt) }()
	if err := sb.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sb.Close()
		_ = rt.Close()
		_ = stdin.Close()
		_, _ = io.Copy(io.Discard, stdout)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, stderr.String())
		}
	})
	return sb
}

func (sb *sandbox) run(t *testing.T, bare bool, args ...string) (string, int) {
	t.Helper()
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if err := sb.in.Encode(order{Args: args, Bare: bare}); err != nil {
		t.Fatal(err)
	}
	var o outcome
	if err := sb.out.Decode(&o); err != nil {
		t.Fatal(err)
	}
	return o.Output, o.Code
}

// programs fetch an URL and print the status and the body.
func programs(t *testing.T) map[string]func(url string) []string {
	t.Helper()
	all := map[string]func(url string) []string{
		"curl": func(u string) []string { return []string{"curl", "-sS", "-m", "20", "-w", " %{http_code}", u} },
		"python3": func(u string) []string {
			return []string{"python3", "-c", "import requests,sys\nr=requests.get(sys.argv[1],timeout=20)\nprint(r.text,r.status_code)", u}
		},
		"node": func(u string) []string {
			return []string{"node", "-e", "fetch(process.argv[1]).then(async r=>console.log(await r.text(),r.status)).catch(e=>{console.error(e.cause||e);process.exit(1)})", u}
		},
	}
	for name := range all {
		if _, err := exec.LookPath(name); err != nil {
			t.Logf("%s is not installed", name)
			delete(all, name)
		}
	}
	if all["python3"] != nil && exec.Command("python3", "-c", "import requests").Run() != nil {
		t.Log("requests is not installed")
		delete(all, "python3")
	}
	if len(all) == 0 {
		t.Fatal("no program to try")
	}
	return all
}

// TestPrograms: in a namespace that has nothing but a loopback, real programs
// reach what is named and nothing else, with the proxy's variables and without.
func TestPrograms(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	other := newUpstream(t, nil)
	sb := newSandbox(t, backend.Network{Mode: backend.NetworkAllowlist})
	secure := sb.newTLS(t, nil, "app.test")
	sb.names.set("app.test", "127.0.0.1")
	sb.names.set("other.test", "127.0.0.1")
	update := func(n backend.Network) {
		t.Helper()
		if err := sb.Update(n); err != nil {
			t.Fatal(err)
		}
	}
	closed := backend.Network{Mode: backend.NetworkAllowlist}
	open := closed
	open.Intercept = true
	open.Allow = []backend.Rule{
		{Host: "app.test", Ports: []uint16{uint16(up.port)}},
		{Host: "app.test", Ports: []uint16{uint16(secure.port)}, Methods: []string{"GET"}, Path: "/ok"},
		loopback(up.port, secure.port),
	}
	web, tls := fmt.Sprintf("http://app.test:%d/ok", up.port), fmt.Sprintf("https://app.test:%d/ok", secure.port)
	for name, args := range programs(t) {
		for _, bare := range []bool{false, true} {
			who := fmt.Sprintf("%s, bare %t", name, bare)
			update(closed)
			for _, url := range []string{web, tls, fmt.Sprintf("http://127.0.0.1:%d/", up.port)} {
				if out, code := sb.run(t, bare, args(url)...); code == 0 && !strings.Contains(out, "403") {
					t.Errorf("%s: %s with a closed network: %s", who, url, out)
				}
			}
			update(open)
			for _, url := range []string{web, tls} {
				if out, code := sb.run(t, bare, args(url)...); code != 0 || !strings.Contains(out, "GET /ok host=app.test") || !strings.Contains(out, "200") {
					t.Errorf("%s: %s: %d %s", who, url, code, out)
				}
			}
			for _, url := range []string{
				fmt.Sprintf("http://other.test:%d/", other.port), fmt.Sprintf("http://app.test:%d/", other.port),
				fmt.Sprintf("https://app.test:%d/no", secure.port), "http://169.254.169.254/latest/meta-data/",
				fmt.Sprintf("http://127.0.0.1:%d/", up.port), fmt.Sprintf("http://[::1]:%d/", up.port),
			} {
				if out, code := sb.run(t, bare, args(url)...); code == 0 && !strings.Contains(out, "403") {
					t.Errorf("%s: %s: %d %s", who, url, code, out)
				}
			}
		}
	}
	if n := len(other.requests()); n > 0 {
		t.Errorf("the other server saw %d requests", n)
	}
	for _, q := range sb.names.questions() {
		if q != "app.test." {
			t.Errorf("%s was resolved", q)
		}
	}
	if d := sb.decisions(func(d egress.Decision) bool { return d.Kind == egress.KindResolve && d.Allowed }); len(d) == 0 {
		t.Error("no program asked for a name")
	}
}
