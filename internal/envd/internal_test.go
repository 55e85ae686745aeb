package envd

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	wirefs "github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	wireproc "github.com/glovebox-dev/glovebox/internal/envd/wire/process"
)

// script is a source made up by a test.
type script struct {
	events []event
	head   http.Header
	tail   http.Header
	err    error
}

func (s *script) next() (event, error) {
	if len(s.events) == 0 {
		return event{}, s.err
	}
	ev := s.events[0]
	s.events = s.events[1:]
	return ev, nil
}

func (s *script) header() http.Header  { return s.head }
func (s *script) trailer() http.Header { return s.tail }
func (s *script) close()               {}

// eventsOf reads a sequence of length-prefixed messages of either RPC.
func eventsOf(b []byte, attached bool) []event {
	var events []event
	for len(b) > 0 {
		n := min(int(b[0]), len(b)-1)
		msg := b[1 : 1+n]
		b = b[1+n:]
		if attached {
			m := new(gloveboxv1.AttachResponse)
			if proto.Unmarshal(msg, m) == nil {
				events = append(events, ofAttach(m))
			}
			continue
		}
		m := new(wireproc.StartResponse)
		if proto.Unmarshal(msg, m) == nil {
			events = append(events, ofProcess(m.GetEvent()))
		}
	}
	return events
}

func pack(t testing.TB, msgs ...proto.Message) []byte {
	t.Helper()
	var out []byte
	for _, m := range msgs {
		b, err := proto.Marshal(m)
		if err != nil || len(b) > 255 {
			t.Fatal(err, len(b))
		}
		out = append(append(out, byte(len(b))), b...)
	}
	return out
}

// FuzzEvents feeds a command arbitrary events: it must end, with an exit that
// makes sense or an error of a kind.
func FuzzEvents(f *testing.F) {
	start := &wireproc.StartResponse{Event: &wireproc.ProcessEvent{Event: &wireproc.ProcessEvent_Start{Start: &wireproc.ProcessEvent_StartEvent{Pid: 1}}}}
	data := &wireproc.StartResponse{Event: &wireproc.ProcessEvent{Event: &wireproc.ProcessEvent_Data{Data: &wireproc.ProcessEvent_DataEvent{
		Output: &wireproc.ProcessEvent_DataEvent_Stdout{Stdout: []byte("x")},
	}}}}
	end := &wireproc.StartResponse{Event: &wireproc.ProcessEvent{Event: &wireproc.ProcessEvent_End{End: &wireproc.ProcessEvent_EndEvent{Exited: true}}}}
	trailer := wire.Pack(&gloveboxv1.End{Reason: gloveboxv1.End_REASON_EXITED})
	f.Add(pack(f, start, data, end), "c1", trailer, false)
	f.Add(pack(f, start, end, end), "", "", false)
	f.Add(pack(f, start, start), "c1", "x", false)
	f.Add(pack(f, &gloveboxv1.AttachResponse{Event: &gloveboxv1.AttachResponse_Start_{Start: &gloveboxv1.AttachResponse_Start{Pid: 1}}},
		&gloveboxv1.AttachResponse{Event: &gloveboxv1.AttachResponse_End{End: &gloveboxv1.End{Reason: gloveboxv1.End_REASON_TIMEOUT}}}), "", "", true)
	c := New(http.DefaultTransport, Options{EnvdVersion: "0.6.13", Grace: time.Second, Output: 100})
	f.Cleanup(func() { _ = c.Close() })
	f.Fuzz(func(t *testing.T, stream []byte, id, trailer string, attached bool) {
		s := &script{
			events: eventsOf(stream, attached), err: io.EOF,
			head: http.Header{wire.HeaderCommand: {id}}, tail: http.Header{wire.TrailerEnd: {trailer}},
		}
		if id == "" {
			s.head = nil
		}
		if trailer == "" {
			s.tail = nil
		}
		p := newProcess(c, where{op: opStart}, backend.Output{Stdout: io.Discard})
		p.stdout.limit, p.timeout = 100, time.Hour
		if attached {
			p.attached, p.ext = "c1", true
		}
		got, err := p.launch(t.Context(), func(context.Context) (source, error) { return s, nil })
		if err != nil {
			checkKind(t, err)
			return
		}
		exit, err := got.Wait(t.Context())
		if err != nil {
			checkKind(t, err)
			return
		}
		checkExit(t, exit)
	})
}

func checkKind(t *testing.T, err error) {
	t.Helper()
	if backend.KindOf(err) != backend.ErrLost {
		t.Errorf("kind %q: %v", backend.KindOf(err), err)
	}
	if strings.ContainsAny(err.Error(), "\x00\x1b\n") {
		t.Errorf("%q", err.Error())
	}
}

