//go:build linux

package agent_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/internal/agent"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/process"
)

func TestStart_ends(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	tests := []struct {
		name, script           string
		code                   int32
		exited                 bool
		status, stdout, stderr string
		reason                 gloveboxv1.End_Reason
	}{
		{"zero", "echo hi", 0, true, "exit status 0", "hi\n", "", gloveboxv1.End_REASON_EXITED},
		{"non-zero", "echo err >&2; exit 3", 3, true, "exit status 3", "", "err\n", gloveboxv1.End_REASON_EXITED},
		{"signal", "kill -9 $$", -1, false, "signal: killed", "", "", gloveboxv1.End_REASON_SIGNALED},
		{"other signal", "kill -15 $$", -1, false, "signal: terminated", "", "", gloveboxv1.End_REASON_SIGNALED},
		{"missing", "nosuchprogram 2>/dev/null", 127, true, "exit status 127", "", "", gloveboxv1.End_REASON_EXITED},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := b.run(t, request(tt.script))
			if r.err != nil || r.end == nil || r.why == nil {
				t.Fatalf("%+v", r)
			}
			wantErr := tt.status
			if tt.code == 0 {
				wantErr = ""
			}
			got := []any{r.end.GetExitCode(), r.end.GetExited(), r.end.GetStatus(), r.end.GetError(), r.stdout, r.stderr, r.why.GetReason()}
			want := []any{tt.code, tt.exited, tt.status, wantErr, tt.stdout, tt.stderr, tt.reason}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
			u := r.why.GetUsage()
			if u.GetWallNs() <= 0 || u.GetPeakMemoryBytes() <= 0 || u.GetStdoutBytes() != int64(len(r.stdout)) || u.GetStderrBytes() != int64(len(r.stderr)) {
				t.Errorf("usage %v", u)
			}
		})
	}
}

func TestStart_programThatCannotBeExecuted(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	write := func(name, text string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(b.home, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(b.home, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("plain", "echo hi", 0o644)
	write("script", "echo \"script $1\"", 0o755)
	write("lost", "#!/no/such/interpreter\n", 0o755)
	tests := []struct {
		name, cmd      string
		code           int32
		stdout, stderr string
	}{
		{"missing by name", "nosuchprogram", 127, "", "nosuchprogram: not found\n"},
		{"missing by path", "/no/such", 127, "", "/no/such: not found\n"},
		{"not executable", "./plain", 126, "", "./plain: Permission denied\n"},
		{"not executable in PATH", "plain", 126, "", "plain: Permission denied\n"},
		{"a directory", "/tmp", 126, "", "/tmp: Permission denied\n"},
		{"below a file", "/etc/passwd/x", 127, "", "/etc/passwd/x: not found\n"},
		{"no interpreter", "./lost", 127, "", "./lost: not found\n"},
		{"no format", "./script", 0, "script arg\n", ""},
		{"no format in PATH", "script", 0, "script arg\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := b.run(t, connect.NewRequest(&process.StartRequest{Process: &process.ProcessConfig{
				Cmd: tt.cmd, Args: []string{"arg"}, Envs: map[string]string{"PATH": "/nowhere:" + b.home + ":/bin"},
			}}))
			if r.err != nil {
				t.Fatal(r.err)
			}
			if d := cmp.Diff([]any{tt.code, true, tt.stdout, tt.stderr}, []any{r.end.GetExitCode(), r.end.GetExited(), r.stdout, r.stderr}); d != "" {
				t.Error(d)
			}
			if tt.code != 0 && r.pid < 1<<30 {
				t.Errorf("pid %d could be a real one", r.pid)
			}
			if r.why.GetReason() != gloveboxv1.End_REASON_EXITED || r.why.GetCode() != tt.code {
				t.Errorf("end %v", r.why)
			}
		})
	}
}

