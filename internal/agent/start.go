//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/process"
	"github.com/glovebox-dev/glovebox/internal/launch/spawn"
)

// plan is a checked request to start a command.
type plan struct {
	req     *process.StartRequest
	account Account
	dir     string
	env     []string
	path    string // PATH of the command's environment
	limits  *gloveboxv1.Limits
}

// prepare checks a request against the sandbox.
func (s *Server) prepare(req *process.StartRequest, a Account, limits *gloveboxv1.Limits) (*plan, error) {
	cfg := req.GetProcess()
	if cfg.GetCmd() == "" {
		return nil, fail(connect.CodeInvalidArgument, "cmd is empty")
	}
	for _, v := range append([]string{cfg.GetCmd(), cfg.GetCwd(), req.GetTag()}, cfg.GetArgs()...) {
		if strings.ContainsRune(v, 0) {
			return nil, fail(connect.CodeInvalidArgument, "cmd, args, cwd and tag must not contain NUL")
		}
	}
	if len(req.GetTag()) > maxTag {
		return nil, fail(connect.CodeInvalidArgument, "tag is longer than %d bytes", maxTag)
	}
	if limits.GetCpuTimeNs() < 0 || limits.GetWallTimeNs() < 0 || limits.GetOutputBytes() < 0 {
		return nil, fail(connect.CodeInvalidArgument, "limits must not be negative")
	}
	dir, err := s.workDir(cfg.GetCwd(), a)
	if err != nil {
		return nil, err
	}
	p := &plan{req: req, account: a, dir: dir, limits: limits}
	return p, p.setEnv(s.env(), cfg.GetEnvs())
}

// setEnv puts the environment together, later ones over earlier ones.
func (p *plan) setEnv(defaults, own map[string]string) error {
	env := map[string]string{
		"PATH": defaultPath, "HOME": p.account.Home, "USER": p.account.Name, "LOGNAME": p.account.Name,
	}
	maps.Copy(env, defaults)
	for k, v := range own {
		if err := checkEnv(k, v); err != nil {
			return connect.NewError(connect.CodeInvalidArgument, err)
		}
		env[k] = v
	}
	p.path = env["PATH"]
	for _, k := range slices.Sorted(maps.Keys(env)) {
		p.env = append(p.env, k+"="+env[k])
	}
	return nil
}

// checkEnv refuses variables that no program could receive as they are.
func checkEnv(k, v string) error {
	switch {
	case k == "" || strings.ContainsAny(k, "=\x00"):
		return fmt.Errorf("name of environment variable %q is empty or contains = or NUL", clip(k))
	case strings.ContainsRune(v, 0):
		return fmt.Errorf("environment variable %q contains NUL", clip(k))
	}
	return nil
}

// workDir finds the working directory. What the agent may not look at is left
// to the command itself.
func (s *Server) workDir(cwd string, a Account) (string, error) {
	if cwd == "" {
		cwd = s.DefaultDir()
	}
	dir := cwd
	switch {
	case dir == "":
		dir = a.Home
	case dir == "~" || strings.HasPrefix(dir, "~/"):
		dir = a.Home + dir[1:]
	case dir[0] == '~':
		return "", fail(connect.CodeInvalidArgument, "cwd '%s': the home of another account cannot be named", clip(cwd))
	}
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(a.Home, dir)
	}
	fi, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR):
		return "", fail(connect.CodeInvalidArgument, "cwd '%s' does not exist", clip(dir))
	case err == nil && !fi.IsDir():
		return "", fail(connect.CodeInvalidArgument, "cwd '%s' is not a directory", clip(dir))
	}
	return dir, nil
}

