//go:build linux

package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/agent"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/process"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

// call makes a plain request and returns the answer's body.
func call(tb testing.TB, b *box, method, path, body, token string, status int) (string, http.Header) {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, baseURL+path, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	if token != "" {
		req.Header.Set(wire.HeaderAccessToken, token)
	}
	res, err := b.http.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != status {
		tb.Fatalf("%s %s: %d %q, %v; want %d", method, path, res.StatusCode, got, err, status)
	}
	return string(got), res.Header
}

func post(tb testing.TB, b *box, path, body, token string, status int) string {
	tb.Helper()
	got, _ := call(tb, b, http.MethodPost, path, body, token, status)
	return got
}

func get(tb testing.TB, b *box, path, token string, status int) string {
	tb.Helper()
	got, _ := call(tb, b, http.MethodGet, path, "", token, status)
	return got
}

func TestInit_tokenClosesEverything(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	b.srv.Mount("/files", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }), true)
	get(t, b, "/envs", "", http.StatusOK)
	_, head := call(t, b, http.MethodPost, "/init", `{"accessToken":"secret","timestamp":"2030-01-01T00:00:00Z","unknown":{}}`, "", http.StatusNoContent)
	if head.Get(wire.HeaderEnvdVersion) != wire.EnvdVersion {
		t.Errorf("headers %v", head)
	}
	want := `{"code":401,"message":"unauthorized access, please provide a valid access token or method signing if supported"}`
	for _, token := range []string{"", "wrong", "secret2"} {
		for _, path := range []string{"/envs", "/metrics", "/nothing"} {
			if got := get(t, b, path, token, http.StatusUnauthorized); strings.TrimSpace(got) != want {
				t.Errorf("%s: %s", path, got)
			}
		}
		post(t, b, "/glovebox.v1.Sandbox/Hello", "{}", token, http.StatusUnauthorized)
		post(t, b, "/process.Process/List", "{}", token, http.StatusUnauthorized)
		post(t, b, wire.DialPath+"?port=1", "", token, http.StatusUnauthorized)
	}
	get(t, b, "/envs", "secret", http.StatusOK)
	if _, head := call(t, b, http.MethodGet, "/health", "", "", http.StatusNoContent); head.Get("Cache-Control") != "no-store" {
		t.Errorf("headers %v", head)
	}
	get(t, b, "/files", "", http.StatusTeapot)

	for body, text := range map[string]string{
		`{"accessToken":"other"}`: "access token validation failed",
		`{"accessToken":""}`:      "access token reset not authorized",
		`{}`:                      "access token reset not authorized",
	} {
		if got := post(t, b, "/init", body, "secret", http.StatusUnauthorized); !strings.Contains(got, text) {
			t.Errorf("%s: %q, want %q", body, got, text)
		}
	}
	post(t, b, "/init", `{"accessToken":"secret"}`, "", http.StatusNoContent)
	post(t, b, "/init", `{`, "", http.StatusBadRequest)
	get(t, b, "/envs", "secret", http.StatusOK)
}

