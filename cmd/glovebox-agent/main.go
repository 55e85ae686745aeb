// Command glovebox-agent is the first process of every local sandbox, as a
// binary of its own: smaller and quicker to start than glovebox. Backends start
// it; it does nothing when a person does.
package main

import (
	"fmt"
	"os"

	"github.com/glovebox-dev/glovebox/internal/agent/boot"
)

func main() {
	if !boot.Wanted() {
		fmt.Fprintln(os.Stderr, "glovebox-agent is started by glovebox inside a sandbox; run `glovebox run` instead")
		os.Exit(2)
	}
	os.Exit(boot.Main())
}
