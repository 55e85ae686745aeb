//go:build linux

package hostiletest_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/gvisor"
	"github.com/glovebox-dev/glovebox/internal/testenv/testimage"
)

// sentry tells whether programs run on a kernel of the sandbox's own: then none
// of them is a process of the host's, which shows only what that kernel is.
func sentry() bool { return w.target.sentry }

// openGVisor opens the backend that starts runsc itself.
func openGVisor(ctx context.Context, s settings) (executor, error) {
	cfg := gvisor.Config{Agent: s.agent, StateDir: s.stateDir}
	if os.Geteuid() != 0 {
		cfg.Privilege, cfg.Rootfs = gvisor.PrivilegeRootless, s.rootfs
	}
	return gvisor.Open(ctx, cfg)
}

// openGVisorDocker opens the one whose sandboxes an engine starts.
func openGVisorDocker(ctx context.Context, s settings) (executor, error) {
	if err := shareImages(s.stateDir); err != nil {
		return nil, err
	}
	return gvisor.Open(ctx, gvisor.Config{Via: gvisor.ViaDocker, Agent: s.agent, StateDir: s.stateDir})
}

// sentryOf is the process that is a sandbox's kernel.
func sentryOf(t *testing.T, id string) int {
	t.Helper()
	for _, pid := range hostProcesses(t, id) {
		if argv0, _, _ := bytes.Cut(procFile(pid, "cmdline"), []byte{0}); string(argv0) == "runsc-sandbox" {
			return pid
		}
	}
	t.Fatalf("the sandbox %s has no kernel among %v", id, hostProcesses(t, id))
	return 0
}

// hostProcesses are the processes of the host that a sandbox with a kernel of
// its own is made of: runtime, shim, kernel, gofer, and those that the kernel
// lends its programs.
func hostProcesses(t *testing.T, id string) (out []int) {
	t.Helper()
	words := []string{"/run/" + id + "/"}
	if c := containerOf(t, id); c != "" {
		words = append(words, c)
	}
	spaces := map[string]bool{}
	for pid := range processes() {
		if strings.HasPrefix(status(pid, "State"), "Z") || pid == os.Getpid() {
			continue
		}
		cmdline := string(procFile(pid, "cmdline"))
		if !strings.Contains(cmdline, "runsc") && !strings.HasPrefix(cmdline, "/usr/bin/containerd-shim") {
			continue
		}
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(cmdline, w) }) {
			out = append(out, pid)
			if ns := pidNamespace(pid); ns != "" && ns != pidNamespace(os.Getpid()) {
				spaces[ns] = true
			}
		}
	}
	for pid := range processes() {
		if spaces[pidNamespace(pid)] && !slices.Contains(out, pid) && !strings.HasPrefix(status(pid, "State"), "Z") {
			out = append(out, pid)
		}
	}
	return out
}

func procFile(pid int, name string) []byte {
	data, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), name))
	return data
}

