package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/internal/lang"
)

// maxProgram bounds a program's source, which is held in memory.
const maxProgram = 32 << 20

// lifetimeSlack is what a sandbox lives longer than its command may.
const lifetimeSlack = time.Minute

// request is one run, ready to be made.
type request struct {
	spec    backend.Spec
	command backend.Command
	program *lang.Program // nil where a command is given instead
	args    []string      // of the program
	uploads []upload
	outs    []fetch
	warn    []string
}

// upload is a file to copy in. Exactly one of host and reader is set.
type upload struct {
	guest  string
	host   string
	reader io.Reader
}

// fetch is a file to copy out.
type fetch struct{ guest, host string }

// request makes sense of flags and arguments. dashed tells that the arguments
// follow "--", coded that -c was given.
func (a *App) request(f *runFlags, args []string, dashed, coded bool, cfg config.Config) (*request, error) {
	if f.tty && !f.explain {
		if err := a.needTTY(); err != nil {
			return nil, err
		}
	}
	limits := f.limits.Over(cfg.LimitsFor(f.template))
	wall, err := timeout(limits, f.limits.Timeout, f.detach)
	if err != nil {
		return nil, err
	}
	r := &request{}
	if r.spec, err = f.spec(limits, wall); err != nil {
		return nil, err
	}
	if r.command, err = a.command(f, r, wall); err != nil {
		return nil, err
	}
	if err := r.files(f, a.Stdin); err != nil {
		return nil, err
	}
	if err := a.source(f, r, args, dashed, coded); err != nil {
		return nil, err
	}
	if err := r.onlyOneReader(f, args, coded); err != nil {
		return nil, err
	}
	if r.program != nil {
		for _, u := range r.uploads {
			if path.Clean(u.guest) == r.program.Name || path.Clean(u.guest) == backend.DefaultHome+"/"+r.program.Name {
				return nil, usagef("--file: %s would overwrite the program itself; give it another name", u.guest)
			}
		}
	} else if err := r.command.Validate(); err != nil {
		return nil, &usageError{err}
	}
	return r, nil
}

func (f *runFlags) spec(limits config.Limits, wall time.Duration) (s backend.Spec, err error) {
	s = backend.Spec{Template: f.template, From: f.from, Limits: limits.Backend(), Keep: f.keep}
	if s.Network, err = f.network.policy(); err != nil {
		return s, err
	}
	s.Lifetime = time.Duration(cmp.Or(f.lifetime, limits.Lifetime))
	if s.Lifetime == 0 && wall+lifetimeSlack > backend.DefaultLifetime {
		s.Lifetime = min(wall+lifetimeSlack, backend.MaxLifetime)
	}
	if s.Labels, err = pairs("label", f.labels); err != nil {
		return s, err
	}
	if f.name != "" {
		if err := validName(f.name); err != nil {
			return s, err
		}
		if s.Labels == nil {
			s.Labels = map[string]string{}
		}
		s.Labels[nameLabel] = f.name
	}
	if s.Advisory, err = controls(f.advisory); err != nil {
		return s, err
	}
	for _, v := range f.volumes {
		m, err := mount(v)
		if err != nil {
			return s, err
		}
		s.Mounts = append(s.Mounts, m)
	}
	if err := s.Validate(); err != nil {
		return s, &usageError{err}
	}
	return s, nil
}

// mount reads -v SRC:DST:ro.
func mount(v string) (backend.Mount, error) {
	parts := strings.Split(v, ":")
	bad := func(why string) (backend.Mount, error) {
		return backend.Mount{}, usagef("--volume: %q: %s", v, why)
	}
	switch {
	case len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "":
		return bad("write SRC:DST:ro")
	case len(parts) == 2 || parts[2] == "rw":
		return bad("a host directory can only be shown read-only; add :ro, or copy files with --file and --out")
	case parts[2] != "ro":
		return bad(fmt.Sprintf("unknown option %q, known is ro", parts[2]))
	}
	src, err := filepath.Abs(parts[0])
	if err != nil {
		return bad(err.Error())
	}
	return backend.Mount{HostPath: src, Target: path.Clean(parts[1]), ReadOnly: true}, nil
}

func (a *App) command(f *runFlags, r *request, wall time.Duration) (c backend.Command, err error) {
	c = backend.Command{Dir: f.workdir, User: f.user, Env: map[string]string{}, Timeout: wall}
	if f.detach {
		c.Tag = mainTag
	}
	for _, name := range f.envFiles {
		lines, err := envFile(name)
		if err != nil {
			return c, err
		}
		for _, l := range lines {
			a.variable(c.Env, l, r)
		}
	}
	for _, item := range f.env {
		a.variable(c.Env, item, r)
	}
	if err := backend.ValidateEnv("--env", c.Env); err != nil {
		return c, &usageError{err}
	}
	return c, nil
}

// variable sets NAME=VALUE, or passes NAME on when we have it.
func (a *App) variable(env map[string]string, item string, r *request) {
	k, v, given := strings.Cut(item, "=")
	if !given {
		var ok bool
		if v, ok = a.getenv(k); !ok {
			r.warn = append(r.warn, fmt.Sprintf("--env: %s is not set here and not passed on", k))
			return
		}
	}
	env[k] = v
}

