//go:build linux

package hostiletest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// namesThatLeave gives the file API names that lead out; FW-03. Whatever it
// answers, nothing of the host's may change or be read.
func namesThatLeave(t *testing.T) {
	b := newBox(t, backend.Spec{})
	c := plant(t, "/tmp")
	dir := filepath.Dir(c.path)
	up := strings.Repeat("../", 30)
	names := []string{
		c.path, up + c.path, "a/../../.." + c.path, "/../.." + c.path, "/proc/1/root" + c.path, "/proc/self/root" + c.path, "/proc/self/cwd/../.." + c.path,
		"./" + up + c.path, "/tmp/../.." + c.path, "//" + c.path, "/proc/1/cwd" + c.path, "/proc/thread-self/root" + c.path,
		"C:\\x", "..\\..\\x", "a\x00b", "", ".", "..", "/", "a/", "\xff\xfe", strings.Repeat("x", 300), strings.Repeat("d/", 3000) + "x", "a\nb", "-rf", "~root/x",
		"/etc/passwd", "/usr/bin/python3", "/proc/sys/kernel/core_pattern", "/dev/null", "/dev/shm/../../etc/x", "/sys/x", "/proc/1/oom_score_adj",
	}
	passwd := hashOf(t, "/etc/passwd")
	for _, name := range names {
		_ = soon(t, "a write to "+clipped(name), func() error {
			return backend.WriteFile(t.Context(), b.Files(), name, []byte("overwritten"), 0o777)
		})
		_ = soon(t, "a read of "+clipped(name), func() error {
			data, err := backend.ReadFile(t.Context(), b.Files(), name, mib)
			if bytes.Contains(data, []byte(c.secret)) {
				t.Errorf("open: %q reads a canary", name)
			}
			return err
		})
		_, _ = b.Files().Stat(t.Context(), name)
		_, _ = b.Files().List(t.Context(), name)
		_ = b.Files().Mkdir(t.Context(), name+"/d", 0)
		_ = b.Files().Rename(t.Context(), name, name+".new")
		_ = b.Files().Rename(t.Context(), ".", name)
	}
	for _, name := range []string{c.path, up + c.path, dir, up + dir, up + "etc/passwd", "/proc/1/root" + c.path} {
		_ = b.Files().Remove(t.Context(), name)
	}
	// What it made for such names lies in the sandbox.
	if _, out := runIn(t, b, "cat "+c.path+" 2>&1"); strings.Contains(out, c.secret) {
		t.Errorf("open: the canary is inside: %q", out)
	}
	unharmed(t, c)
	if hashOf(t, "/etc/passwd") != passwd {
		t.Error("open: the host's passwd was changed")
	}
	interpreterWorks(t)
}

func clipped(s string) string { return s[:min(len(s), 80)] }

// unharmed demands that the canary is as it was, and shows that it could have
// been changed.
func unharmed(t *testing.T, c canary) {
	t.Helper()
	if !c.intact() {
		t.Errorf("open: the canary %s was changed", c.path)
	}
	if err := os.WriteFile(c.path, []byte("changed"), 0o666); err != nil || c.intact() {
		t.Errorf("inconclusive: the canary cannot be changed outside either: %v", err)
	}
}

// plantedLinks has the sandbox put links where the host will write and read;
// FW-04.
func plantedLinks(t *testing.T) {
	b := newBox(t, backend.Spec{})
	c := plant(t, "/tmp")
	dir := filepath.Dir(c.path)
	script := "ln -s " + dir + " data; ln -s " + c.path + " file; ln -s /proc/1/root" + dir + " init; ln -s /proc/self/root" + dir + " self;" +
		"ln -s ../../../../../../../.." + dir + " up; mkdir -p tree/keep; ln -s " + dir + " tree/out; ln -s / tree/root; ln -s loop loop;" +
		"mkdir /tmp/keep; touch /tmp/keep/here; ln -s /tmp/keep tree/inner"
	if exit, out := runIn(t, b, script); !exit.Success() {
		t.Fatalf("inconclusive: %s %s", exit, out)
	}
	for _, name := range []string{"data/canary", "file", "init/canary", "self/canary", "up/canary", "tree/out/canary", "tree/root" + c.path, "loop", "loop/x"} {
		_ = soon(t, "a write to "+name, func() error { return backend.WriteFile(t.Context(), b.Files(), name, []byte("overwritten"), 0) })
		data, _ := backend.ReadFile(t.Context(), b.Files(), name, mib)
		if bytes.Contains(data, []byte(c.secret)) {
			t.Errorf("open: %s reads the canary", name)
		}
		_ = b.Files().Mkdir(t.Context(), filepath.Dir(name)+"/made", 0)
		_ = b.Files().Rename(t.Context(), name, name+"2")
	}
	// Removing a tree removes its links, not what they lead to.
	if err := b.Files().Remove(t.Context(), "tree"); err != nil {
		t.Errorf("remove: %v", err)
	}
	if exit, _ := runIn(t, b, "test -e /tmp/keep/here && test -e /usr/bin/env"); !exit.Success() {
		t.Error("open: removing a tree followed its links")
	}
	unharmed(t, c)
}