func checkExit(t *testing.T, e backend.Exit) {
	t.Helper()
	switch {
	case e.Reason == "":
		t.Errorf("no reason: %+v", e)
	case e.Reason == backend.ReasonExited && (e.Code < 0 || e.Code > 255 || e.Signal != 0):
		t.Errorf("%+v", e)
	case e.Reason != backend.ReasonExited && (e.Signal < 1 || e.Signal > 64 || e.Code != 128+int(e.Signal)):
		t.Errorf("%+v", e)
	case e.Usage.CPU < 0 || e.Usage.PeakMemory < 0 || e.Usage.Stdout < 0 || len(e.Hits) > 5:
		t.Errorf("%+v", e)
	}
}

// FuzzEnd decodes a trailer and checks it against a status.
func FuzzEnd(f *testing.F) {
	f.Add(wire.Pack(&gloveboxv1.End{Reason: gloveboxv1.End_REASON_EXITED, Code: 3}), int32(3), true, "exit status 3")
	f.Add(wire.Pack(&gloveboxv1.End{Reason: gloveboxv1.End_REASON_SIGNALED, Signal: 9}), int32(-1), false, "signal: killed")
	f.Add(wire.Pack(&gloveboxv1.End{Reason: 99, Hits: []string{"memory"}, Usage: &gloveboxv1.Usage{CpuNs: -1}}), int32(0), false, "")
	f.Fuzz(func(t *testing.T, trailer string, code int32, exited bool, status string) {
		s := &wireproc.ProcessEvent_EndEvent{ExitCode: code, Exited: exited, Status: status}
		end := new(gloveboxv1.End)
		if wire.Unpack(trailer, end) != nil {
			end = nil
		}
		exit, err := exitOf(end, s)
		if err != nil {
			if _, ok := errors.AsType[*protocolError](err); !ok {
				t.Errorf("%v", err)
			}
			return
		}
		checkExit(t, exit)
		if exit.Reason == backend.ReasonExited && (!exited || int32(exit.Code) != code) {
			t.Errorf("%v of %v", exit, s)
		}
	})
}

// FuzzEntry decodes a file's description.
func FuzzEntry(f *testing.F) {
	for _, e := range []*wirefs.EntryInfo{
		{Name: "a", Path: "/a", Mode: 0o644, Size: 1}, {Name: "..", Path: "/"}, {Name: "a/b", Path: "a", Size: -1, Mode: 1 << 31},
	} {
		b, err := proto.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e := new(wirefs.EntryInfo)
		if proto.Unmarshal(b, e) != nil {
			return
		}
		i, err := infoOfEntry(e)
		if err != nil {
			return
		}
		if n := i.Name(); n != "/" && (path.Base(n) != n || n == "." || n == ".." || strings.Contains(n, "\x00")) {
			t.Errorf("name %q", n)
		}
		if i.Size() < 0 || !path.IsAbs(i.attr.Path) {
			t.Errorf("%+v", i)
		}
		if _, err := i.ModTime().MarshalJSON(); err != nil {
			t.Errorf("time: %v", err)
		}
		_ = fs.FormatFileInfo(i)
	})
}

func TestCodec_boundsElements(t *testing.T) {
	t.Parallel()
	many := make([]*wirefs.EntryInfo, maxFields+1)
	for i := range many {
		many[i] = &wirefs.EntryInfo{}
	}
	b, err := codec{}.Marshal(&wirefs.ListDirResponse{Entries: many})
	if err != nil {
		t.Fatal(err)
	}
	if err := (codec{}).Unmarshal(b, &wirefs.ListDirResponse{}); err == nil {
		t.Error("too many elements are taken")
	}
	if err := (codec{}).Unmarshal(b[2:], &wirefs.ListDirResponse{}); err != nil {
		t.Errorf("as many as allowed: %v", err)
	}
}

func TestBefore(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"": false, "0.5.7": false, "0.5.6": true, "0.6.0": false, "v0.4.10": true, "1.0.0": false, "0.5": true, "0.5.7-rc1": false,
	} {
		if got := before(version, 0, 5, 7); got != want {
			t.Errorf("%q: %v", version, got)
		}
	}
}

func TestClock_leavesWritersOut(t *testing.T) {
	t.Parallel()
	due := time.Now()
	c := &clock{due: due, grace: time.Second}
	if left := c.left(due.Add(-time.Minute)); left != time.Minute+time.Second {
		t.Errorf("before: %v", left)
	}
	if left := c.left(due.Add(2 * time.Second)); left != 0 {
		t.Errorf("overdue: %v", left)
	}
	c.entered = due.Add(-time.Hour) // a write that began before and goes on
	if left := c.left(due.Add(time.Hour)); left != time.Second {
		t.Errorf("in a writer: %v", left)
	}
	c.entered, c.spent = time.Time{}, time.Hour
	if left := c.left(due.Add(time.Hour + 900*time.Millisecond)); left != 100*time.Millisecond {
		t.Errorf("after a writer: %v", left)
	}
}