func TestInit_environment(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(o *agent.Options) { o.Env = map[string]string{"E2B_SANDBOX": "true", "BASE": "1"} })
	envs := func() map[string]string {
		var m map[string]string
		if err := json.Unmarshal([]byte(get(t, b, "/envs", "", http.StatusOK)), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	steps := []struct {
		body string
		want map[string]string
	}{
		{`{"envVars":{"A":"1","E2B_SANDBOX":"no","E2B_SANDBOX_ID":"x"}}`, map[string]string{"E2B_SANDBOX": "true", "BASE": "1", "A": "1"}},
		{`{}`, map[string]string{"E2B_SANDBOX": "true", "BASE": "1", "A": "1"}},
		{`{"envVars":{"B":"2"}}`, map[string]string{"E2B_SANDBOX": "true", "BASE": "1", "B": "2"}},
		{`{"envVars":{}}`, map[string]string{"E2B_SANDBOX": "true", "BASE": "1"}},
	}
	for _, s := range steps {
		post(t, b, "/init", s.body, "", http.StatusNoContent)
		if d := cmp.Diff(s.want, envs()); d != "" {
			t.Errorf("%s: %s", s.body, d)
		}
	}
	post(t, b, "/init", `{"envVars":{"A=":"1"}}`, "", http.StatusBadRequest)
}

// TestInit_tokenFromTheStart: nobody gets in before /init either.
func TestInit_tokenFromTheStart(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(o *agent.Options) { o.Token = "secret" })
	for _, token := range []string{"", "wrong"} {
		get(t, b, "/envs", token, http.StatusUnauthorized)
		post(t, b, "/glovebox.v1.Sandbox/Hello", "{}", token, http.StatusUnauthorized)
	}
	get(t, b, "/envs", "secret", http.StatusOK)
	get(t, b, "/health", "", http.StatusNoContent)
	for _, body := range []string{`{"accessToken":"other"}`, `{"accessToken":""}`, `{}`} {
		post(t, b, "/init", body, "", http.StatusUnauthorized)
	}
	post(t, b, "/init", `{"accessToken":"secret","envVars":{"A":"1"}}`, "", http.StatusNoContent)
	if got := get(t, b, "/envs", "secret", http.StatusOK); !strings.Contains(got, `"A":"1"`) {
		t.Error(got)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(o *agent.Options) { o.Totals = agent.Totals{CPUs: 1.5, Memory: 64 << 20} })
	metrics := func() (m map[string]float64) {
		t.Helper()
		if err := json.Unmarshal([]byte(get(t, b, "/metrics", "", http.StatusOK)), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := metrics()
	for k, want := range map[string]float64{"cpu_count": 2, "mem_total": 64 << 20, "mem_total_mib": 64} {
		if m[k] != want {
			t.Errorf("%s is %v, want %v", k, m[k], want)
		}
	}
	for _, k := range []string{"ts", "cpu_used_pct", "mem_used", "mem_used_mib", "mem_cache", "disk_used", "disk_total"} {
		if _, ok := m[k]; !ok {
			t.Errorf("%s is missing", k)
		}
	}
	// A command's share shows.
	o := b.open(t, request("python3 -c 'x = b\"x\" * (150 << 20); print(\"ready\", flush=True); import time; time.sleep(60)' & while :; do :; done"))
	defer o.Close()
	o.until(t, "ready")
	metrics()
	<-time.After(300 * time.Millisecond)
	if m := metrics(); m["mem_used"] < 150<<20 || m["cpu_used_pct"] < 5 {
		t.Errorf("a command at work: %v", m)
	}
}

func TestDial(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c) // until the client's side ends
		_, _ = io.WriteString(c, "bye")
	}()
	pr, pw := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, fmt.Sprintf("%s%s?port=%d", baseURL, wire.DialPath, l.Addr().(*net.TCPAddr).Port), pr)
	if err != nil {
		t.Fatal(err)
	}
	res, err := b.http.Do(req)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%v %v", res, err)
	}
	defer res.Body.Close()
	for range 3 {
		if _, err := io.WriteString(pw, "ping"); err != nil {
			t.Fatal(err)
		}
		var buf [4]byte
		if _, err := io.ReadFull(res.Body, buf[:]); err != nil || string(buf[:]) != "ping" {
			t.Fatalf("%q %v", buf, err)
		}
	}
	_ = pw.Close()
	if rest, err := io.ReadAll(res.Body); err != nil || string(rest) != "bye" {
		t.Errorf("%q %v", rest, err)
	}
	// A port that is taken and not listened on.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	if got := post(t, b, fmt.Sprintf("%s?port=%d", wire.DialPath, bound.(*unix.SockaddrInet4).Port), "", "", http.StatusBadGateway); !strings.Contains(got, `"code":502`) {
		t.Error(got)
	}
	for _, p := range []string{"", "0", "65536", "-1", "x"} {
		post(t, b, wire.DialPath+"?port="+p, "", "", http.StatusBadRequest)
	}
}

// TestHTTP1 uses what peers without HTTP/2 can use.
func TestHTTP1(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	srv := httptest.NewServer(b.srv.Handler())
	defer srv.Close()
	res, err := http.Get(srv.URL + "/health")
	if err != nil || res.StatusCode != http.StatusNoContent {
		t.Fatalf("%v %v", res, err)
	}
	_ = res.Body.Close()
}

