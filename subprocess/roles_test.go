//go:build linux

package subprocess_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/subprocess"
)

// The test binary plays the other processes of a test itself.
const (
	envRole   = "GLOVEBOX_TEST_ROLE"
	envConfig = "GLOVEBOX_TEST_ROLE_CONFIG" // a subprocess.Config
	envArg    = "GLOVEBOX_TEST_ROLE_ARG"

	roleVictim = "victim" // makes and destroys sandboxes until it is killed
	roleFinder = "finder" // finds a kept sandbox and runs a command in it
	roleIdle   = "idle"   // opens an executor, whose sweep runs, until its input ends
)

// play is the process of a role.
func play(role string) int {
	var cfg subprocess.Config
	if err := json.Unmarshal([]byte(os.Getenv(envConfig)), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx := context.Background()
	ex, err := subprocess.Open(ctx, cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	switch role {
	case roleVictim:
		victim(ctx, ex, os.Getenv(envArg))
	case roleFinder:
		err = finder(ctx, ex, os.Getenv(envArg))
	case roleIdle:
		os.Stdin.Read(make([]byte, 1))
	}
	if err == nil {
		err = ex.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// victim makes, uses and destroys sandboxes, two at a time. It says which kept
// ones are ready, and which it is about to destroy.
func victim(ctx context.Context, ex *subprocess.Executor, number string) {
	var mu sync.Mutex
	say := func(what, id string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(what, id)
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				spec := backend.Spec{Keep: rand.IntN(2) == 0, Lifetime: time.Minute}
				sb, err := ex.Create(ctx, spec)
				if err != nil {
					say("error", err.Error())
					return
				}
				if spec.Keep {
					say("ready", sb.ID())
				}
				sb.Start(ctx, backend.Command{Args: []string{"sh", "-c", "setsid sleep " + number + " & sleep " + number}, Timeout: backend.UntilSandboxEnds})
				if spec.Keep && rand.IntN(3) == 0 {
					continue
				}
				say("ending", sb.ID())
				sb.Destroy(ctx)
			}
		})
	}
	wg.Wait()
}

func finder(ctx context.Context, ex *subprocess.Executor, id string) error {
	f, ok := backend.As[backend.Finder](ex)
	if !ok {
		return fmt.Errorf("no finder")
	}
	sb, err := f.Find(ctx, id)
	if err != nil {
		return err
	}
	exit, err := backend.RunIn(ctx, sb, backend.Command{Args: []string{"cat", "note"}, Output: backend.Output{Stdout: os.Stdout}})
	if err == nil && !exit.Success() {
		err = fmt.Errorf("%v", exit)
	}
	return err
}

// role is a command that plays a role with cfg.
func role(t testing.TB, name string, cfg subprocess.Config, arg string) *exec.Cmd {
	t.Helper()
	data, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), envRole+"="+name, envConfig+"="+string(data), envArg+"="+arg)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	t.Cleanup(func() {
		if errs.Len() > 0 && t.Failed() {
			t.Logf("%s said: %s", name, errs.String())
		}
	})
	return cmd
}
