//go:build linux

package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

// labelRun marks everything that a run of these tests makes.
const labelRun = "dev.glovebox.test.engine"

var (
	builder testenv.Builder
	runID   = strings.ToLower(rand.Text()[:10])
	tag     = "glovebox-test-" + runID + ":1"
	// imported is the image's ID, made once.
	imported = sync.OnceValues(importImage)
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		code := m.Run()
		if left := cleanUp(); left != "" {
			fmt.Fprintln(os.Stderr, "the tests left", left)
			code = max(code, 1)
		}
		_ = builder.Close()
		return code
	}())
}

// cleanUp removes what the run made and says what should have been gone.
func cleanUp() (left string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e, err := Open("")
	if err != nil || e.Ping(ctx) != nil {
		return ""
	}
	defer e.Close()
	all, _ := e.List(ctx, labelRun, runID)
	for _, c := range all {
		left += " container " + c.Name
		_ = e.Remove(ctx, c.ID)
	}
	nets, _ := e.Networks(ctx, labelRun, runID)
	for _, n := range nets {
		left += " network " + n.Name
		_ = e.RemoveNetwork(ctx, n.ID)
	}
	images, _ := e.Images(ctx, labelRun, runID)
	for _, i := range images {
		if len(i.Tags) != 1 || i.Tags[0] != tag {
			left += fmt.Sprintf(" image %s %q", i.ID, i.Tags)
		}
		for _, name := range append(i.Tags, i.ID) {
			_ = e.RemoveImage(ctx, name)
		}
	}
	return left
}

// docker gives the engine of this machine.
func docker(t *testing.T) *Engine {
	t.Helper()
	e, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	unavailable := ""
	if err := e.Ping(t.Context()); err != nil {
		unavailable = err.Error()
	}
	testenv.Require(t, "docker", unavailable)
	return e
}

func labels() map[string]string { return map[string]string{labelRun: runID} }

// importImage makes an image of the probe, and of links to a /usr that tests
// mount from the host.
func importImage() (string, error) {
	probe, err := os.ReadFile(probePath)
	if err != nil {
		return "", err
	}
	e, err := Open("")
	if err != nil {
		return "", err
	}
	defer e.Close()
	return e.Import(context.Background(), tag, labels(), bytes.NewReader(archive(map[string]string{
		"probe": string(probe), "usr/": "", "scratch/": "", "tmp/": "", "lib": "->usr/lib", "lib64": "->usr/lib64", "bin": "->usr/bin",
	})))
}

var probePath string

// archive is a tar archive: names that end in a slash are directories, contents
// that begin with -> are links.
func archive(files map[string]string) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for name, content := range files {
		h := &tar.Header{Name: name, Mode: 0o755, Size: int64(len(content)), Typeflag: tar.TypeReg}
		if target, ok := strings.CutPrefix(content, "->"); ok {
			h.Typeflag, h.Linkname, h.Size, content = tar.TypeSymlink, target, 0, ""
		}
		if strings.HasSuffix(name, "/") {
			h.Typeflag = tar.TypeDir
		}
		_ = w.WriteHeader(h)
		_, _ = io.WriteString(w, content)
	}
	_ = w.Close()
	return buf.Bytes()
}

// theImage gives the probe's image, which all tests share.
func theImage(t *testing.T) string {
	t.Helper()
	probeOnce.Do(func() { probePath = builder.Build(t, "internal/engine/internal/probe") })
	id, err := imported()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

var probeOnce sync.Once

var count struct {
	sync.Mutex
	n int
}

// newName is a name that nothing else has.
func newName() string {
	count.Lock()
	defer count.Unlock()
	count.n++
	return fmt.Sprintf("glovebox-test-%s-%d", runID, count.n)
}

// spec is the container that tests start from.
func spec(t *testing.T, args ...string) Container {
	t.Helper()
	return Container{
		Name: newName(), Image: theImage(t), Args: append([]string{"/probe"}, args...), Labels: labels(),
		Memory: 64 << 20, PIDs: 32, CPUs: 1,
	}
}

// create makes a container that is gone when the test ends.
func create(t *testing.T, e *Engine, c Container) string {
	t.Helper()
	made, err := e.Create(t.Context(), c)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
		defer cancel()
		if err := e.Remove(ctx, c.Name); err != nil {
			t.Errorf("%s is left: %v", c.Name, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return made.ID
}

// output runs a container to its end and gives what it wrote and its state.
func output(t *testing.T, e *Engine, c Container) (string, string, State) {
	t.Helper()
	c.Stdio = true
	id := create(t, e, c)
	s, err := e.Attach(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := e.Start(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_ = s.SetDeadline(time.Now().Add(30 * time.Second))
	out, err := io.ReadAll(io.LimitReader(s, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	state, err := e.Wait(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return string(out), string(s.Tail()), state
}

// wantKind checks an error's kind and field, and gives the error.
func wantKind(t *testing.T, err error, kind backend.Kind, field string) *backend.Error {
	t.Helper()
	if backend.KindOf(err) != kind {
		t.Fatalf("error %v is %q, want %q", err, backend.KindOf(err), kind)
	}
	be, ok := err.(*backend.Error) //nolint:errorlint // that it is one is the contract
	if !ok {
		t.Fatalf("%T is no *backend.Error: %v", err, err)
	}
	if be.Field != field {
		t.Errorf("field %q, want %q: %v", be.Field, field, err)
	}
	return be
}