func TestUser_byHeader(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	dir := t.TempDir()
	passwd, group := dir+"/passwd", dir+"/group"
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(passwd, "user:x:1000:1000::/tmp:/bin/sh\nother:x:12345:12346::/:/bin/sh\n")
	write(group, "g:x:7:other\nh:x:8:user,other\n")
	b := newBox(t, func(o *agent.Options) { o.OnlyUser, o.PasswdPath, o.GroupPath = nil, passwd, group })
	id := func(name string) string {
		req := request("id -u; id -g; id -G; echo $USER $HOME; echo again >/dev/stdout; echo x >/dev/stderr; pwd")
		if name != "" {
			r, _ := http.NewRequest(http.MethodGet, "/", nil)
			r.SetBasicAuth(name, "")
			req.Header().Set("Authorization", r.Header.Get("Authorization"))
		}
		r := b.run(t, req)
		if r.err != nil {
			return r.err.Error()
		}
		return strings.ReplaceAll(r.stdout, "\n", ";") + r.stderr
	}
	user := "1000;1000;1000 8;user /tmp;again;/tmp;x\n"
	other := "12345;12346;12346 7 8;other /;again;/;x\n"
	for name, want := range map[string]string{
		"": user, "user": user, "1000": user, "other": other, "12345": other,
		"eve": "unauthenticated: invalid username: 'eve'", "999": "unauthenticated: invalid username: '999'",
	} {
		if got := id(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	write(passwd, "user:x:1000:1000::/tmp:/bin/sh\neve:x:1001:1001::/tmp:/bin/sh\n")
	if got := id("eve"); !strings.HasPrefix(got, "1001;1001;") {
		t.Errorf("a new account is not seen: %q", got)
	}
	post(t, b, "/init", `{"defaultUser":"eve"}`, "", http.StatusNoContent)
	if got := id(""); !strings.HasPrefix(got, "1001;1001;") {
		t.Errorf("the default user is not /init's: %q", got)
	}
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	o := b.open(t, connect.NewRequest(&process.StartRequest{
		Process: &process.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-i"}, Envs: map[string]string{"PS1": "", "TERM": "dumb"}},
		Pty:     &process.PTY{Size: &process.PTY_Size{Cols: 101, Rows: 31}},
	}))
	say := func(s string) {
		t.Helper()
		if err := b.send(t, o.pid, ptyInput(s)); err != nil {
			t.Fatal(err)
		}
	}
	say("stty size; test -t 0 && test -t 1 && test -t 2 && echo is''atty; echo >/dev/tty own''tty\n")
	o.until(t, "31 101")
	o.until(t, "isatty\r\n")
	o.until(t, "owntty\r\n")
	wantCode(t, b.send(t, o.pid, stdin("x")), connect.CodeInternal, "tty assigned")
	_, err := b.proc.CloseStdin(t.Context(), connect.NewRequest(&process.CloseStdinRequest{Process: byPID(o.pid)}))
	wantCode(t, err, connect.CodeUnknown)
	_, err = b.proc.Update(t.Context(), connect.NewRequest(&process.UpdateRequest{
		Process: byPID(o.pid), Pty: &process.PTY{Size: &process.PTY_Size{Cols: 70000, Rows: 10}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	say("stty size\n")
	o.until(t, "10 65535")
	say("exit 3\n")
	if r := o.collect(); r.end.GetExitCode() != 3 || r.stdout != "" || r.stderr != "" {
		t.Errorf("%+v", r)
	}

	o = b.open(t, request("echo ready; sleep 60"))
	o.until(t, "ready")
	_, err = b.proc.Update(t.Context(), connect.NewRequest(&process.UpdateRequest{Process: byPID(o.pid), Pty: &process.PTY{Size: &process.PTY_Size{}}}))
	wantCode(t, err, connect.CodeInternal, "tty not set")
	o.Close()
}

// TestClose_leavesNothing is not parallel: it counts goroutines.
func TestClose_leavesNothing(t *testing.T) { //nolint:paralleltest // counts goroutines
	before := runtime.NumGoroutine()
	files := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	open := files()
	reaper := newReaper(t)
	b := newBox(t, func(o *agent.Options) { o.Reaper = reaper })
	held := b.run(t, request("sleep 60 &"))
	tty := b.open(t, connect.NewRequest(&process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/cat"}, Pty: &process.PTY{}}))
	pids := []uint32{tty.pid, held.pid}
	// The last ones: what nobody reads of these fills the connection.
	for range 5 {
		req := request("trap '' TERM HUP; (sleep 60 & wait) & echo ready; while :; do echo x; done")
		req.Msg.Stdin = nil
		o := b.open(t, req)
		pids = append(pids, o.pid)
	}
	for range 2 {
		if err := b.srv.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	for _, pid := range pids {
		eventually(t, "the command is dead", func() bool { return gone(int(pid)) })
	}
	if err := b.run(t, request("true")).err; err == nil {
		t.Error("a closed server starts commands")
	}
	b.conns.CloseIdleConnections()
	b.conns.wg.Wait()
	reaper.Close()
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
	eventually(t, "no descriptor is left", func() bool { return files() <= open })
}

// TestServeConn_contextEnds: the connection goes, the commands stay.
func TestServeConn_contextEnds(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	ours, theirs := net.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.srv.ServeConn(ctx, theirs) }()
	if _, err := ours.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("no error of the context")
	}
	_ = ours.Close()
	get(t, b, "/health", "", http.StatusNoContent)
}

func BenchmarkTrue(b *testing.B) {
	box := newBox(b, nil)
	req := func() *connect.Request[process.StartRequest] {
		no := false
		return connect.NewRequest(&process.StartRequest{Process: &process.ProcessConfig{Cmd: "/bin/true"}, Stdin: &no})
	}
	for b.Loop() {
		if r := box.runContext(b.Context(), req()); r.err != nil || r.end.GetExitCode() != 0 {
			b.Fatalf("%+v", r)
		}
	}
}

func BenchmarkOutput(b *testing.B) {
	const size = 256 << 20
	box := newBox(b, nil)
	b.SetBytes(size)
	for b.Loop() {
		st, err := box.proc.Start(b.Context(), request(fmt.Sprintf("head -c %d /dev/zero", size)))
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		for st.Receive() {
			n += len(st.Msg().GetEvent().GetData().GetStdout())
		}
		if st.Err() != nil || n != size {
			b.Fatalf("%d bytes, %v", n, st.Err())
		}
		_ = st.Close()
	}
}
