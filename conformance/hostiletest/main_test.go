//go:build linux

// Package hostiletest attacks sandboxes of the local backends. Every attack also
// runs outside a sandbox, where it must work, so that what is contained was not
// harmless to begin with; and what became of it is judged from outside.
//
// TestRoot attacks sandboxes of the subprocess backend as root makes them,
// TestUserns those of an unprivileged user, TestDocker containers. GLOVEBOX_TEST_REPORT names a file that gets a line for
// each attack.
package hostiletest_test

import (
	"bufio"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/leak"
	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/internal/testenv/testimage"
	"github.com/glovebox-dev/glovebox/internal/tree"
)

// The modes, as reports name them.
const (
	modeRoot   = "R"
	modeUserns = "U"
	modeDocker = "D"
	// gVisor: started directly by root, by another user, and by an engine.
	modeGVisor    = "G"
	modeRootless  = "N"
	modeViaDocker = "V"

	ofGVisor = modeGVisor + modeRootless + modeViaDocker
	asRoot   = modeRoot + modeDocker + modeGVisor + modeViaDocker // root makes the sandboxes
)

// What a re-executed test binary is told.
const (
	envHelper = "GLOVEBOX_TEST_HOSTILE_HELPER" // the helper to be, instead of tests
	envDir    = "GLOVEBOX_TEST_HOSTILE_DIR"    // its directory
	envPens   = "GLOVEBOX_TEST_HOSTILE_PENS"   // where it may make cgroups, separated by colons
	envReport = "GLOVEBOX_TEST_REPORT"
)

// leakedFile and leakedDir are descriptors that this process holds without
// close-on-exec, as a careless supervisor would.
const (
	leakedFile = 77
	leakedDir  = 78
)

// world is what all tests of one process share.
type world struct {
	mode   string
	target target
	ex     executor
	dir    string // every user can enter it
	agent  string
	rootfs string // that a user without rights can read
	token  string // in the environment of this process, of no sandbox
	pens   *pens
}

var (
	w       world
	builder testenv.Builder
	agent   string
)

func TestMain(m *testing.M) {
	if helper := os.Getenv(envHelper); helper != "" {
		os.Exit(help(helper))
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("6") // most attacks wait rather than compute
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostiletest:", err)
		code = 1
	}
	os.Exit(code)
}

// run makes the world, runs the tests and looks for what they left.
func run(m *testing.M) (code int, err error) {
	before, err := leak.Host()
	if err != nil {
		return 1, err
	}
	if w.dir, err = os.MkdirTemp("/tmp", "glovebox-hostile-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, tree.Remove(w.dir)) }()
	if err := os.Chmod(w.dir, 0o755); err != nil {
		return 1, err
	}
	w.token = "hostile" + strings.ToLower(rand.Text())
	// A secret that a sandbox would find if it inherited anything.
	for _, name := range []string{"HOSTILE_API_KEY", "HTTP_PROXY", "https_proxy"} {
		if err := os.Setenv(name, "http://"+w.token+".invalid"); err != nil {
			return 1, err
		}
	}
	if err := leakDescriptors(); err != nil {
		return 1, err
	}
	if w.pens, err = newPens(); err != nil {
		return 1, err
	}
	code = m.Run()
	err = errors.Join(w.pens.close(), builder.Close(), writeReport())
	left, lerr := remains(before)
	if len(left) > 0 {
		lerr = errors.Join(lerr, fmt.Errorf("left behind:\n%s", strings.Join(left, "\n")))
	}
	return code, errors.Join(err, lerr)
}

// leakDescriptors opens what no sandbox may see.
func leakDescriptors() error {
	secret := filepath.Join(w.dir, "leaked")
	if err := os.WriteFile(secret, []byte("secret "+w.token), 0o644); err != nil {
		return err
	}
	for target, path := range map[int]string{leakedFile: secret, leakedDir: "/"} {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Dup3(fd, target, 0); err != nil {
			return err
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	return nil
}

// open makes the executor of a mode, once tests know that they want it, and
// closes it with the test.
func open(t *testing.T, mode string) {
	t.Helper()
	agent = builder.Build(t, "cmd/glovebox-agent")
	w.mode, w.target, w.agent = mode, targets()[mode], agent
	if mode == modeRootless {
		rootfs, unavailable := builder.Rootfs(t)
		testenv.Require(t, "gvisor", unavailable)
		w.rootfs = rootfs
	}
	ex, err := w.target.open(t.Context(), w.settings(filepath.Join(w.dir, "state-"+mode)))
	if err != nil {
		t.Fatal(err)
	}
	w.ex = ex
	t.Cleanup(func() {
		if err := ex.Close(); err != nil {
			t.Error(err)
		}
	})
	interpreterWorks(t)
}

// settings are those of an executor with this state.
func (w *world) settings(stateDir string) settings {
	return settings{agent: w.agent, stateDir: stateDir, rootfs: w.rootfs}
}

func TestRoot(t *testing.T) {
	testenv.NeedRoot(t)
	open(t, modeRoot)
	families(t)
}

func TestUserns(t *testing.T) {
	if os.Geteuid() == 0 {
		asNobody(t, "TestUserns")
		return
	}
	open(t, modeUserns)
	families(t)
}

func TestGVisor(t *testing.T) {
	testenv.NeedRoot(t)
	needRunsc(t)
	open(t, modeGVisor)
	families(t)
}

func TestGVisorRootless(t *testing.T) {
	needRunsc(t)
	if os.Geteuid() == 0 {
		_, unavailable := builder.Rootfs(t) // while it can be linked
		testenv.Require(t, "gvisor", unavailable)
		asNobody(t, "TestGVisorRootless")
		return
	}
	open(t, modeRootless)
	families(t)
}

func TestGVisorDocker(t *testing.T) {
	testenv.NeedRoot(t)
	_, unavailable := testimage.Ref(t.Context())
	testenv.Require(t, "docker", unavailable)
	testenv.Require(t, "gvisor", engineHasNoRunsc())
	open(t, modeViaDocker)
	families(t)
}

// needRunsc skips where gVisor is not, or fails where it must be.
func needRunsc(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/usr/local/bin/runsc"); err != nil {
		if _, perr := exec.LookPath("runsc"); perr != nil {
			testenv.Require(t, "gvisor", err.Error())
		}
	}
	if _, unavailable := testimage.Rootfs(); unavailable != "" && os.Getenv(testenv.EnvRootfs) == "" {
		testenv.Require(t, "gvisor", unavailable)
	}
}

func TestDocker(t *testing.T) {
	testenv.NeedRoot(t)
	_, unavailable := testimage.Ref(t.Context())
	testenv.Require(t, "docker", unavailable)
	open(t, modeDocker)
	families(t)
}

// families runs every attack there is.
func families(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { settled(t) }) // once those that run beside each other have
	exclusive(t)
	for _, a := range everyAttack() {
		if a.user != "" && !rooted() || !w.target.wants(a.id) {
			continue // there is one account only
		}
		t.Run(a.id, func(t *testing.T) {
			t.Parallel()
			a.run(t)
		})
	}
	for id, f := range scenarios() {
		if !w.target.wants(id) {
			continue
		}
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() { verdict(t, id) })
			f(t)
		})
	}
}

