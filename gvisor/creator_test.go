//go:build linux

package gvisor_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/gvisor"
)

// envCreator holds the configuration of a process that makes a sandbox and is
// killed; envKeep has it make a kept one.
const (
	envCreator = "GLOVEBOX_TEST_GVISOR_CREATOR"
	envKeep    = "GLOVEBOX_TEST_GVISOR_KEEP"
)

// creator makes a sandbox, says its ID, and waits to be killed.
func creator(config string) {
	var cfg gvisor.Config
	err := json.Unmarshal([]byte(config), &cfg)
	if err == nil {
		var ex *gvisor.Executor
		if ex, err = gvisor.Open(context.Background(), cfg); err == nil {
			var sb backend.Sandbox
			if sb, err = ex.Create(context.Background(), backend.Spec{Keep: os.Getenv(envKeep) != ""}); err == nil {
				fmt.Println(sb.ID())
				select {}
			}
		}
	}
	fmt.Println(err)
	os.Exit(1)
}

// startCreator gives the ID of its sandbox, and what kills it.
func startCreator(t *testing.T, cfg gvisor.Config, env ...string) (id string, kill func()) {
	t.Helper()
	data, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), envCreator+"="+string(data)), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		cmd.Process.Signal(syscall.SIGKILL)
		cmd.Wait()
	}
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	id = strings.TrimSpace(line)
	if err != nil || !backend.ValidID(id) {
		t.Fatalf("the creator said %q, %v", line, err)
	}
	return id, kill
}

// eventually waits until what is polled holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // polled: the host tells nobody
	}
}
