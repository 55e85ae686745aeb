//go:build linux

package hostiletest_test

import (
	"bytes"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
)

// fewFiles is the limit that those who open many meet, maxPTYs what a
// sandbox's own devpts has.
const (
	fewFiles = 256
	maxPTYs  = 64
)

func descriptorAttacks() []attack {
	return []attack{
		{id: "FD-01", program: "fds.py", args: []string{"opens"}, limits: backend.Limits{OpenFiles: fewFiles}, inside: fewOpened, control: control{
			shell: "ulimit -n $(ulimit -Hn)", works: atLeast(1000),
		}},
		{id: "FD-02", program: "fds.py", args: []string{"leaked"}, inside: nothingLeaked, control: control{shows: []string{"pread of 77", "openat of 78", "fchdir to 78", "more than 0 to 2"}}},
		{id: "FD-06", only: asRoot, program: "fds.py", args: []string{"inotify", "1"}, before: neighbourWatches, during: func(*scene, *box) {}, inside: atLeast(1), outside: neighbourWasFull, control: control{
			args: []string{"inotify", "200"}, uid: loneUID, works: func(s *scene, o *outcome) {
				if r := s.report(o, "outside"); r.Errno == "" {
					s.Errorf("inconclusive: %d instances are no limit here", r.N)
				}
			},
		}},
		{id: "FD-07", only: modeRoot + modeUserns, program: "fds.py", args: []string{"ptys"}, during: func(*scene, *box) {}, inside: atMost(maxPTYs), control: control{works: atLeast(100)}},
		{id: "FD-08", program: "fds.py", args: []string{"keys"}, control: control{shows: []string{"add_key to -3", "add_key to -4", "keyctl of the session", "join a session"}}},
		{id: "FD-09", program: "fds.py", args: []string{"queues"}, during: noHostQueues, inside: fewQueues, control: control{works: atLeast(1)}},
	}
}

func fewOpened(s *scene, o *outcome) {
	if r := s.report(o, "inside"); r.N > fewFiles || r.N < 8 || r.Errno != "EMFILE" {
		s.Errorf("open: %d were opened, then %q", r.N, r.Errno)
	}
}

func atLeast(n int) func(*scene, *outcome) {
	return func(s *scene, o *outcome) {
		if r := s.report(o, ""); r.N < n {
			s.Errorf("only %d, %s", r.N, r.Errno)
		}
	}
}

func atMost(n int) func(*scene, *outcome) {
	return func(s *scene, o *outcome) {
		if r := s.report(o, "inside"); r.N > n || r.Errno == "" {
			s.Errorf("open: %d, then %q", r.N, r.Errno)
		}
	}
}

// fewQueues: where the kernel is the sandbox's own, so are its queues, which are
// memory and counted as such.
func fewQueues(s *scene, o *outcome) {
	if sentry() {
		atLeast(1)(s, o)
		emulations.Store(s.Name(), true)
		return
	}
	atMost(256)(s, o)
}

func nothingLeaked(s *scene, o *outcome) {
	s.blocked(o)
	if bytes.Contains(o.stdout, []byte(w.token)) {
		s.Error("open: the secret of this process is in the output")
	}
}

// neighbourWatches takes all inotify instances that a user may have, in
// another sandbox.
func neighbourWatches(s *scene, _ *box) { neighbour(s, "fds.py", "inotify", "200") }

func neighbourWasFull(s *scene, b *box, o *outcome) {
	releaseNeighbour(s, b, o)
	if r := s.kept["neighbour"].(*report); r.Errno == "" && sentry() {
		emulations.Store(s.Name(), true) // each kernel has as many as there is memory for
	} else if r.Errno == "" {
		s.Errorf("inconclusive: the neighbour met no limit with %d", r.N)
	}
}

// noHostQueues: the sandbox's message queues do not exist here.
func noHostQueues(s *scene, _ *box) {
	name := append([]byte("hostile-"+s.nonce+"-0"), 0)
	fd, _, e := unix.RawSyscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(&name[0])), syscall.O_RDONLY, 0, 0, 0, 0)
	if e == 0 {
		_ = unix.Close(int(fd))
		s.Error("open: the host has the queue")
	}
	if e != unix.ENOENT {
		s.Errorf("inconclusive: %v", strings.ToLower(e.Error()))
	}
}
