//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/image"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

// labelRun marks the containers of a run of these tests.
const labelRun = "dev.glovebox.test.packaging"

var (
	builder testenv.Builder
	runID   = strings.ToLower(rand.Text()[:10])
	tag     = "glovebox/glovebox:test-" + runID
	// made is the image, once for all tests: it has the programs of this tree.
	made sync.Once
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		// Its image comes from a registry. What it would clean up, cleanUp checks.
		os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
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
	e, err := engine.Open("")
	if err != nil || e.Ping(ctx) != nil {
		return ""
	}
	defer e.Close()
	all, err := e.List(ctx, labelRun, runID)
	if err != nil {
		left += err.Error()
	}
	for _, c := range all {
		left += " container " + c.Name
		_ = e.Remove(ctx, c.ID)
	}
	if err := e.RemoveImage(ctx, tag); err != nil {
		left += " image " + tag + ": " + err.Error()
	}
	kept, err := e.Images(ctx, labelHash, "")
	if err != nil {
		left += err.Error()
	}
	for _, i := range kept {
		for _, name := range i.Tags {
			if strings.HasPrefix(name, tag) {
				left += " image " + name
				_ = e.RemoveImage(ctx, name)
			}
		}
	}
	return left
}

// docker gives the engine of this machine.
func docker(t *testing.T) *engine.Engine {
	t.Helper()
	e, err := engine.Open("")
	if err == nil {
		t.Cleanup(func() { e.Close() })
		err = e.Ping(t.Context())
	}
	if err != nil {
		testenv.Require(t, "docker", err.Error())
	}
	info, err := e.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !info.Local {
		testenv.Require(t, "docker", "the engine is not on this host")
	}
	return e
}

// packaged makes the image and gives its name.
func packaged(t *testing.T) string {
	t.Helper()
	e := docker(t)
	store, err := image.Default(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Get("base"); err != nil {
		testenv.Require(t, "docker", err.Error())
	}
	bin := filepath.Dir(builder.Build(t, "cmd/glovebox"))
	builder.Build(t, "cmd/glovebox-agent")
	program := builder.Build(t, "packaging")
	// The program and not its functions: with the race detector those are slow.
	made.Do(func() {
		var stderr strings.Builder
		cmd := exec.CommandContext(t.Context(), program, "-bin", bin, "-tag", tag)
		cmd.Stderr = &stderr
		if out, err := cmd.Output(); err != nil || string(out) != tag+"\n" {
			t.Errorf("%v, %q, %s", err, out, stderr.String())
		}
	})
	if _, err := e.Image(t.Context(), tag); err != nil {
		t.Fatal(err)
	}
	return tag
}

// box is a container of the image that waits for what is run in it.
type box struct {
	*testcontainers.DockerContainer
}

// start runs a container with the flags of docker run that flagged knows, and
// removes it at the end with a look at what is left of it.
func startBox(t *testing.T, flags ...string) box {
	t.Helper()
	user, change := flagged(t, flags)
	c, err := testcontainers.Run(t.Context(), packaged(t),
		testcontainers.WithEntrypoint("sleep", "infinity"),
		testcontainers.WithLabels(map[string]string{labelRun: runID}),
		testcontainers.WithLogger(log.TestLogger(t)), //nolint:forbidigo // testcontainers knows no other
		testcontainers.WithConfigModifier(func(c *container.Config) {
			if user != "" {
				c.User = user
			}
		}),
		testcontainers.WithHostConfigModifier(change),
		testcontainers.WithWaitStrategyAndDeadline(30*time.Second,
			wait.ForExec([]string{"glovebox", "version"}).WithStartupTimeout(30*time.Second)),
	)
	if c != nil {
		t.Cleanup(func() { end(t, box{c}) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return box{c}
}

// end ends a container as docker rm -f does. Its end takes everything with it.
func end(t *testing.T, b box) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
	defer cancel()
	// One that is gone is no error.
	if err := testcontainers.TerminateContainer(b, testcontainers.StopContext(ctx), testcontainers.StopTimeout(0)); err != nil {
		t.Error(err)
	}
	for {
		left, err := engine.FindRemains(b.GetContainerID())
		if err != nil {
			t.Error(err)
			return
		}
		if left[0].Empty() {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Errorf("of the container are left %s", left[0])
			_ = left[0].Clean(ctx)
			return
		}
	}
}

// flagged turns flags of docker run into a container's settings. All get no
// network, and limits, since this machine is the tests' own.
func flagged(t *testing.T, flags []string) (user string, change func(*container.HostConfig)) {
	t.Helper()
	yes, pids := true, int64(512)
	host := container.HostConfig{NetworkMode: "none", Init: &yes, Resources: container.Resources{Memory: 1 << 30, PidsLimit: &pids}}
	profile, err := hostProfile()
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(flags); i += 2 {
		switch flag, value := flags[i], flags[i+1]; flag {
		case "--user":
			user = value
		case "--cap-add":
			host.CapAdd = append(host.CapAdd, value)
		case "--volume":
			host.Binds = append(host.Binds, value)
		case "--security-opt":
			switch value {
			case "seccomp=glovebox.json":
				host.SecurityOpt = append(host.SecurityOpt, "seccomp="+string(profile))
			case "systempaths=unconfined": // the client's own: nothing is masked
				host.MaskedPaths, host.ReadonlyPaths = []string{}, []string{}
			default:
				t.Fatalf("--security-opt %s is not known", value)
			}
		default:
			t.Fatalf("the flag %s is not known", flag)
		}
	}
	return user, func(h *container.HostConfig) { *h = host }
}

// result is what a command in a container gave.
type result struct {
	code           int
	stdout, stderr string
}

func (b box) exec(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code, r, err := b.Exec(ctx, args)
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	var stdout, stderr bytes.Buffer
	if _, err := stdcopy.StdCopy(&stdout, &stderr, r); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return result{code, stdout.String(), stderr.String()}
}

// must is exec of what gives code 0.
func (b box) must(t *testing.T, args ...string) string {
	t.Helper()
	got := b.exec(t, args...)
	if got.code != 0 {
		t.Fatalf("%q: %+v", args, got)
	}
	return strings.TrimSpace(got.stdout)
}

// decode reads JSON.
func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %.500s", err, text)
	}
}
