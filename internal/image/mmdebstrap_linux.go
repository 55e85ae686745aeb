package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// sourceDate is the date of everything that has no date of its own.
const sourceDate = "1735689600"

// debstrap builds a Debian root file system with mmdebstrap.
type debstrap struct {
	program string   // mmdebstrap's name or path
	sources []string // lines of sources.list; empty: the host's
	report  func(Progress)
	scratch string // an empty directory, removed by the caller
}

// run gives the archive of d to consume, which reads all of it. When it
// returns, no process of the build is left.
func (b *debstrap) run(ctx context.Context, d Definition, consume func(io.Reader) error) error {
	program, err := exec.LookPath(b.program)
	if err != nil {
		return &backend.Error{
			Op: "image", Kind: backend.ErrUnavailable, Err: errors.New("mmdebstrap is not installed"),
			Fix: "install it: apt-get install mmdebstrap",
		}
	}
	finish := filepath.Join(b.scratch, "finish.sh")
	script, err := finishScript()
	if err != nil {
		return err
	}
	if err := os.WriteFile(finish, script, 0o755); err != nil {
		return diskError("make a directory to build in", err)
	}
	args := []string{program}
	root := os.Geteuid() == 0
	if root {
		// Whatever kills us, the kernel ends the build with all its processes
		// and mounts.
		unshare, err := exec.LookPath("unshare")
		if err != nil {
			return &backend.Error{
				Op: "image", Kind: backend.ErrUnavailable, Err: errors.New("unshare is not installed"),
				Fix: "install it: apt-get install util-linux",
			}
		}
		args = []string{unshare, "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--", program, "--mode=root"}
	} else {
		if err := canUnshare(); err != nil {
			return err
		}
		args = append(args, "--mode=unshare")
	}
	args = append(args, b.arguments(ctx, d, finish)...)
	out := &outputReader{report: b.report, now: Progress{Image: d.Name, Phase: "starting"}}
	b.report(out.now)
	err = b.start(ctx, args, consume, out)
	if err == nil || ctx.Err() != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return err
	}
	return b.explain(err, out)
}

func (b *debstrap) arguments(ctx context.Context, d Definition, finish string) []string {
	args := []string{
		"--verbose", "--format=tar", "--variant=apt", "--architectures=" + architecture(), "--skip=output/dev",
		"--include=" + strings.Join(d.Packages, ","), "--customize-hook=sh " + finish + ` "$1"`,
		// Nobody reads these inside; licences stay.
		"--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=path-exclude=/usr/share/info/*",
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/*/copyright",
	}
	if len(d.Packages) == 0 {
		args = slices.DeleteFunc(args, func(a string) bool { return a == "--include=" })
	}
	for _, o := range hostAptOptions(ctx) {
		args = append(args, "--aptopt="+o)
	}
	sources := b.sources
	if len(sources) == 0 {
		sources = hostSources(ctx, d.Suite)
	}
	return append(append(args, "--", d.Suite, "-"), sources...)
}

// environ is what the build is started with: nothing of ours is for the
// scripts of packages.
func (b *debstrap) environ() []string {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/nonexistent",
		"SOURCE_DATE_EPOCH=" + sourceDate, "PYTHONHASHSEED=0", "TMPDIR=" + b.scratch,
	}
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy"} {
		for _, n := range []string{name, strings.ToUpper(name)} {
			if v := os.Getenv(n); v != "" {
				env = append(env, n+"="+v)
			}
		}
	}
	return env
}

// start starts args, gives standard output to consume and waits for the end of
// all of it.
func (b *debstrap) start(ctx context.Context, args []string, consume func(io.Reader) error, out *outputReader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env, cmd.Dir = b.environ(), b.scratch
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		// mmdebstrap then ends what it started itself.
		cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
		cmd.WaitDelay = 20 * time.Second
	}
	stderr, errw, err := os.Pipe()
	if err != nil {
		return err
	}
	defer stderr.Close() //nolint:errcheck // read side
	stdout, outw, err := os.Pipe()
	if err != nil {
		errw.Close() //nolint:errcheck // nobody wrote
		return err
	}
	defer stdout.Close() //nolint:errcheck // read side
	cmd.Stderr, cmd.Stdout = errw, outw
	ended, err := background(cmd)
	errw.Close() //nolint:errcheck // the build has its own
	outw.Close() //nolint:errcheck // likewise
	if err != nil {
		return err
	}
	read := make(chan struct{})
	go func() { // ends with the last process
		defer close(read)
		out.read(stderr)
	}()
	consumed := consume(stdout)
	if consumed != nil {
		cancel() // nobody reads the archive any more
	}
	err = <-ended
	select {
	case <-read:
	case <-time.After(30 * time.Second):
		// A process of the build cannot be ended; the sweep finds its files.
		stderr.Close() //nolint:errcheck // read side
		<-read
	}
	if consumed != nil && !errors.Is(consumed, errShort) {
		return consumed
	}
	if err != nil {
		return err
	}
	return consumed
}

// background starts cmd on a thread that lives as long as it, since for the
// kernel a parent is the thread: ended gets how cmd ended.
func background(cmd *exec.Cmd) (ended <-chan error, err error) {
	started, end := make(chan error, 1), make(chan error, 1)
	go func() { // ends with cmd, which the caller waits for
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			end <- cmd.Wait()
		}
	}()
	return end, <-started
}

// explain says what to do about a build that failed.
func (b *debstrap) explain(err error, out *outputReader) error {
	if be := (*backend.Error)(nil); errors.As(err, &be) {
		return err
	}
	if isNoSpace(err) {
		return diskError("unpack the image", err)
	}
	why := out.failures()
	e := &backend.Error{Op: "image", Kind: backend.ErrInternal, Err: fmt.Errorf("mmdebstrap: %w: %s", err, why)}
	all := strings.Join(out.last, "\n")
	has := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(all, t) })
	}
	free, known := freeBytes(b.scratch)
	switch {
	case has("No space left on device", "not have enough free space") || known && free < 16<<20:
		e.Kind, e.Fix = backend.ErrCapacity, "free some space in "+filepath.Dir(b.scratch)+", or set TMPDIR to a directory on a larger disk"
	case has("Unable to locate package", "has no installation candidate"):
		e.Kind, e.Fix = backend.ErrInvalid, "name packages that the archive has"
	case has("Could not resolve", "Could not connect", "Unable to connect", "Temporary failure", "Connection timed out", "Network is unreachable",
		"Connection failed", "404  Not Found", "503  ", "502  "):
		e.Kind, e.Fix = backend.ErrUnavailable, "see that the archive in /etc/apt/sources.list.d can be reached (apt-get update), or name another one with --source"
	case has("NO_PUBKEY", "is not signed"):
		e.Kind, e.Fix = backend.ErrUnavailable, "install the archive's keys: apt-get install debian-archive-keyring"
	case has("unshare failed", "Operation not permitted"):
		e.Kind, e.Fix = backend.ErrUnavailable, "build where namespaces can be made: as root of the host, or in a container with CAP_SYS_ADMIN"
	}
	return e
}
