//go:build linux

package hostiletest_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// attack is one case: a hostile program, the sandbox it runs in, and how it is
// judged.
type attack struct {
	id      string
	program string // a file in testdata, whose ending says its language
	args    []string
	limits  backend.Limits
	timeout time.Duration // of the command; 20 s when 0
	user    string        // inside; "" is the default one
	input   string        // standard input
	only    string        // the modes it is for; "" is every one

	// before readies victims, canaries and listeners, and adds arguments.
	before func(*scene, *box)
	// during runs once the program has said READY; then its input ends.
	during func(*scene, *box)
	// inside judges how the program ended and what it said; when it is nil, no
	// try of those reported may have succeeded.
	inside func(*scene, *outcome)
	// outside judges by what the host shows, while the sandbox is still there.
	outside func(*scene, *box, *outcome)

	control control
}

// control is how the same program must succeed without a sandbox.
type control struct {
	// none says why there can be no control; the test then rests on others.
	none string
	// args replace the attack's, for what would hurt the host.
	args []string
	// uid runs it as another user, where root runs the tests.
	uid int
	// spaces gives it namespaces of its own in root's mode as well.
	spaces uintptr
	// plain runs it on the host's own mounts: for programs that write nothing.
	plain bool
	// limits are shell commands before the program.
	shell string
	// works judges it; when it is nil, a try that fails inside must succeed
	// outside, for at least one.
	works func(*scene, *outcome)
	// shows are tries that must succeed outside for root.
	shows []string
	// fact is why nothing succeeds outside for an unprivileged user.
	fact string
}

// scene is one run of an attack.
type scene struct {
	*testing.T
	a       *attack
	nonce   string
	args    []string // of the program inside
	outArgs []string // of the program outside
	dir     string   // of the control
	pen     *pen
	kept    map[string]any // what before hands on
}

// outcome is how a program ended, inside or outside.
type outcome struct {
	exit   backend.Exit // inside
	code   int          // outside: its status, -1 when it was killed
	signal syscall.Signal
	stdout []byte
	stderr []byte
	took   time.Duration
	cpu    time.Duration // outside, of all that was waited for
	said   *report       // nil: it said nothing
}

// report is what a program says at its end, with the run's nonce.
type report struct {
	Nonce string            `json:"nonce"`
	Tries map[string]string `json:"tries"` // "ok", or the error's name
	N     int               `json:"n"`     // how often something worked
	Errno string            `json:"errno"` // what ended it
	Text  string            `json:"text"`
}

func nonce() string { return strings.ToLower(rand.Text())[:16] }

// grace is what a loaded machine may take on top of what is promised.
func grace() time.Duration {
	data, _ := os.ReadFile("/proc/loadavg")
	var load float64
	if _, err := fmt.Sscan(string(data), &load); err == nil && load > 4 {
		return 4 * time.Second
	}
	return 500 * time.Millisecond
}

func (a attack) run(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { verdict(t, a.id) })
	if a.only != "" && !strings.Contains(a.only, w.mode) {
		declared(t, "this mode does not claim it")
	}
	if (sentry() || w.target.engine) && a.timeout > 0 && a.timeout < 3*time.Second {
		a.timeout = 4*a.timeout + grace() // an interpreter takes that much longer to start
	}
	if limitIsRefused(t, a.limits) {
		declared(t, "the limit is refused")
	}
	s := &scene{T: t, a: &a, nonce: nonce(), args: slices.Clone(a.args), kept: map[string]any{}}
	out := s.attackInside()
	if a.control.none == "" {
		s.runControl(out)
	}
}

// limitIsRefused tells whether the mode does not claim the limit that is attacked,
// and demands that it is refused then.
func limitIsRefused(t *testing.T, l backend.Limits) bool {
	t.Helper()
	if l.Inodes == 0 || w.ex.Capabilities().Claim(backend.ControlInodes).Enforcement != backend.Unsupported {
		return false
	}
	if _, err := w.ex.Create(t.Context(), backend.Spec{Limits: l}); !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("open: a limit that is not held was not refused: %v", err)
	}
	return true
}

