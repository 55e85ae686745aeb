// Package examples_test runs every example through the command line that users
// have, by the command that stands in the example's own header, and holds the
// documentation against the program.
package examples_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

var programs testenv.Builder

func TestMain(m *testing.M) {
	code := m.Run()
	if err := programs.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// report is the document that run --json prints.
type report struct {
	OK      bool             `json:"ok"`
	Exit    *backend.Exit    `json:"exit"`
	Code    int              `json:"shell_code"`
	Stdout  output           `json:"stdout"`
	Stderr  output           `json:"stderr"`
	Receipt *backend.Receipt `json:"receipt"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error"`

	rest string // what the shell printed after the document
	dir  string // where the command ran
	code int    // of the shell
}

type output struct {
	Text string `json:"text"`
}

// lines are the program's standard output by lines.
func (r report) lines() []string {
	return strings.Split(strings.TrimSuffix(r.Stdout.Text, "\n"), "\n")
}

// diagnosis is what the tests need of doctor's document.
type diagnosis struct {
	Backends  []diagnosed `json:"backends"`
	Languages []struct {
		Language string `json:"language"`
		Path     string `json:"path"`
	} `json:"languages"`
}

type diagnosed struct {
	Name         string               `json:"name"`
	Privilege    string               `json:"privilege"`
	Health       backend.Health       `json:"health"`
	Capabilities backend.Capabilities `json:"capabilities"`
}

// world is a home and working directory with a copy of the examples.
type world struct {
	t   *testing.T
	dir string
	env []string
}

// newWorld is one in which everything runs on the subprocess backend, whatever
// else this machine has. It skips the test where that is not to be had.
func newWorld(t *testing.T) *world {
	t.Helper()
	return worldOf(t, "subprocess")
}

// worldOf is one in which everything runs on that backend.
func worldOf(t *testing.T, name string) *world {
	t.Helper()
	w := bareWorld(t)
	w.env = append(w.env, "GLOVEBOX_BACKEND="+name)
	// Of a user who cannot enter root's images.
	if rootfs := os.Getenv("GLOVEBOX_TEST_ROOTFS"); rootfs != "" && name == "gvisor" {
		w.env = append(w.env, "GLOVEBOX_BACKENDS__GVISOR__WITH__ROOTFS="+rootfs)
	}
	h := w.diagnose(name).Health
	why := h.Reason
	if h.Available && h.Isolation < backend.IsolationProcess {
		why = "the isolation is only " + h.Isolation.String()
	}
	testenv.Require(t, name, why)
	return w
}

// diagnose is what doctor says of a backend, with that environment besides.
func (w *world) diagnose(name string, env ...string) diagnosed {
	w.t.Helper()
	var d diagnosis
	w.decode(&d, strings.Join(append(env, "glovebox doctor --json"), " "))
	i := slices.IndexFunc(d.Backends, func(b diagnosed) bool { return b.Name == name })
	if i < 0 {
		w.t.Fatalf("doctor knows no backend %s", name)
	}
	return d.Backends[i]
}

// bareWorld has the programs on its PATH, before all others.
func bareWorld(t *testing.T) *world {
	t.Helper()
	programs.Build(t, "cmd/glovebox-agent") // preferred when it lies beside
	bin := filepath.Dir(programs.Build(t, "cmd/glovebox"))
	w := &world{t: t, dir: t.TempDir()}
	if err := os.CopyFS(filepath.Join(w.dir, "examples"), os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	w.env = []string{
		"PATH=" + bin + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + w.dir, "LANG=C.UTF-8",
		"XDG_STATE_HOME=" + filepath.Join(w.dir, "state"), "XDG_CONFIG_HOME=" + filepath.Join(w.dir, "config"),
	}
	return w
}

// need ends the test without an interpreter that sandboxes find.
func (w *world) need(language string) {
	w.t.Helper()
	var d diagnosis
	w.decode(&d, "glovebox doctor --json")
	for _, l := range d.Languages {
		if l.Language == language && l.Path != "" {
			return
		}
	}
	testenv.Require(w.t, "subprocess", "there is no interpreter of "+language+" for it")
}

// shell runs a command line in the world's directory.
func (w *world) shell(line string) (stdout, stderr string, code int) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), "bash", "-c", line)
	cmd.Dir, cmd.Env = w.dir, w.env
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if ee := (*exec.ExitError)(nil); !errors.As(err, &ee) {
			w.t.Fatalf("%s: %v", line, err)
		}
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// decode runs a command line that prints a document, and gives what follows it.
func (w *world) decode(into any, line string) (rest string, code int) {
	w.t.Helper()
	stdout, stderr, code := w.shell(line)
	dec := json.NewDecoder(strings.NewReader(stdout))
	if err := dec.Decode(into); err != nil {
		w.t.Fatalf("%s\nprints no document: %v\n%s%s", line, err, stdout, stderr)
	}
	after, err := io.ReadAll(dec.Buffered())
	if err != nil {
		w.t.Fatal(err)
	}
	return string(after), code
}

// run runs an example as its header says, with --json and more arguments.
func (w *world) run(example string, more ...string) report {
	w.t.Helper()
	line := strings.Replace(command(w.t, example), "glovebox run ", "glovebox run --json ", 1)
	for _, m := range more {
		line += " '" + strings.ReplaceAll(m, "'", `'\''`) + "'"
	}
	r := report{dir: w.dir}
	r.rest, r.code = w.decode(&r, line)
	if r.Error != nil {
		w.t.Fatalf("%s\n%s", line, r.Error.Message)
	}
	if r.Receipt.Achieved < backend.IsolationProcess || !r.Receipt.Measured || r.Receipt.Network != backend.NetworkNone {
		w.t.Errorf("%s ran at level %v, measured %v, with network %v", example, r.Receipt.Achieved, r.Receipt.Measured, r.Receipt.Network)
	}
	return r
}

// headerCommand is an indented line of a comment that runs glovebox, with the
// lines that it is continued on.
var headerCommand = regexp.MustCompile(`(?m)^(?:#|//)?[ ]{2,4}((?:.*\\\n)*.*glovebox run (?:.*\\\n)*.*)$`)

// command is what an example's header says to run.
func command(t *testing.T, example string) string {
	t.Helper()
	data, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	m := headerCommand.FindStringSubmatch(string(data))
	if m == nil {
		t.Fatalf("%s: no line of the header says how to run it", example)
	}
	line := strings.Replace(m[1], "CGO_ENABLED=0 go run ./cmd/glovebox run", "glovebox run", 1)
	if !strings.Contains(line, "examples/"+example) {
		t.Fatalf("%s: its header runs something else: %s", example, line)
	}
	return line
}
