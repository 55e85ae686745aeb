// Package host is a witness of what sandboxes leave on a Linux host, for those
// whose processes the caller's process starts.
package host

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Witness is a conformance.Witness. It sees processes that this process
// started, those that live in a pid namespace that such a process made, and
// whatever control groups, mounts and Unix sockets are called by a word.
// It is safe for concurrent use.
type Witness struct {
	words func() []string

	mu         sync.Mutex
	namespaces map[string]map[string]bool // of sandboxes, with the processes seen in them
}

// New makes a Witness of what has one of words in its name.
func New(words func() []string) *Witness {
	return &Witness{words: words, namespaces: map[string]map[string]bool{}}
}

// process is what /proc says of one.
type process struct {
	pid, parent int
	start       string
	namespace   string
	groups      string
	command     string
}

// key names a process for good.
func (p process) key() string { return fmt.Sprintf("process %d started %s", p.pid, p.start) }

// Snapshot implements conformance.Witness.
func (w *Witness) Snapshot(context.Context) (map[string]string, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	words := w.words()
	named := func(s string) bool {
		return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(s, word) })
	}
	for _, p := range w.ours(all, named) {
		out[p.key()] = fmt.Sprintf("%.200q in %s, groups %.500q", p.command, p.namespace, p.groups)
	}
	for line := range lines("/proc/self/mountinfo") {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if named(line) {
			out["mount "+fields[0]+" "+fields[4]] = line
		}
		if _, kind, ok := strings.Cut(line, " - "); ok && strings.HasPrefix(kind, "cgroup") {
			groups(out, fields[4], named)
		}
	}
	for line := range lines("/proc/net/unix") {
		if fields := strings.Fields(line); len(fields) > 7 && named(fields[7]) {
			out["socket "+fields[6]] = fields[7]
		}
	}
	return out, nil
}

// ours are the processes of sandboxes: descendants of this process that live
// in another pid namespace or bear a word, and all that live in the namespaces
// that such ones were seen in.
func (w *Witness) ours(all map[int]process, named func(string) bool) (out []process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	own := all[os.Getpid()].namespace
	// A namespace's number is used again once its last process is gone: it is
	// the one that was seen as long as one of its processes is.
	known := map[string]bool{}
	for _, p := range all {
		if p.namespace != own && p.namespace != "" && (descends(all, p) || w.namespaces[p.namespace][p.key()]) {
			known[p.namespace] = true
		}
	}
	w.namespaces = map[string]map[string]bool{}
	for _, p := range all {
		if !known[p.namespace] {
			continue
		}
		if w.namespaces[p.namespace] == nil {
			w.namespaces[p.namespace] = map[string]bool{}
		}
		w.namespaces[p.namespace][p.key()] = true
	}
	for _, p := range all {
		mine := descends(all, p) && p.pid != os.Getpid()
		if mine && (p.namespace != own || named(p.command) || strings.Contains(p.command, "glovebox-agent")) ||
			known[p.namespace] || named(p.groups) {
			out = append(out, p)
		}
	}
	return out
}

func descends(all map[int]process, p process) bool {
	for range len(all) {
		if p.pid == os.Getpid() {
			return true
		}
		parent, ok := all[p.parent]
		if !ok {
			return false
		}
		p = parent
	}
	return false
}

// kernelThread is PF_KTHREAD of include/linux/sched.h, in the flags of
// /proc/PID/stat.
const kernelThread = 0x00200000

func processes() (map[int]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	all := map[int]process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue // it has just ended
		}
		// The name in parentheses may hold anything; what follows does not.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 20 {
			continue
		}
		if flags, err := strconv.ParseUint(fields[6], 10, 64); err == nil && flags&kernelThread != 0 {
			continue // half of what is there, and nobody's
		}
		p := process{pid: pid, start: fields[19]}
		p.parent, _ = strconv.Atoi(fields[1]) // the kernel's number
		p.namespace, _ = os.Readlink(filepath.Join(dir, "ns", "pid"))
		cgroup, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		p.groups, p.command = string(cgroup), strings.ReplaceAll(strings.TrimRight(string(command), "\x00"), "\x00", " ")
		all[pid] = p
	}
	return all, nil
}

func groups(out map[string]string, root string, named func(string) bool) {
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && named(d.Name()) {
			out["group "+path] = "a control group"
		}
		return nil // what has just gone is no error
	})
}

// lines are a file's; none when it cannot be read.
func lines(path string) func(func(string) bool) {
	return func(yield func(string) bool) {
		f, err := os.Open(path)
		if err != nil {
			return
		}
		defer f.Close() //nolint:errcheck // was only read
		for sc := bufio.NewScanner(f); sc.Scan(); {
			if !yield(sc.Text()) {
				return
			}
		}
	}
}