// attackInside runs the program in a sandbox.
func (s *scene) attackInside() *outcome {
	s.Helper()
	a := s.a
	b := newBox(s.T, backend.Spec{Limits: a.limits})
	b.sample(s.T)
	before := hostState(s.T)
	s.upload(b)
	if a.before != nil {
		a.before(s, b)
	}
	out := s.start(b)
	if a.inside != nil {
		a.inside(s, out)
	} else {
		s.blocked(out)
	}
	if a.outside != nil {
		a.outside(s, b, out)
	}
	s.emulatedOnly(b, before)
	return out
}

// upload puts the program where it can be run.
func (s *scene) upload(b *box) {
	s.Helper()
	for _, name := range s.files() {
		data, err := os.ReadFile(name)
		if err != nil {
			s.Fatal(err)
		}
		if err := backend.WriteFile(s.Context(), b.Files(), filepath.Base(name), data, 0o755); err != nil {
			s.Fatal(err)
		}
	}
}

// files are those that the program needs.
func (s *scene) files() []string {
	path := filepath.Join("testdata", s.a.program)
	switch filepath.Ext(path) {
	case ".py":
		return []string{"testdata/probe.py", path}
	case ".c":
		return []string{compiled(s.T, path)}
	}
	return []string{path}
}

// argv is the program with its arguments, in a directory.
func (s *scene) argv(dir string, args []string) []string {
	path := filepath.Join(dir, filepath.Base(s.files()[len(s.files())-1]))
	head := []string{path}
	switch filepath.Ext(path) {
	case ".py":
		head = []string{"/usr/bin/python3", "-u", path}
	case ".sh":
		head = []string{"/bin/sh", path}
	}
	return append(append(head, s.nonce), args...)
}

// start runs the program and waits for its end.
func (s *scene) start(b *box) *outcome {
	s.Helper()
	var out outcome
	var stdout, stderr watched
	pr, pw := io.Pipe()
	defer pw.Close()
	cmd := backend.Command{
		Args: s.argv(backend.DefaultHome, s.args), User: s.a.user, Timeout: s.a.timeout,
		Env: map[string]string{"HOSTILE_RUN": s.nonce}, Output: backend.Output{Stdout: &stdout, Stderr: &stderr},
		Stdin: strings.NewReader(s.a.input),
	}
	if cmd.Timeout == 0 {
		cmd.Timeout = 20 * time.Second
		if sentry() {
			cmd.Timeout *= 3
		}
	}
	if s.a.during != nil {
		cmd.Stdin = pr
	}
	began := time.Now()
	p, err := b.Start(s.Context(), cmd)
	if err != nil {
		s.Fatal(err)
	}
	if s.a.during != nil {
		if stdout.saying("READY", p) {
			s.a.during(s, b)
		} else {
			s.Errorf("inconclusive: the program never was ready: %.600s%.600s", stdout.bytes(), stderr.bytes())
		}
		pw.Close()
	}
	ctx, cancel := context.WithTimeout(s.Context(), cmd.Timeout+20*time.Second)
	defer cancel()
	if out.exit, err = p.Wait(ctx); err != nil {
		s.Fatalf("the outcome inside is unknown: %v\n%.600s%.600s", err, stdout.bytes(), stderr.bytes())
	}
	out.took, out.stdout, out.stderr = time.Since(began), stdout.bytes(), stderr.bytes()
	out.said = parse(out.stdout, s.nonce)
	return &out
}