func TestStart_refuses(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	huge := strings.Repeat("x", 200<<10)
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	file := filepath.Join(b.home, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	str := func(s string) *string { return &s }
	tests := []struct {
		name string
		cfg  *process.ProcessConfig
		head [2]string
		code connect.Code
		text string
	}{
		{"no command", nil, [2]string{}, connect.CodeInvalidArgument, "cmd is empty"},
		{"NUL", &process.ProcessConfig{Cmd: "a\x00b"}, [2]string{}, connect.CodeInvalidArgument, "NUL"},
		{"variable's name", &process.ProcessConfig{Cmd: "true", Envs: map[string]string{"A=B": "c"}}, [2]string{}, connect.CodeInvalidArgument, "environment"},
		{"variable's value", &process.ProcessConfig{Cmd: "true", Envs: map[string]string{"A": "c\x00"}}, [2]string{}, connect.CodeInvalidArgument, "NUL"},
		{"directory", &process.ProcessConfig{Cmd: "true", Cwd: str("/no/such")}, [2]string{}, connect.CodeInvalidArgument, "cwd '/no/such' does not exist"},
		{"directory is a file", &process.ProcessConfig{Cmd: "true", Cwd: str("file")}, [2]string{}, connect.CodeInvalidArgument, "is not a directory"},
		{"another's home", &process.ProcessConfig{Cmd: "true", Cwd: str("~bin")}, [2]string{}, connect.CodeInvalidArgument, "home of another"},
		{"too long", &process.ProcessConfig{Cmd: "true", Args: []string{huge}}, [2]string{}, connect.CodeInvalidArgument, "larger than the kernel takes"},
		{"user", &process.ProcessConfig{Cmd: "true"}, [2]string{"Authorization", basic("nobody-here:")}, connect.CodeUnauthenticated, "invalid username: 'nobody-here': only the account"},
		{"authorization", &process.ProcessConfig{Cmd: "true"}, [2]string{"Authorization", "Basic !"}, connect.CodeUnauthenticated, "invalid Authorization"},
		{"limits", &process.ProcessConfig{Cmd: "true"}, [2]string{wire.HeaderLimits, "!!"}, connect.CodeInvalidArgument, wire.HeaderLimits},
		{"negative limit", &process.ProcessConfig{Cmd: "true"}, [2]string{wire.HeaderLimits, wire.Pack(&gloveboxv1.Limits{CpuTimeNs: -1})}, connect.CodeInvalidArgument, "negative"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			req := connect.NewRequest(&process.StartRequest{Process: tt.cfg})
			if tt.head[0] != "" {
				req.Header().Set(tt.head[0], tt.head[1])
			}
			r := b.run(t, req)
			wantCode(t, r.err, tt.code, tt.text)
		})
	}
}

