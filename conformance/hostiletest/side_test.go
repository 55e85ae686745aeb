//go:build linux

package hostiletest_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// sideAttacks are those by what a host's tenants share: disks, caches, names.
func sideAttacks() []attack {
	return []attack{
		{id: "DI-10", program: "disk.py", args: []string{"storm"}, before: writeLatency, during: slowerBeside, inside: atLeast(1), outside: contentionDeclared, control: control{
			none: "outside it is the same call; how much slower others are is reported",
		}},
		{id: "DI-11", only: asRoot, program: "disk.py", args: []string{"direct"}, during: noDiskWritten, inside: atLeast(1), control: control{works: func(s *scene, o *outcome) {
			// What the program itself is told was written to disks, in bytes.
			if r := s.report(o, "outside"); r.N < 8*mib {
				s.Errorf("inconclusive: outside it writes only %d bytes to disks", r.N)
			}
		}}},
		{id: "XR-13", program: "fds.py", args: []string{"cache"}, inside: cacheSeen, control: control{shows: []string{"mincore"}}},
		// What an engine's or a container runtime's socket answers is root's.
		{id: "FR-16", only: asRoot, program: "net.py", args: []string{"connect"}, before: engineSockets, outside: nothingHeard, control: control{plain: true, works: func(s *scene, o *outcome) {
			for name, how := range s.tries(o, "outside") {
				if how != "ok" {
					s.Errorf("inconclusive: %s is not reached outside either: %s", name, how)
				}
			}
		}}},
	}
}

// writeLatency notes how long a small write to a disk takes.
func writeLatency(s *scene, _ *box) { s.kept["alone"] = synced(s) }

// synced is the shortest of some small writes that were waited for.
func synced(s *scene) time.Duration {
	f, err := os.Create(filepath.Join(openDir(s.T), "small"))
	if err != nil {
		s.Fatal(err)
	}
	defer f.Close()
	best := time.Hour
	for range 5 {
		began := time.Now()
		if _, err := f.WriteString("x"); err != nil {
			s.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			s.Fatal(err)
		}
		best = min(best, time.Since(began))
	}
	return best
}

func slowerBeside(s *scene, _ *box) {
	s.Logf("a small write takes %v alone and %v beside a storm of syncs", s.kept["alone"], synced(s))
}

// contentionDeclared: nobody can hold sync(2) apart, and the claim says so.
func contentionDeclared(s *scene, _ *box, _ *outcome) {
	if c := w.ex.Capabilities().Claim(backend.ControlSync); c.Enforcement == backend.Enforced || c.Mechanism+c.Note == "" {
		s.Errorf("open: the claim of %s says %+v", backend.ControlSync, c)
	}
	informed(s.T, "declared as best effort")
}

// noDiskWritten: by the host's count none of the sandbox's processes has written
// to a disk.
func noDiskWritten(s *scene, b *box) {
	members := b.members(s.T)
	if len(members) == 0 {
		s.Error("inconclusive: the host sees none of its processes")
	}
	for _, pid := range members {
		for line := range strings.Lines(string(procFile(pid, "io"))) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "write_bytes: "); ok {
				if n, err := strconv.Atoi(v); err != nil || n > mib {
					s.Errorf("open: process %d has written %s bytes to the host's disks", pid, v)
				}
			}
		}
	}
}

// cacheSeen reports whether the host's page cache can be read off files that
// sandboxes share.
func cacheSeen(s *scene, o *outcome) {
	s.tries(o, "inside")
	informed(s.T, "which pages of the image's files are cached can be seen where the host's kernel answers")
}

// engineSockets are sockets of the host's that would give all of it away: those
// that are there, and one of ours in the same place.
func engineSockets(s *scene, _ *box) {
	e := &ears{}
	s.kept["ears"] = e
	own := filepath.Join(filepath.Dir(plant(s.T, "/run").path), "socket")
	e.stream(s.T, "unix", own, "path "+own)
	s.args = append(s.args, "path="+own)
	for _, path := range []string{"/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock"} {
		if st, err := os.Stat(path); err == nil && st.Mode()&os.ModeSocket != 0 {
			s.args = append(s.args, "path="+path)
		}
	}
	if w.target.engine && len(s.args) < 3 {
		s.Error("inconclusive: the engine's own socket is not among them")
	}
}

// hostPaths: what mountinfo says of the host's paths is names alone; FR-07.
func hostPaths(t *testing.T) {
	b := newBox(t, backend.Spec{})
	s := &scene{T: t, a: &attack{program: "secrets.py"}, nonce: nonce(), args: []string{"identity"}}
	s.upload(b)
	var got map[string]string
	if err := json.Unmarshal([]byte(s.report(s.start(b), "inside").Text), &got); err != nil {
		t.Fatal(err)
	}
	if strings.Count(got["mountinfo"], "\n") < 2 {
		t.Fatalf("inconclusive: it has no mounts: %q", got["mountinfo"])
	}
	seen := map[string]bool{}
	for line := range strings.Lines(got["mountinfo"]) {
		for _, field := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" ,=:\n", r) }) {
			// A path of the host's, which the image has not.
			if st, err := os.Lstat(field); err == nil && strings.Count(field, "/") > 2 && strings.HasPrefix(field, "/") && st.IsDir() && !inRoot(field) {
				seen[field] = true
			}
		}
	}
	for path := range seen {
		if exit, out := runIn(t, b, "ls -d "+path+" 2>&1"); exit.Success() {
			t.Errorf("open: the host's %s is seen in mountinfo, and there: %s", path, out)
		}
	}
	informed(t, "of the host's paths "+strconv.Itoa(len(seen))+" are named, none is there")
}

// inRoot tells whether sandboxes have such a path of their own.
func inRoot(path string) bool {
	for _, dir := range []string{"/proc", "/sys", "/dev", "/usr", "/etc", backend.DefaultHome} {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	return false
}