// runControl runs the program without a sandbox.
func (s *scene) runControl(in *outcome) {
	s.Helper()
	c := s.a.control
	s.readyOutside()
	if s.outArgs == nil {
		s.outArgs = slices.Clone(c.args)
	}
	if c.args == nil && len(s.outArgs) == 0 {
		s.outArgs = s.args
	}
	out := s.outsider(c.spaces, c.uid)
	if c.works != nil {
		c.works(s, out)
		return
	}
	tries := s.tries(out, "outside")
	if w.mode == modeUserns {
		// A user namespace gives an unprivileged user what sandboxes must not.
		own := uintptr(syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS)
		for name, how := range s.tries(s.outsider(own, 0), "in a user namespace") {
			if how == "ok" {
				tries[name] = how
			}
		}
	}
	s.discriminates(in, tries)
}

// readyOutside makes a pen and puts the program into a directory.
func (s *scene) readyOutside() {
	s.Helper()
	s.pen, s.dir = newPen(s.T), openDir(s.T)
	for _, f := range s.files() {
		copyFile(s.T, f, filepath.Join(s.dir, filepath.Base(f)), 0o755)
	}
}

// throwAway gives root's controls mounts of their own, in which the host's
// directories can be written and nothing of it stays: an overlay in memory over
// each, and a read-only root. Only the directories for temporary files are the
// host's.
const throwAway = `mount --make-rprivate / && mount -t tmpfs none "$0" || exit 98
for d in /etc /usr /opt /home /root /srv /boot /run /mnt /media /var/lib /var/cache /var/spool /var/log; do
	[ -d "$d" ] && [ ! -L "$d" ] || continue
	mkdir -p "$0/u$d" "$0/w$d" && mount -t overlay none -o "lowerdir=$d,upperdir=$0/u$d,workdir=$0/w$d" "$d" || exit 98
done
mount --bind /tmp /tmp && mount --bind /var/tmp /var/tmp && mount -o remount,bind,ro / || exit 98
cd "$PWD" && exec "$@"`

// outsider runs the program in the pen.
func (s *scene) outsider(spaces uintptr, uid int) *outcome {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	if slices.Contains(s.outArgs, "/") || slices.Contains(s.outArgs, "1") {
		s.Fatalf("a control with the arguments %q would hurt the host", s.outArgs)
	}
	argv := s.argv(s.dir, s.outArgs)
	if sh := s.a.control.shell; sh != "" {
		argv = append([]string{"/bin/sh", "-c", sh + "\nexec \"$0\" \"$@\""}, argv...)
	}
	if os.Geteuid() == 0 && uid == 0 && !s.a.control.plain {
		// Security: what a control writes must not stay on the host.
		spaces |= syscall.CLONE_NEWNS
		argv = append([]string{"/bin/sh", "-c", throwAway, openDir(s.T)}, argv...)
	}
	cmd := s.pen.command(ctx, argv...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "HOSTILE_RUN="+s.nonce)
	cmd.SysProcAttr.Cloneflags = spaces
	if spaces != 0 && os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
	}
	if cmd.SysProcAttr.Cloneflags&syscall.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	if uid != 0 && os.Geteuid() == 0 {
		s.pen.open(s.T, uid)
		if err := os.Chown(s.dir, uid, uid); err != nil {
			s.Fatal(err)
		}
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	cmd.Stdin = strings.NewReader(s.a.input)
	for _, fd := range []int{leakedFile, leakedDir} {
		for 3+len(cmd.ExtraFiles) < fd {
			cmd.ExtraFiles = append(cmd.ExtraFiles, nil)
		}
		f := inherited(s.T, fd)
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	var stdout, stderr watched
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	err := cmd.Run()
	out := &outcome{took: time.Since(began), stdout: stdout.bytes(), stderr: stderr.bytes(), code: cmd.ProcessState.ExitCode()}
	out.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) && !errors.Is(err, exec.ErrWaitDelay) {
		s.Fatalf("the control: %v", err)
	}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		out.signal = ws.Signal()
	}
	out.said = parse(out.stdout, s.nonce)
	return out
}
