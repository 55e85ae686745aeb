// Command glovebox runs untrusted code in a sandbox.
package main

import (
	"context"
	"os"

	"github.com/glovebox-dev/glovebox/cmd/glovebox/internal/cli"
	"github.com/glovebox-dev/glovebox/internal/builtin"
	"github.com/glovebox-dev/glovebox/subprocess"
)

func main() {
	// First, since every local sandbox starts this program again as its agent.
	subprocess.MaybeAgent()
	os.Exit(cli.Main(context.Background(), cli.App{
		Args: os.Args[1:], Environ: os.Environ(), Registry: builtin.Registry,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}))
}