// linksToTheAgent plants links that mean something else to the agent, which
// does the host's file work.
func linksToTheAgent(t *testing.T) {
	b := newBox(t, backend.Spec{Env: map[string]string{"IN_ENV": "of the command"}})
	users := []string{"user"}
	if rooted() {
		users = append(users, "root")
	}
	// The host reads and writes here, never the program: what counts is memory,
	// descriptors, and what changes the agent.
	targets := []string{
		"mem", "fd/0", "fd/1", "fd/2", "fd/3", "fd/4", "fd/5", "fd/6", "fd/7", "fd/8", "cwd", "root", "root/etc/shadow", "ns/mnt", "map_files",
		"oom_score_adj", "clear_refs", "comm", "coredump_filter", "setgroups", "uid_map", "timerslack_ns", "environ",
	}
	readable := []string{"oom_score_adj", "comm", "coredump_filter", "setgroups", "uid_map", "timerslack_ns", "environ"}
	for _, base := range []string{"/proc/self/", "/proc/1/", "/proc/thread-self/", "/proc/1/task/1/"} {
		for _, target := range targets {
			link := strings.ReplaceAll(strings.Trim(base, "/")+"-"+target, "/", "_")
			if exit, out := runIn(t, b, "ln -s "+base+target+" "+link); !exit.Success() {
				t.Fatal(out)
			}
			for _, user := range users {
				files := b.Files()
				if uf, ok := backend.As[backend.UserFiles](files); ok && user != "user" {
					files = uf.FilesAs(user)
					link = "/home/user/" + filepath.Base(link)
				}
				rerr := soon(t, "a read of "+base+target, func() error {
					data, err := backend.ReadFile(t.Context(), files, link, 64<<20)
					if target == "environ" && len(data) > 0 {
						t.Errorf("open: the agent's environment is %q", data)
					}
					return err
				})
				if rerr == nil && target == "root/etc/shadow" && sentry() {
					// The agent's root is the sandbox's own.
					_, rerr = backend.ReadFile(t.Context(), files, "/etc/shadow", mib)
					if rerr == nil {
						emulations.Store(t.Name(), true)
						rerr = errors.New("as by its own name")
					}
				}
				if rerr == nil && !slices.Contains(readable, target) {
					t.Errorf("open: as %s %s%s of the agent is read", user, base, target)
				}
				werr := soon(t, "a write to "+base+target, func() error {
					return backend.WriteFile(t.Context(), files, link, []byte("-17"), 0)
				})
				// A name is all that comm is.
				if werr == nil && target != "comm" {
					t.Errorf("open: as %s %s%s of the agent is written", user, base, target)
				}
			}
		}
	}
	agentLives(&scene{T: t}, b, nil)
	score, err := os.ReadFile("/proc/" + itoa(b.agentPID) + "/oom_score_adj")
	own, oerr := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil || oerr != nil || !bytes.Equal(score, own) {
		t.Errorf("open: the agent's oom_score_adj is %q, this process's %q", score, own)
	}
}

// linkRace swaps a directory for a link while the host writes below it.
func linkRace(t *testing.T) {
	b := newBox(t, backend.Spec{})
	c := plant(t, "/tmp")
	script := "mkdir -p real; ln -sfn " + filepath.Dir(c.path) + " link; echo READY; " +
		"exec /usr/bin/python3 -c \"import ctypes\nl=ctypes.CDLL(None)\nwhile 1: l.syscall(316,-100,b'real',-100,b'link',2)\""
	var out watched
	p, err := b.Start(t.Context(), backend.Command{Args: []string{"/bin/sh", "-c", script}, Output: backend.Output{Stdout: &out, Stderr: &out}})
	if err != nil {
		t.Fatal(err)
	}
	if !out.saying("READY", p) {
		t.Fatalf("inconclusive: %s", out.bytes())
	}
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); {
		_ = backend.WriteFile(t.Context(), b.Files(), "real/canary", []byte("overwritten"), 0)
		if data, _ := backend.ReadFile(t.Context(), b.Files(), "real/canary", mib); bytes.Contains(data, []byte(c.secret)) {
			t.Fatal("open: the canary is read")
		}
		_ = b.Files().Remove(t.Context(), "real/canary")
	}
	unharmed(t, c)
}

