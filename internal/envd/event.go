package envd

import (
	"io"
	"math"
	"net/http"
	"time"

	"connectrpc.com/connect"

	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	wireproc "github.com/glovebox-dev/glovebox/internal/envd/wire/process"
)

// event is one message of a command's stream, whichever RPC it came by.
type event struct {
	kind   eventKind
	pid    uint32
	data   []byte
	status *wireproc.ProcessEvent_EndEvent // of Start and Connect
	end    *gloveboxv1.End                 // of Attach
}

type eventKind int

const (
	evIdle eventKind = iota // a keepalive, or what a newer server sends
	evStart
	evStdout
	evStderr
	evTerminal
	evEnd
)

func ofProcess(e *wireproc.ProcessEvent) event {
	switch e := e.GetEvent().(type) {
	case *wireproc.ProcessEvent_Start:
		return event{kind: evStart, pid: e.Start.GetPid()}
	case *wireproc.ProcessEvent_Data:
		switch d := e.Data.GetOutput().(type) {
		case *wireproc.ProcessEvent_DataEvent_Stdout:
			return event{kind: evStdout, data: d.Stdout}
		case *wireproc.ProcessEvent_DataEvent_Stderr:
			return event{kind: evStderr, data: d.Stderr}
		case *wireproc.ProcessEvent_DataEvent_Pty:
			return event{kind: evTerminal, data: d.Pty}
		}
	case *wireproc.ProcessEvent_End:
		return event{kind: evEnd, status: e.End}
	}
	return event{}
}

func ofAttach(m *gloveboxv1.AttachResponse) event {
	switch e := m.GetEvent().(type) {
	case *gloveboxv1.AttachResponse_Start_:
		return event{kind: evStart, pid: e.Start.GetPid()}
	case *gloveboxv1.AttachResponse_Stdout:
		return event{kind: evStdout, data: e.Stdout}
	case *gloveboxv1.AttachResponse_Stderr:
		return event{kind: evStderr, data: e.Stderr}
	case *gloveboxv1.AttachResponse_Pty:
		return event{kind: evTerminal, data: e.Pty}
	case *gloveboxv1.AttachResponse_End:
		return event{kind: evEnd, end: e.End}
	}
	return event{}
}

const (
	// maxPID is above the kernel's own (1<<22), since the agent numbers
	// programs that could not be executed from 1<<30.
	maxPID = math.MaxInt32
	// idleBurst and idleRate bound messages that carry nothing: a peer that
	// sends more keeps us busy for nothing.
	idleBurst = 1000
	idleRate  = 20 // a second
)

// sequence checks the order of a stream's events.
type sequence struct {
	started, ended bool
	idle           int
}

// check says what is wrong with ev as the next event, elapsed after the
// stream was opened.
func (s *sequence) check(ev event, elapsed time.Duration) error {
	if ev.kind == evIdle || ev.kind >= evStdout && ev.kind <= evTerminal && len(ev.data) == 0 {
		if s.idle++; float64(s.idle) > idleBurst+idleRate*elapsed.Seconds() {
			return protocolf("a flood of empty messages")
		}
	}
	switch {
	case s.ended:
		return protocolf("an event after the end")
	case ev.kind == evIdle:
	case ev.kind == evStart && s.started:
		return protocolf("a second start")
	case ev.kind == evStart && (ev.pid == 0 || ev.pid > maxPID):
		return protocolf("process ID %d", ev.pid)
	case ev.kind != evStart && !s.started:
		return protocolf("an event before the start")
	}
	s.started = s.started || ev.kind == evStart
	s.ended = s.ended || ev.kind == evEnd
	return nil
}

// source is a stream of events. next returns io.EOF at the clean end; header
// may be asked after the first next, trailer after the last.
type source interface {
	next() (event, error)
	header() http.Header
	trailer() http.Header
	close()
}

// rpc is a source over one of the streaming RPCs.
type rpc[M any] struct {
	stream  *connect.ServerStreamForClient[M]
	convert func(*M) event
}

func (r rpc[M]) next() (event, error) {
	if r.stream.Receive() {
		return r.convert(r.stream.Msg()), nil
	}
	if err := r.stream.Err(); err != nil {
		return event{}, err
	}
	return event{}, io.EOF
}

func (r rpc[M]) header() http.Header  { return r.stream.ResponseHeader() }
func (r rpc[M]) trailer() http.Header { return r.stream.ResponseTrailer() }
func (r rpc[M]) close()               { _ = r.stream.Close() }