// wholeRun tells whether nothing of a mode was left out on the command line.
func wholeRun() bool {
	return !strings.Contains(flag.Lookup("test.run").Value.String(), "/") && flag.Lookup("test.skip").Value.String() == ""
}

// resultLine is how a verbose test binary reports one test.
var resultLine = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): Test[A-Za-z]+/([^ ]+) `)

// asNobody runs the test of this name in this binary as an unprivileged user, with pens
// that root made for it, and reports each of its subtests as one of t's.
func asNobody(t *testing.T, test string) {
	t.Helper()
	exe := filepath.Join(w.dir, "hostile.test")
	copyFile(t, "/proc/self/exe", exe, 0o755)
	bin := filepath.Dir(builder.Build(t, "cmd/glovebox-agent"))
	home := filepath.Join(w.dir, "nobody-"+test)
	if err := errors.Join(os.Mkdir(home, 0o755), os.Chown(home, testenv.Nobody, testenv.Nobody)); err != nil {
		t.Fatal(err)
	}
	copyTree(t, "testdata", filepath.Join(home, "testdata"))
	report := filepath.Join(home, "report")
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^"+test+"$", "-test.v", "-test.timeout=9m")
	if f := flag.Lookup("test.run").Value.String(); strings.Contains(f, test+"/") {
		cmd.Args[1] = "-test.run=" + f
	}
	cmd.Dir = home
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "XDG_STATE_HOME=" + home, "XDG_RUNTIME_DIR=" + home,
		testenv.EnvBin + "=" + bin, testenv.EnvRootfs + "=" + os.Getenv(testenv.EnvRootfs), testenv.EnvNobody + "=1", envReport + "=" + report, envPens + "=" + w.pens.lend(t, testenv.Nobody),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testenv.Nobody, Gid: testenv.Nobody}, Setsid: true}
	pr, pw := io.Pipe()
	cmd.Stdout, cmd.Stderr = pw, pw
	var text []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		sc := bufio.NewScanner(pr)
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			text = append(text, sc.Text())
		}
		_, _ = io.Copy(io.Discard, pr)
	}()
	err := cmd.Run()
	_ = pw.Close()
	<-done
	mirror(t, text)
	if data, rerr := os.ReadFile(report); rerr == nil {
		addReport(string(data))
	}
	if err != nil {
		t.Errorf("as uid %d: %v\n%s", testenv.Nobody, err, strings.Join(text, "\n"))
	}
}

// mirror makes subtests of t out of those that ran as nobody.
func mirror(t *testing.T, text []string) {
	t.Helper()
	n := 0
	for _, line := range text {
		m := resultLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		n++
		t.Run(m[2], func(t *testing.T) {
			switch m[1] {
			case "FAIL":
				t.Error("failed; see the output of the whole run")
			case "SKIP":
				t.Skip("skipped; see the report")
			}
		})
	}
	if n == 0 {
		t.Error("no attack ran")
	}
}