// notRegular replaces a result by what is no file; FW-06 and FW-07.
func notRegular(t *testing.T) {
	b := newBox(t, backend.Spec{})
	script := "mkfifo fifo; mkdir dir; ln -s /dev/zero zero; ln -s /dev/full full; ln -s /dev/tty tty; ln -s fifo tofifo; ln -s /dev/ptmx ptmx;" +
		"/usr/bin/python3 -c \"import socket;socket.socket(1).bind('sock')\""
	if exit, out := runIn(t, b, script); !exit.Success() {
		t.Fatalf("inconclusive: %s %s", exit, out)
	}
	for _, name := range []string{"fifo", "dir", "zero", "full", "tty", "tofifo", "ptmx", "sock", "/dev/random", "/dev/zero"} {
		err := soon(t, "a read of "+name, func() error {
			_, err := backend.ReadFile(t.Context(), b.Files(), name, mib)
			return err
		})
		if err == nil || errors.Is(err, backend.ErrTooLarge) {
			t.Errorf("open: %s is read as a file: %v", name, err)
		}
		_ = soon(t, "a write to "+name, func() error { return backend.WriteFile(t.Context(), b.Files(), name, []byte("x"), 0) })
		_ = soon(t, "the state of "+name, func() error { _, err := b.Files().Stat(t.Context(), name); return err })
	}
	agentLives(&scene{T: t}, b, nil)
	// Outside, the same FIFO holds whoever opens it.
	fifo := filepath.Join(openDir(t), "fifo")
	g := newPen(t)
	if out, err := g.command(t.Context(), "/bin/sh", "-c", "mkfifo "+fifo+"; timeout 1 cat "+fifo+"; test $? = 124").CombinedOutput(); err != nil {
		t.Errorf("inconclusive: outside a FIFO does not block: %v %s", err, out)
	}
}

// hardLinks tries to take a host file's inode into the scratch; FW-08 and
// FW-13.
func hardLinks(t *testing.T) {
	b := newBox(t, backend.Spec{})
	exit, out := runIn(t, b, "for f in /etc/passwd /usr/bin/env /etc/ld.so.cache /proc/self/status /dev/null; do ln $f out 2>/dev/null && echo linked $f; done;"+
		"cp /bin/true suid && chmod 6755 suid; chown 0:0 suid 2>/dev/null && echo chowned; stat -c %u suid; true")
	if !exit.Success() || strings.Contains(out, "linked") || strings.Contains(out, "chowned") {
		t.Errorf("open: %s", out)
	}
	// Outside a file can be linked within its own file system.
	c := plant(t, "/tmp")
	if err := os.Link(c.path, c.path+"2"); err != nil {
		t.Errorf("inconclusive: links do not work outside either: %v", err)
	}
}

// hugeFiles are larger than anybody wants to take; FW-09.
func hugeFiles(t *testing.T) {
	b := newBox(t, backend.Spec{})
	if exit, out := runIn(t, b, "truncate -s 200M sparse; head -c 100M /dev/zero >dense; (while :; do echo x; done >growing) & sleep 0.2; true"); !exit.Success() {
		t.Fatalf("inconclusive: %s %s", exit, out)
	}
	for _, name := range []string{"sparse", "dense", "growing"} {
		err := soon(t, "a bounded read of "+name, func() error {
			_, err := backend.ReadFile(t.Context(), b.Files(), name, mib/16)
			return err
		})
		if !errors.Is(err, backend.ErrTooLarge) && name != "growing" {
			t.Errorf("open: %s is read whole: %v", name, err)
		}
	}
	// A reader that is not interested any more leaves nothing behind.
	ctx, cancel := context.WithCancel(t.Context())
	rc, err := b.Files().Open(ctx, "dense")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, rc, 1024); err != nil {
		t.Error(err)
	}
	cancel()
	rc.Close()
	// A writer without end meets the disk's.
	limited := newBox(t, backend.Spec{Limits: backend.Limits{Memory: smallMemory, Disk: smallDisk}})
	err = limited.Files().Write(t.Context(), "endless", endless{}, 0)
	if kind := backend.KindOf(err); kind != backend.ErrTooLarge {
		t.Errorf("open: an endless upload ends with %v", err)
	}
	agentLives(&scene{T: t}, limited, nil)
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
