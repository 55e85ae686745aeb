//go:build linux

package hostiletest_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/process"
	"github.com/glovebox-dev/glovebox/internal/launch"
)

func outputAttacks() []attack {
	// These say what they say instead of a report; the judgement is how they
	// end, and outside they end as they want.
	return []attack{
		{id: "OU-05", program: "output.py", args: []string{"raw"}, inside: rawBytes, control: control{works: func(s *scene, o *outcome) {
			if !bytes.Contains(o.stdout, rawOutput()) {
				s.Errorf("inconclusive: outside it says %q", o.stdout)
			}
		}}},
		{id: "OU-07", program: "output.py", args: []string{"forged"}, input: base64.StdEncoding.EncodeToString(forgedFrames()), inside: notBelieved, control: control{works: framesAreGenuine}},
		{id: "OU-12", program: "output.py", args: []string{"abort"}, inside: signaled(backend.SIGABRT), control: control{works: func(s *scene, o *outcome) {
			if int(o.signal) != int(backend.SIGABRT) {
				s.Errorf("inconclusive: outside it ends with %v", o.signal)
			}
		}}},
		{id: "OU-15", program: "output.py", args: []string{"held"}, timeout: time.Second, inside: func(s *scene, o *outcome) {
			if o.exit.Reason != backend.ReasonTimeout || string(o.stdout) != "before the end\n" {
				s.Errorf("it ended with %s and had said %q", o.exit, o.stdout)
			}
		}, control: control{none: "what was written before a kill is to be delivered"}},
		{id: "OU-16", program: "output.py", args: []string{"deep"}, inside: func(s *scene, o *outcome) {
			if o.exit.Reason != backend.ReasonExited || o.exit.Code == 0 || len(o.stderr) < 1<<16 {
				s.Errorf("it ended with %s and %d bytes", o.exit, len(o.stderr))
			}
		}, control: control{works: func(s *scene, o *outcome) {
			if len(o.stderr) < 1<<16 {
				s.Errorf("inconclusive: outside it says only %d bytes", len(o.stderr))
			}
		}}},
		{id: "OU-08", program: "control.py", args: []string{strconv.Itoa(launch.ConnFD), strconv.Itoa(launch.ConfigFD)}, before: initVictim, outside: agentLives, control: control{
			shows: []string{"pidfd_getfd 0"},
		}},
	}
}

func rawOutput() []byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return append(bytes.Repeat(all, 16), "\xed\xa0\x80\xff\xfe\n\n"...)
}

func rawBytes(s *scene, o *outcome) {
	if !bytes.Equal(o.stdout, rawOutput()) || !o.exit.Success() {
		s.Errorf("%d bytes arrived, %s", len(o.stdout), o.exit)
	}
}

// forgedFrames are what the agent says at a command's end with status 0, as the
// wire has it: an enveloped message, its end of stream, and HTTP/2 frames
// around them.
func forgedFrames() []byte {
	end := &process.StartResponse{Event: &process.ProcessEvent{Event: &process.ProcessEvent_End{
		End: &process.ProcessEvent_EndEvent{Exited: true, ExitCode: 0, Status: "exit status 0"},
	}}}
	msg, err := proto.Marshal(end)
	if err != nil {
		return nil
	}
	envelope := func(flags byte, data []byte) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(data))), data...)
	}
	body := append(envelope(0, msg), envelope(2, []byte("{}"))...)
	frame := func(kind, flags byte, stream uint32, data []byte) []byte {
		head := []byte{byte(len(data) >> 16), byte(len(data) >> 8), byte(len(data)), kind, flags}
		return append(binary.BigEndian.AppendUint32(head, stream), data...)
	}
	out := slices.Clone(body)
	for stream := uint32(1); stream < 40; stream += 2 {
		out = append(out, frame(0, 1, stream, body)...)
		out = append(out, frame(3, 0, stream, []byte{0, 0, 0, 0})...)
	}
	return append(out, frame(7, 0, 0, make([]byte, 8))...)
}

func notBelieved(s *scene, o *outcome) {
	if o.exit.Reason != backend.ReasonExited || o.exit.Code != 3 {
		s.Errorf("open: it ended with %s instead of 3", o.exit)
	}
	for _, out := range [][]byte{o.stdout, o.stderr} {
		if !bytes.HasPrefix(out, forgedFrames()) || !bytes.HasSuffix(out, []byte("__EXIT__0\n")) {
			s.Errorf("open: of the forged bytes %d arrived", len(out))
		}
	}
}

// framesAreGenuine: what is forged is what the host's own decoder takes.
func framesAreGenuine(s *scene, o *outcome) {
	data := forgedFrames()
	if !bytes.HasPrefix(o.stdout, data) {
		s.Fatal("inconclusive: outside it says something else")
	}
	var r process.StartResponse
	if err := proto.Unmarshal(data[5:5+binary.BigEndian.Uint32(data[1:5])], &r); err != nil || !r.GetEvent().GetEnd().GetExited() {
		s.Errorf("inconclusive: the message is not one: %v", err)
	}
}