// start runs a plan. The returned subscriber is the starter's; the caller
// unsubscribes it. deadline, unless zero, kills the command.
func (s *Server) start(p *plan, deadline time.Time) (*command, *subscriber, error) {
	id, err := s.table.reserve()
	if err != nil {
		return nil, nil, err
	}
	c := &command{
		s: s, id: id, config: p.req.GetProcess(), tag: p.req.Tag, user: p.account.Name, dir: p.dir,
		tty: p.req.GetPty() != nil, limits: p.limits, ended: make(chan struct{}),
	}
	execErr, err := c.launch(p)
	if err != nil {
		if c.group != nil {
			_ = c.group.Close()
		}
		s.table.giveBack()
		return nil, nil, err
	}
	sub, err := c.subscribe(true, false)
	if err != nil {
		return nil, nil, err // not reached: nobody else knows the command
	}
	alive := s.table.add(c)
	if execErr != nil {
		s.wg.Go(func() { c.notExecuted(execErr) })
		return c, sub, nil
	}
	s.catchUp(c)
	if d := p.limits.GetWallTimeNs(); d > 0 {
		c.after(time.Duration(d), func() { c.kill(gloveboxv1.End_REASON_TIMEOUT) })
	}
	if !deadline.IsZero() {
		c.after(time.Until(deadline), c.expireDeadline)
	}
	if d := p.limits.GetCpuTimeNs(); d > 0 {
		s.wg.Go(func() { c.watchCPU(time.Duration(d)) })
	}
	for _, o := range c.outs {
		s.wg.Go(o.run)
	}
	s.watchScratch()
	s.wg.Go(c.await)
	if !alive {
		killSessions([]*command{c})
		c.shut()
	}
	return c, sub, nil
}

// launch makes the files and the process. execErr is why the program could not
// be executed, which is a result.
func (c *command) launch(p *plan) (execErr, err error) {
	if c.s.opts.Groups != nil {
		if c.group, err = c.s.opts.Groups.New(c.id); err != nil {
			c.group = nil
			return nil, fail(connect.CodeInternal, "group of the command: %v", err)
		}
	}
	owner := &p.account
	if c.s.opts.OnlyUser != nil {
		owner = nil
	}
	e, err := openFor(owner, func() (*ends, error) {
		if size := p.req.GetPty(); size != nil {
			return openTerminal(size.GetSize().GetCols(), size.GetSize().GetRows())
		}
		return openPipes(p.req.Stdin == nil || p.req.GetStdin())
	})
	if err != nil {
		return nil, fail(connect.CodeResourceExhausted, "files of the command: %v", err)
	}
	attr := spawn.Attr{
		Argv: append([]string{p.req.GetProcess().GetCmd()}, p.req.GetProcess().GetArgs()...),
		Env:  p.env, Dir: p.dir, Files: e.child, Terminal: e.tty,
		SetUser: owner != nil, UID: p.account.UID, GID: p.account.GID, Groups: p.account.Groups,
		Confine: c.s.opts.Confine,
	}
	if c.group != nil {
		attr.Cgroup = c.group.Cgroup()
	}
	c.started = time.Now()
	proc, err := c.s.execute(attr, p.path)
	e.closeChild()
	if err != nil {
		for _, f := range e.closer {
			_ = f.Close()
		}
		return classify(err, p.dir)
	}
	c.proc, c.pid = proc, uint32(proc.PID)
	if e.in != nil {
		c.in = newInput(c.s, e.in, e.tty)
	}
	for i, f := range e.out {
		kind := stream(i)
		if e.tty {
			kind = streamPTY
		}
		o := newOutput(kind, f)
		o.c = c
		c.outs = append(c.outs, o)
	}
	return nil, nil
}

// execute starts attr.Argv[0]: as it is when it has a slash, else the first of
// that name along path that the account can execute, as execvp does. The
// attempts are the child's own, so its account and its confinement decide.
func (s *Server) execute(attr spawn.Attr, path string) (*spawn.Process, error) {
	name := attr.Argv[0]
	if strings.Contains(name, "/") {
		return s.executeFile(attr, absolute(attr.Dir, name))
	}
	denied := error(&spawn.Error{Stage: stageExec, Errno: unix.ENOENT})
	for _, dir := range filepath.SplitList(path) {
		file := absolute(attr.Dir, filepath.Join(dir, name))
		// What is plainly not there costs no fork.
		if fi, err := os.Stat(file); errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			continue
		} else if err == nil && (fi.IsDir() || fi.Mode()&0o111 == 0) {
			denied = &spawn.Error{Stage: stageExec, Errno: unix.EACCES}
			continue
		}
		p, err := s.executeFile(attr, file)
		switch errno, ok := refused(err); {
		case ok && errno == unix.EACCES:
			denied = err
		case !ok || !isMissing(errno):
			return p, err
		}
	}
	return nil, denied
}