// guests asks the sandbox's own kernel for its processes, without the agent and
// without who asks. The programs cannot change its answer; what the host shows
// is asked besides.
func (b *box) guests(t *testing.T) (out []int) {
	t.Helper()
	text := `for f in /proc/[0-9]*; do p=${f#/proc/}; [ $p = 1 ] || [ $p = $$ ] || { read -r _ _ s _ <$f/stat && [ "$s" != Z ] && echo $p; } 2>/dev/null; done; true`
	_, said := runIn(t, b, text)
	for f := range strings.FieldsSeq(said) {
		if pid, err := strconv.Atoi(f); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// zombies counts the ended processes that nobody has waited for.
func (b *box) zombies(t *testing.T) int {
	t.Helper()
	_, said := runIn(t, b, `for f in /proc/[0-9]*; do { read -r _ _ s _ <$f/stat && [ "$s" = Z ] && echo Z; } 2>/dev/null; done; true`)
	return strings.Count(said, "Z")
}

// noise is how many processes a bomb has, as the host sees it.
func (b *box) noise(t *testing.T) int {
	t.Helper()
	if sentry() {
		return b.tasksOfKernel(t) - 20
	}
	return len(b.code(t))
}

// idle demands that what the host counts of a sandbox with a kernel of its own
// comes to rest: programs that live on unseen would compute.
func (b *box) idle(t *testing.T) {
	t.Helper()
	if b.groups["cpuacct"] == "" && b.groups["cpu"] == "" {
		return
	}
	const most = 0.3 // of a core
	var share float64
	if !eventually(4*time.Second+grace(), func() bool {
		before, began := cpuOf(t, b), time.Now()
		<-time.After(200 * time.Millisecond)
		share = float64(cpuOf(t, b)-before) / float64(time.Since(began))
		return share < most
	}) {
		t.Errorf("open: with all programs killed it uses %.2f cores", share)
	}
}

// outerTasks bounds what the host counts of a sandbox's tasks, the kernel's own
// included: HOSTILE's measurements are two to three for each process.
const outerTasks = 1024

// tasksOfKernel is what the host counts.
func (b *box) tasksOfKernel(t *testing.T) int {
	t.Helper()
	if dir := b.groups["pids"]; dir != "" {
		return int(number(filepath.Join(dir, "pids.current")))
	}
	return len(hostProcesses(t, b.ID()))
}

// shareImages lets a state directory have this host's images.
func shareImages(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(dir, "images")); err == nil {
		return nil
	}
	if why := testimage.Share(dir); why != "" {
		return errorString(why)
	}
	return nil
}

type errorString string

func (e errorString) Error() string { return string(e) }

// wants tells whether the mode is for this attack.
func (g target) wants(id string) bool { return g.some == nil || g.some[id] != "" }

// rootlessDiffers are the attacks on gVisor without root, which has no control
// groups, no mounts of its host and its own user's uid. What the sentry itself
// answers is the same code as root's, where the whole suite runs.
func rootlessDiffers() map[string]string {
	const (
		memory = "no memory cgroup: what is used is sampled"
		cpu    = "no cpu cgroup"
		disk   = "the scratch is the sentry's own tmpfs, in place of the host's"
		uid    = "the sentry has its user's uid, so what it could do to the host is more"
		ends   = "no cgroup to kill by"
		net    = "its network namespace is below a user namespace"
	)
	return map[string]string{
		"ME-01": memory, "ME-02": memory, "ME-03": disk, "ME-04": disk, "ME-05": memory, "CT-02": cpu,
		"DI-15": disk, "FW-09": disk, "XR-01": disk,
		"FP-13": uid, "FP-14": uid, "PE-12": uid, "PE-13": uid, "PE-01": uid, "FR-01": uid, "FR-03": uid, "FD-02": uid, "XR-07": uid, "NW-09": uid,
		"FP-01": ends, "FP-02": ends, "FP-05": ends, "FP-19": ends, "FP-21": ends, "XR-09": ends, "OU-13": ends, "CT-11": ends,
		"NW-01": net, "NW-08": net, "GV-01": memory, "GV-02": uid, "GV-04": uid, "GV-05": disk, "FW-18": disk,
		"LA-06": "what is refused is decided by what root has", "LA-10": "the same",
	}
}

// viaDockerDiffers are those on gVisor through Docker: what makes, limits,
// reaches and ends the sandbox is an engine and its runtime's configuration.
func viaDockerDiffers() map[string]string {
	const (
		groups = "the groups are the engine's"
		stream = "the agent is reached over the engine's attach stream"
		ends   = "the engine and its shim start and end it"
		flags  = "the sentry's flags are the engine's configuration"
		mounts = "the root and its mounts are the engine's"
	)
	return map[string]string{
		"ME-01": groups, "ME-02": groups, "CT-02": groups, "FP-01": groups, "FP-02": groups,
		"OU-01": stream, "OU-05": stream, "OU-07": stream, "OU-08": stream, "OU-13": stream, "FP-07": stream,
		"FP-05": ends, "FP-19": ends, "FP-21": ends, "XR-09": ends, "CT-11": ends, "LA-06": ends, "LA-10": ends, "FR-05": ends, "FR-18": ends,
		"PE-01": flags, "NW-01": flags, "NW-02": flags, "NW-08": flags, "NW-09": flags, "FR-16": flags, "NW-13-root": flags, "FP-13": flags,
		"GV-01": groups, "GV-02": ends, "GV-03": groups, "GV-04": stream, "GV-05": mounts, "FW-18": mounts, "NW-06": flags,
		"DI-01": mounts, "DI-02": mounts, "ME-03": mounts, "FR-01": mounts, "FR-02": mounts, "FD-02": mounts, "FR-07": mounts, "XR-01": mounts,
	}
}