// envFile reads lines of NAME=VALUE or NAME; # begins a comment.
func envFile(name string) ([]string, error) {
	f, err := openRegular(name)
	if err != nil {
		return nil, usagef("--env-file: %w", err)
	}
	defer f.Close() //nolint:errcheck // read side
	var out []string
	sc := bufio.NewScanner(io.LimitReader(f, maxProgram))
	sc.Buffer(nil, 1<<20)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(strings.TrimSuffix(sc.Text(), "\r"))
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if strings.HasPrefix(line, "=") {
			return nil, usagef("--env-file: %s:%d: no name before =", name, n)
		}
		out = append(out, line)
	}
	if err := sc.Err(); err != nil {
		return nil, usagef("--env-file: %s: %w", name, err)
	}
	return out, nil
}

func (r *request) files(f *runFlags, stdin io.Reader) error {
	seen := map[string]bool{}
	for _, item := range f.files {
		host, guest := item, filepath.Base(item)
		if i := strings.LastIndex(item, ":"); i >= 0 {
			host, guest = item[:i], item[i+1:]
		}
		if host == "" || guest == "" || host == "-" && guest == "-" {
			return usagef("--file: %q is not HOST:GUEST", item)
		}
		if seen[path.Clean(guest)] {
			return usagef("--file: %s is given twice", guest)
		}
		seen[path.Clean(guest)] = true
		if host == "-" {
			r.uploads = append(r.uploads, upload{guest: guest, reader: stdin})
			continue
		}
		h, err := openRegular(host)
		if err != nil {
			return usagef("--file: %w", err)
		}
		_ = h.Close() // looked at early, so that no sandbox is made for a misspelt name
		r.uploads = append(r.uploads, upload{guest: guest, host: host})
	}
	for _, item := range f.outs {
		guest, host, ok := strings.Cut(item, ":")
		if !ok {
			host = path.Base(guest)
		}
		if guest == "" || host == "" || host == "." || host == "/" || host == ".." {
			return usagef("--out: %q is not GUEST:HOST", item)
		}
		r.outs = append(r.outs, fetch{guest, host})
	}
	return nil
}

// openRegular opens a regular file of ours; a FIFO would wait for ever.
func openRegular(name string) (*os.File, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	switch {
	case info.IsDir():
		return nil, fmt.Errorf("%s is a directory; show it with --volume, or give single files", name)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	return os.Open(name)
}

// source finds the program: code, standard input, a file, or a command.
func (a *App) source(f *runFlags, r *request, args []string, dashed, coded bool) error {
	switch {
	case coded:
		r.args = args
		return r.take(f, "", []byte(f.code), "python")
	case len(args) == 0:
		return usagef("nothing to run; give a FILE, - for standard input, -c CODE, or -- COMMAND")
	case dashed:
		if f.lang != "" {
			return usagef("--lang is for programs; a command after -- is started as it is")
		}
		r.command.Args = args
		return nil
	case args[0] == "-":
		data, err := bounded(a.Stdin)
		if err != nil {
			return usagef("standard input: %w", err)
		}
		r.args = args[1:]
		return r.take(f, "", data, "python")
	}
	file, err := openRegular(args[0])
	if err != nil {
		return usagef("%w", err)
	}
	defer file.Close() //nolint:errcheck // read side
	data, err := bounded(file)
	if err != nil {
		return usagef("%s: %w", args[0], err)
	}
	r.args = args[1:]
	return r.take(f, args[0], data, "")
}

// take makes a program of source. fallback is its language when nothing tells.
func (r *request) take(f *runFlags, file string, source []byte, fallback string) error {
	var l lang.Language
	var err error
	if f.lang != "" {
		l, err = lang.ByName(f.lang)
	} else if l, err = lang.Detect(file, source); err != nil && fallback != "" && !bytes.HasPrefix(source, []byte("#!")) {
		l, err = lang.ByName(fallback)
	}
	if err != nil {
		return &usageError{err}
	}
	p, err := lang.Prepare(l, file, source)
	if err != nil {
		return &usageError{err}
	}
	r.program = &p
	r.warn = append(r.warn, p.Warnings...)
	for _, arg := range r.args {
		if strings.ContainsRune(arg, 0) {
			return usagef("an argument has a NUL byte")
		}
	}
	return nil
}

func bounded(rd io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(rd, maxProgram+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxProgram {
		return nil, errors.New("the program is larger than 32MiB; copy data in with --file")
	}
	return data, nil
}

// onlyOneReader refuses two uses of our standard input.
func (r *request) onlyOneReader(f *runFlags, args []string, coded bool) error {
	var uses []string
	if f.tty {
		uses = append(uses, "--tty")
	} else if f.stdin {
		uses = append(uses, "--stdin")
	}
	if !coded && r.program != nil && len(args) > 0 && args[0] == "-" {
		uses = append(uses, "the program -")
	}
	for _, u := range r.uploads {
		if u.reader != nil {
			uses = append(uses, "--file -")
		}
	}
	if len(uses) > 1 {
		return usagef("standard input can only be used once, not for %s", strings.Join(uses, " and "))
	}
	return nil
}
