package engine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
)

// mountPoint is a line of mountinfo.
type mountPoint struct {
	root, point, fstype string
	options             []string // of the file system: a v1 hierarchy's controllers are there
}

func (m mountPoint) isCgroup() bool { return m.fstype == "cgroup" || m.fstype == "cgroup2" }

func readMounts() ([]mountPoint, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMounts(string(data)), nil
}

func parseMounts(text string) (out []mountPoint) {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(line, " - ")
		front, back := strings.Fields(before), strings.Fields(after)
		if !ok || len(front) < 5 || len(back) < 3 {
			continue
		}
		out = append(out, mountPoint{
			root: unescape.Replace(front[3]), point: unescape.Replace(front[4]),
			fstype: back[0], options: strings.Split(back[2], ","),
		})
	}
	return out
}

// HostGroups finds the control groups of the container id, whose first process
// the daemon says is pid. When that is another process here, as with a daemon on
// another host, the kind is unsupported.
func HostGroups(id string, pid int) (Groups, error) {
	mounts, err := readMounts()
	if err != nil {
		return Groups{}, err
	}
	return parseGroups(procFile(pid, "cgroup"), mounts, id, pid)
}

// ContainerOf is the ID of the container that a process of this host is in, by
// its control groups; "" when it is in none.
func ContainerOf(pid int) string {
	for line := range bytes.Lines(procFile(pid, "cgroup")) {
		base := strings.TrimSuffix(filepath.Base(strings.TrimSpace(string(line))), ".scope")
		if id := base[max(len(base)-64, 0):]; idForm.MatchString(id) {
			return id
		}
	}
	return ""
}

// parseGroups finds the directories for the lines of a process's cgroup file.
func parseGroups(file []byte, mounts []mountPoint, id string, pid int) (Groups, error) {
	out := Groups{V1: map[string]string{}}
	for line := range bytes.Lines(file) {
		// hierarchy:controllers:path
		parts := strings.SplitN(strings.TrimSpace(string(line)), ":", 3)
		// Security: numbers of processes are used again, so the group must say
		// that it is this container's.
		if len(parts) != 3 || id == "" || !strings.Contains(filepath.Base(parts[2]), id) {
			continue
		}
		for _, m := range mounts {
			dir, ok := m.dir(parts[2])
			switch {
			case !ok:
			case parts[1] == "" && m.fstype == "cgroup2":
				out.V2 = dir
			case parts[1] != "" && m.fstype == "cgroup":
				for c := range strings.SplitSeq(parts[1], ",") {
					if slices.Contains(m.options, c) {
						out.V1[c] = dir
					}
				}
			}
		}
	}
	if out.V2 == "" && len(out.V1) == 0 {
		return Groups{}, &backend.Error{
			Op: "control groups", Kind: backend.ErrUnsupported, Err: fmt.Errorf("process %d is not the container's on this host", pid),
		}
	}
	return out, nil
}

// dir is where the group at path of a hierarchy is mounted.
func (m mountPoint) dir(path string) (string, bool) {
	rel, ok := strings.CutPrefix(path, strings.TrimSuffix(m.root, "/"))
	if !ok || rel != "" && !strings.HasPrefix(rel, "/") {
		return "", false
	}
	return filepath.Join(m.point, rel), true
}
