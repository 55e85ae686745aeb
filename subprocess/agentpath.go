//go:build linux

package subprocess

import "github.com/glovebox-dev/glovebox/internal/box"

// MaybeAgent turns this process into a sandbox's agent when it was started as
// one, and never returns then. Programs that use this package and ship no
// glovebox-agent call it first in main.
func MaybeAgent() { box.MaybeAgent() }