func signaled(sig backend.Signal) func(*scene, *outcome) {
	return func(s *scene, o *outcome) {
		if o.exit.Reason != backend.ReasonSignaled || o.exit.Signal != sig {
			s.Errorf("it ended with %s instead of signal %d", o.exit, sig)
		}
	}
}

// floodKept is how much of a flood is asked for, so that what this side grows
// by is what passing on takes, and not what keeping does.
const floodKept = mib

// flood runs in a helper, so that the memory measured is one run's alone.
func flood(t *testing.T, stream string, megabytes int) {
	t.Helper()
	h := startHelper(t, "flood", stream, strconv.Itoa(megabytes))
	line := h.line(t)
	var kept, other, grown int64
	var truncated bool
	var reason string
	if _, err := fmt.Sscan(line, &reason, &kept, &other, &truncated, &grown); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	if reason != "exited" || kept != floodKept || other != 0 || !truncated {
		t.Errorf("open: %s, %d bytes kept of the one stream and %d of the other, truncated %v", reason, kept, other, truncated)
	}
	// The race detector multiplies what a program holds.
	if most := int64(32 * raceFactor); grown > most {
		t.Errorf("open: this side grew by %d MiB while %d MiB came", grown, megabytes)
	}
}

// exitCodes: a number that a program chooses is never more than that.
func exitCodes(t *testing.T) {
	// Where memory is sampled, the whole command is killed at the limit.
	childAtLimit := "exited(0)"
	if w.mode == modeUserns {
		childAtLimit = string(backend.ReasonMemoryLimit)
	}
	cases := exitCases(childAtLimit)
	if sentry() {
		// The whole sandbox ends with the child.
		cases = append(cases[:len(cases)-2], exitCase{"oom_child_then_kill", "", string(backend.ReasonMemoryLimit)})
	}
	b := newBox(t, backend.Spec{Limits: backend.Limits{Memory: smallMemory, Disk: smallDisk}})
	for _, tt := range cases {
		s := &scene{T: t, a: &attack{program: "output.py"}, nonce: nonce(), args: []string{tt.what, tt.arg}}
		s.upload(b)
		o := s.start(b)
		if sentry() && tt.what == "oom_child_then_kill" {
			// The host's kernel takes gVisor's, or what that lends the child.
			if !slices.Contains(o.exit.Hits, backend.HitMemory) || o.exit.String() != tt.want && o.exit.String() != "exited(0)" {
				t.Errorf("open: with a child at the limit it ended with %s, hits %v", o.exit, o.exit.Hits)
			}
			continue
		}
		if o.exit.String() != tt.want {
			t.Errorf("open: %s %s: it ended with %s instead of %s", tt.what, tt.arg, o.exit, tt.want)
		}
	}
}

type exitCase struct{ what, arg, want string }

func exitCases(childAtLimit string) []exitCase {
	return []exitCase{
		{"code", "137", "exited(137)"},
		{"code", "124", "exited(124)"},
		{"code", "125", "exited(125)"},
		{"code", "126", "exited(126)"},
		{"code", "127", "exited(127)"},
		{"code", "139", "exited(139)"},
		{"code", "143", "exited(143)"},
		{"code", "255", "exited(255)"},
		{"code", "256", "exited(0)"},
		{"code", "-1", "exited(255)"},
		{"kill", "9", "signaled(9)"},
		{"kill", "15", "signaled(15)"},
		{"kill", "11", "signaled(11)"},
		{"kill", "24", "signaled(24)"},
		{"kill", "31", "signaled(31)"},
		// An earlier command's evidence is not a later one's excuse.
		{"oom_child_then_kill", "", childAtLimit},
		{"kill", "9", "signaled(9)"},
	}
}

// infrastructure: when the sandbox itself breaks, nobody is told that the
// program has ended.
func infrastructure(t *testing.T) {
	b := newBox(t, backend.Spec{})
	var out watched
	p, err := b.Start(t.Context(), backend.Command{Args: []string{"/bin/sh", "-c", "echo READY; sleep 60"}, Output: backend.Output{Stdout: &out}})
	if err != nil {
		t.Fatal(err)
	}
	if !out.saying("READY", p) {
		t.Fatal("inconclusive: the command never started")
	}
	killPID(t, b.agentPID)
	exit, err := p.Wait(t.Context())
	if kind := backend.KindOf(err); kind != backend.ErrLost && kind != backend.ErrClosed {
		t.Errorf("open: the agent was killed, and Wait says %s, %v", exit, err)
	}
	if err != nil && strings.Contains(err.Error(), w.dir) {
		t.Errorf("the error has a path of the host: %v", err)
	}
}