func TestStart_directoryAndEnvironment(t *testing.T) {
	t.Parallel()
	work := t.TempDir()
	b := newBox(t, func(o *agent.Options) { o.Env = map[string]string{"A": "default", "B": "default", "HOME_SET": "x"} })
	if err := os.Mkdir(filepath.Join(b.home, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	name := me(t, "").Name
	pwd := func(cwd string) string {
		req := request("pwd")
		if cwd != "" {
			req.Msg.Process.Cwd = &cwd
		}
		return strings.TrimSpace(b.run(t, req).stdout)
	}
	for cwd, want := range map[string]string{"": b.home, "~": b.home, "~/sub": b.home + "/sub", "sub": b.home + "/sub", work: work} {
		if got := pwd(cwd); got != want {
			t.Errorf("cwd %q: %q, want %q", cwd, got, want)
		}
	}
	req := connect.NewRequest(&process.StartRequest{Process: &process.ProcessConfig{Cmd: "env", Envs: map[string]string{"B": "own"}}})
	got := strings.Split(strings.TrimSpace(b.run(t, req).stdout), "\n")
	want := []string{
		"A=default", "B=own", "HOME=" + b.home, "HOME_SET=x", "LOGNAME=" + name,
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "USER=" + name,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// The default directory of /init counts only where the request has none.
	post(t, b, "/init", fmt.Sprintf(`{"defaultWorkdir":%q}`, work), "", http.StatusNoContent)
	if got := pwd(""); got != work {
		t.Errorf("default directory %q, want %q", got, work)
	}
	if got := pwd("sub"); got != b.home+"/sub" {
		t.Errorf("relative to %q, want home", got)
	}
}

func TestStart_input(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		if r := b.run(t, request("cat; echo done")); r.stdout != "done\n" {
			t.Errorf("%+v", r)
		}
		o := b.open(t, request("echo ready; sleep 60"))
		o.until(t, "ready")
		wantCode(t, b.send(t, o.pid, stdin("x")), connect.CodeInternal, "stdin not enabled")
		o.Close()
	})
	t.Run("open until closed", func(t *testing.T) {
		t.Parallel()
		req := request("cat; echo closed")
		req.Msg.Stdin = nil // absent means true
		o := b.open(t, req)
		for _, s := range []string{"one\n", "two\n"} {
			if err := b.send(t, o.pid, stdin(s)); err != nil {
				t.Fatal(err)
			}
			o.until(t, s)
		}
		wantCode(t, b.send(t, o.pid, ptyInput("x")), connect.CodeInternal, "tty not assigned")
		if _, err := b.proc.CloseStdin(t.Context(), connect.NewRequest(&process.CloseStdinRequest{Process: byPID(o.pid)})); err != nil {
			t.Fatal(err)
		}
		if r := o.collect(); r.stdout != "closed\n" || !r.end.GetExited() {
			t.Errorf("%+v", r)
		}
		wantCode(t, b.send(t, o.pid, stdin("x")), connect.CodeNotFound, fmt.Sprintf("process with pid %d not found", o.pid))
	})
	t.Run("stream", func(t *testing.T) {
		t.Parallel()
		req := request("head -c 8 | tr a-z A-Z")
		req.Msg.Stdin = nil
		o := b.open(t, req)
		in := b.proc.StreamInput(t.Context())
		msgs := []*process.StreamInputRequest{
			{Event: &process.StreamInputRequest_Start{Start: &process.StreamInputRequest_StartEvent{Process: byPID(o.pid)}}},
			{Event: &process.StreamInputRequest_Data{Data: &process.StreamInputRequest_DataEvent{Input: stdin("abcd")}}},
			{Event: &process.StreamInputRequest_Keepalive{Keepalive: &process.StreamInputRequest_KeepAlive{}}},
			{Event: &process.StreamInputRequest_Data{Data: &process.StreamInputRequest_DataEvent{Input: stdin("efgh")}}},
		}
		for _, m := range msgs {
			if err := in.Send(m); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := in.CloseAndReceive(); err != nil {
			t.Fatal(err)
		}
		if r := o.collect(); r.stdout != "ABCDEFGH" {
			t.Errorf("%+v", r)
		}
	})
	t.Run("stream without start", func(t *testing.T) {
		t.Parallel()
		in := b.proc.StreamInput(t.Context())
		_ = in.Send(&process.StreamInputRequest{Event: &process.StreamInputRequest_Data{}})
		_, err := in.CloseAndReceive()
		wantCode(t, err, connect.CodeInvalidArgument, "start")
	})
	t.Run("unread", func(t *testing.T) {
		t.Parallel()
		req := request("echo ready; sleep 60")
		req.Msg.Stdin = nil
		o := b.open(t, req)
		o.until(t, "ready")
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		big := stdin(strings.Repeat("x", 1<<20))
		_, err := b.proc.SendInput(ctx, connect.NewRequest(&process.SendInputRequest{Process: byPID(o.pid), Input: big}))
		wantCode(t, err, connect.CodeDeadlineExceeded)
		// A writer that waits is released by the end of the process.
		done := make(chan error, 1)
		go func() { done <- b.send(t, o.pid, big) }()
		if err := b.signal(t, o.pid, process.Signal_SIGNAL_SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err == nil {
			t.Error("input was taken by a dead process")
		}
		o.collect()
	})
}

func TestSignals(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	o := b.open(t, request("trap 'echo term; exit 5' TERM; echo ready; while :; do sleep 0.05; done"))
	o.until(t, "ready")
	for _, sig := range []process.Signal{0, 2, 64} {
		wantCode(t, b.signal(t, o.pid, sig), connect.CodeUnimplemented)
	}
	if err := b.signal(t, o.pid, process.Signal_SIGNAL_SIGTERM); err != nil {
		t.Fatal(err)
	}
	if r := o.collect(); r.stdout != "term\n" || r.end.GetExitCode() != 5 {
		t.Errorf("%+v", r)
	}

	// SIGKILL reaches the process alone.
	o = b.open(t, request("sleep 60 >/dev/null 2>&1 & echo $!; wait"))
	child, err := strconv.Atoi(strings.TrimSpace(o.until(t, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.signal(t, o.pid, process.Signal_SIGNAL_SIGKILL); err != nil {
		t.Fatal(err)
	}
	r := o.collect()
	want := &process.ProcessEvent_EndEvent{ExitCode: -1, Status: "signal: killed"}
	if r.end.GetExitCode() != want.ExitCode || r.end.GetExited() || r.end.GetStatus() != want.Status || r.end.GetError() != want.Status {
		t.Errorf("end %v", r.end)
	}
	if r.why.GetReason() != gloveboxv1.End_REASON_SIGNALED || r.why.GetSignal() != 9 || r.why.GetKillScope() != "" {
		t.Errorf("why %v", r.why)
	}
	if gone(child) {
		t.Error("the kill reached a child")
	}
	wantCode(t, b.signal(t, o.pid, process.Signal_SIGNAL_SIGKILL), connect.CodeNotFound)
	wantCode(t, b.signal(t, 4000000, process.Signal_SIGNAL_SIGKILL), connect.CodeNotFound, "process with pid 4000000 not found")
	_, err = b.proc.SendSignal(t.Context(), connect.NewRequest(&process.SendSignalRequest{Signal: 9}))
	wantCode(t, err, connect.CodeUnimplemented)
	// The tree of a command that has ended can still be reached.
	if _, err := b.own.Signal(t.Context(), connect.NewRequest(&gloveboxv1.SignalRequest{Id: r.id, Signal: 9, Tree: true})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child is dead", func() bool { return gone(child) })
}

func TestConnect_followsAndFinds(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	start := func(tag string) *opened {
		req := request("read x; echo $x; exit 4")
		req.Msg.Stdin, req.Msg.Tag = nil, &tag
		return b.open(t, req)
	}
	first, second := start("first"), start("second")
	join := func(sel *process.ProcessSelector) *connect.ServerStreamForClient[process.ConnectResponse] {
		st, err := b.proc.Connect(t.Context(), connect.NewRequest(&process.ConnectRequest{Process: sel}))
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	collect := func(st *connect.ServerStreamForClient[process.ConnectResponse]) result {
		defer st.Close()
		var r result
		for st.Receive() {
			r.take(st.Msg().GetEvent())
		}
		r.err = st.Err()
		r.trailers(st.ResponseHeader(), st.ResponseTrailer())
		return r
	}
	streams := []*connect.ServerStreamForClient[process.ConnectResponse]{join(byPID(second.pid)), join(byTag("second"))}
	for _, st := range streams {
		if !st.Receive() || st.Msg().GetEvent().GetStart().GetPid() != second.pid {
			t.Fatalf("%v %v", st.Msg(), st.Err())
		}
	}
	list, err := b.proc.List(t.Context(), connect.NewRequest(&process.ListRequest{}))
	if err != nil || len(list.Msg.GetProcesses()) != 2 || list.Msg.GetProcesses()[1].GetTag() != "second" ||
		list.Msg.GetProcesses()[0].GetConfig().GetCmd() != "/bin/sh" {
		t.Fatalf("list %v, %v", list, err)
	}
	if err := b.send(t, second.pid, stdin("word\n")); err != nil {
		t.Fatal(err)
	}
	for _, st := range streams {
		if r := collect(st); r.stdout != "word\n" || r.end.GetExitCode() != 4 || r.id != second.id {
			t.Errorf("%+v", r)
		}
	}
	second.collect()
	// An ended process: start, then end, without a replay.
	if r := collect(join(byTag("second"))); r.pid != second.pid || r.stdout != "" || r.end.GetExitCode() != 4 || r.why.GetCode() != 4 {
		t.Errorf("%+v", r)
	}
	wantCode(t, collect(join(byTag("third"))).err, connect.CodeNotFound, "process with tag third not found")
	wantCode(t, collect(join(nil)).err, connect.CodeUnimplemented)
	// A dropped stream leaves its process.
	first.Close()
	if err := b.send(t, first.pid, stdin("still here\n")); err != nil {
		t.Fatal(err)
	}
	if r := collect(join(byPID(first.pid))); r.end.GetExitCode() != 4 {
		t.Errorf("%+v", r)
	}
}

func TestStart_deadlineKillsTheTree(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	st, err := b.proc.Start(ctx, request("sleep 60 & echo $!; wait"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var r result
	for r.stdout == "" && st.Receive() {
		r.take(st.Msg().GetEvent())
	}
	child, err := strconv.Atoi(strings.TrimSpace(r.stdout))
	if err != nil {
		t.Fatal(err)
	}
	for st.Receive() {
		t.Errorf("after the output: %v", st.Msg())
	}
	wantCode(t, st.Err(), connect.CodeDeadlineExceeded)
	eventually(t, "the tree is dead", func() bool { return gone(child) && gone(int(r.pid)) })
	id := st.ResponseHeader().Get(wire.HeaderCommand)
	eventually(t, "the end is remembered", func() bool {
		end := b.command(t, id).GetEnd()
		return end.GetReason() == gloveboxv1.End_REASON_TIMEOUT && end.GetKillScope() == "session"
	})
}

func TestStart_keepalive(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	req := request("sleep 1.5")
	req.Header().Set(wire.HeaderKeepalive, "1")
	if r := b.run(t, req); r.keepalives != 1 {
		t.Errorf("%+v", r)
	}
}

// TestStart_wireBytes holds the stream against the exchange that E2B's envd
// was seen to make.
func TestStart_wireBytes(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	body := `{"process":{"cmd":"/bin/sh","args":["-c","echo hi; sleep 0.1; echo err >&2; sleep 0.1; exit 3"]},"stdin":false,"future":1}`
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, baseURL+"/process.Process/Start", bytes.NewReader(frame))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set("Connect-Protocol-Version", "1")
	req.Header.Set("Connect-Accept-Encoding", "gzip")
	res, err := b.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "application/connect+json" || res.Header.Get("Connect-Content-Encoding") != "" {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
	var got []string
	for {
		var head [5]byte
		if _, err := io.ReadFull(res.Body, head[:]); err != nil {
			break
		}
		payload := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(res.Body, payload); err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := json.Unmarshal(payload, &v); err != nil {
			t.Fatal(err)
		}
		if event, ok := v["event"].(map[string]any); ok {
			if s, ok := event["start"].(map[string]any); ok {
				if n, ok := s["pid"].(float64); !ok || n <= 0 {
					t.Errorf("pid %v", s["pid"])
				}
				s["pid"] = 1
			}
		}
		delete(v, "metadata") // our trailer
		canonical, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d %s", head[0], canonical))
	}
	want := []string{
		`0 {"event":{"start":{"pid":1}}}`,
		`0 {"event":{"data":{"stdout":"aGkK"}}}`,
		`0 {"event":{"data":{"stderr":"ZXJyCg=="}}}`,
		`0 {"event":{"end":{"error":"exit status 3","exitCode":3,"exited":true,"status":"exit status 3"}}}`,
		`2 {}`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestStart_hundredAtOnce(t *testing.T) {
	t.Parallel()
	b := newBox(t, nil)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			r := b.runContext(t.Context(), request(fmt.Sprintf("echo out%d; echo err%d >&2; exit %d", i, i, i)))
			if r.err != nil || r.stdout != fmt.Sprintf("out%d\n", i) || r.stderr != fmt.Sprintf("err%d\n", i) || r.end.GetExitCode() != int32(i) {
				t.Errorf("%d: %+v", i, r)
			}
		})
	}
	wg.Wait()
	if n := len(b.commands(t)); n != 100 {
		t.Errorf("%d commands remembered", n)
	}
}
