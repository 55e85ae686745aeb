//go:build linux

package box

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/agent/boot"
	"github.com/glovebox-dev/glovebox/internal/keeper"
)

// agentName is the slim agent's file name.
const agentName = "glovebox-agent"

// hooked records that this program called MaybeAgent, so that its own
// executable can be an agent.
var hooked atomic.Bool //nolint:gochecknoglobals // a fact about the program, set once at its start

// MaybeAgent turns this process into a sandbox's agent, or into the keeper of
// kept sandboxes, when it was started as one, and never returns then. Programs
// that use this package and ship no glovebox call it first in main.
func MaybeAgent() {
	hooked.Store(true)
	if keeper.Wanted() {
		os.Exit(keeper.Main())
	}
	if boot.Wanted() {
		os.Exit(boot.Main())
	}
}

// FindAgent is the path of the binary that sandboxes start with. name is the
// driver's, for errors.
func FindAgent(name, configured string) (string, error) {
	if configured != "" {
		return configured, checkStatic(name, configured)
	}
	var candidates []string
	self, err := os.Executable()
	if err == nil {
		candidates = append(candidates, filepath.Join(filepath.Dir(self), agentName))
		if hooked.Load() {
			candidates = append(candidates, self)
		}
	}
	for _, file := range []string{agentName, "glovebox"} {
		if p, err := exec.LookPath(file); err == nil && filepath.IsAbs(p) {
			candidates = append(candidates, p)
		}
	}
	var last error
	for _, c := range candidates {
		if _, err := os.Stat(c); err != nil {
			continue
		}
		if last = checkStatic(name, c); last == nil {
			return c, nil
		}
	}
	if last != nil {
		return "", last
	}
	return "", &backend.Error{
		Op: "agent", Kind: backend.ErrUnavailable, Backend: name,
		Err: errors.New("no agent binary was found"),
		Fix: "put glovebox-agent beside this executable (`make build`), or call the driver's MaybeAgent first in main",
	}
}

// FindKeeper is the path of the program that can be a store's keeper. name is
// the driver's, for errors.
func FindKeeper(name string) (string, error) {
	if hooked.Load() {
		return "/proc/self/exe", nil // though its file may have been replaced
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "glovebox")
		if st, err := os.Stat(beside); err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0 && beside != self {
			return beside, nil
		}
	}
	if p, err := exec.LookPath("glovebox"); err == nil && filepath.IsAbs(p) {
		return p, nil
	}
	return "", &backend.Error{
		Op: "keeper", Kind: backend.ErrUnavailable, Backend: name,
		Err: errors.New("no program was found that can hold a kept sandbox's network or stream: glovebox-agent cannot"),
		Fix: "put glovebox beside this executable or on the PATH (`make build`), or call the driver's MaybeAgent first in main",
	}
}

// EnvKeeperIdle is for tests: how long a keeper stays that holds nothing.
const EnvKeeperIdle = "GLOVEBOX_TEST_KEEPER_IDLE"

func keeperIdle() time.Duration {
	d, err := time.ParseDuration(os.Getenv(EnvKeeperIdle))
	if err != nil || d <= 0 {
		return keeper.Idle
	}
	return d
}

// checkStatic refuses a binary that needs a dynamic loader: the sandbox's root
// may have another C library, or none.
func checkStatic(name, path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return &backend.Error{
			Op: "agent", Kind: backend.ErrInvalid, Backend: name, Field: "agent",
			Err: fmt.Errorf("%s is not a Linux program: %w", path, err), Fix: "name a static glovebox-agent",
		}
	}
	defer f.Close() //nolint:errcheck // read side
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return &backend.Error{
				Op: "agent", Kind: backend.ErrInvalid, Backend: name, Field: "agent",
				Err: fmt.Errorf("%s is dynamically linked", path), Fix: "build it with CGO_ENABLED=0",
			}
		}
	}
	return nil
}