// executeFile executes a file; one that is no program is a script of sh.
func (s *Server) executeFile(attr spawn.Attr, file string) (*spawn.Process, error) {
	attr.Path = file
	p, err := s.opts.Reaper.Start(attr)
	if errno, ok := refused(err); ok && errno == unix.ENOEXEC {
		attr.Path = "/bin/sh"
		attr.Argv = append([]string{"sh", file}, attr.Argv[1:]...)
		p, err = s.opts.Reaper.Start(attr)
	}
	return p, err
}

func absolute(dir, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

func isMissing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
}

// The steps of a start that are the request's to answer for.
const (
	stageExec = "exec"
	stageDir  = "directory"
)

// refused is the errno of an exec that the kernel did not do.
func refused(err error) (unix.Errno, bool) {
	var e *spawn.Error
	if errors.As(err, &e) && e.Stage == stageExec {
		return e.Errno, true
	}
	return 0, false
}

// classify tells a program that cannot be executed from a start that failed.
func classify(err error, dir string) (execErr, failure error) {
	var e *spawn.Error
	if !errors.As(err, &e) {
		return nil, fail(connect.CodeInternal, "start: %v", err)
	}
	switch e.Errno { //nolint:exhaustive // the others depend on the step
	case unix.E2BIG:
		return nil, fail(connect.CodeInvalidArgument, "arguments and environment are larger than the kernel takes: %v", e.Errno)
	case unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE:
		return nil, fail(connect.CodeResourceExhausted, "%v", err)
	}
	switch {
	case e.Stage == stageExec:
		return e.Errno, nil
	case e.Stage == stageDir && isMissing(e.Errno):
		return nil, fail(connect.CodeInvalidArgument, "cwd '%s' does not exist", clip(dir))
	case e.Stage == stageDir:
		return nil, fail(connect.CodeInvalidArgument, "cwd '%s' cannot be entered: %v", clip(dir), e.Errno)
	}
	return nil, fail(connect.CodeInternal, "%v", err)
}

// notExecuted ends a command whose program could not be executed as a shell
// would.
func (c *command) notExecuted(err error) {
	code, text := int32(126), err.Error()
	switch {
	case isMissing(err):
		code, text = 127, "not found"
	case errors.Is(err, unix.EACCES):
		text = "Permission denied"
	}
	kind, eol := streamStderr, "\n"
	if c.tty {
		kind, eol = streamPTY, "\r\n"
	}
	ch := c.s.newChunk()
	ch.data = append(ch.buf[:0], clip(c.config.GetCmd())+": "+text+eol...)
	c.publish(kind, ch)
	end := &gloveboxv1.End{Reason: gloveboxv1.End_REASON_EXITED, Code: code, Usage: c.usage()}
	c.mu.Lock()
	c.sealOutput(end)
	c.mu.Unlock()
	c.finish(end)
}

// expire ends the sandbox's time: its commands are killed, given a second to
// report it, and OnDeadline is called.
func (s *Server) expire() {
	if !s.enter() {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, time.Second)
	live := s.table.expire()
	for _, c := range live {
		c.kill(gloveboxv1.End_REASON_EXPIRED)
	}
	for _, c := range live {
		c.waitEnded(ctx)
	}
	cancel()
	s.wg.Done() // before the call, which may close the server
	if s.opts.OnDeadline != nil {
		s.once.Do(s.opts.OnDeadline)
	}
}
