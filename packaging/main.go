//go:build linux

// Command packaging makes the container image that glovebox itself comes in:
// the root file system of the image base and the two programs, imported into
// the engine without a registry and without the engine's build. It does nothing
// when the image is there, and prints its name.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/image"
)

func main() {
	//nolint:forbidigo // the process's own context
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	ref, err := run(ctx, os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "packaging:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
	fmt.Fprintln(os.Stdout, ref)
}

func run(ctx context.Context, args []string) (ref string, err error) {
	flags := flag.NewFlagSet("packaging", flag.ContinueOnError)
	bin := flags.String("bin", "bin", "where glovebox and glovebox-agent were built")
	tag := flags.String("tag", "", "the image's name, glovebox/glovebox:VERSION when empty")
	if err := flags.Parse(args); err != nil {
		return "", err
	}
	if *tag == "" {
		if *tag, err = defaultTag(ctx, *bin); err != nil {
			return "", err
		}
	}
	store, err := image.Default(os.Getenv)
	if err != nil {
		return "", err
	}
	base, err := store.Get("base")
	if err != nil {
		return "", err
	}
	// The version must not go while it is read.
	held, err := store.Hold(base)
	if err != nil {
		return "", err
	}
	defer held.Close() //nolint:errcheck // read side
	e, err := engine.Open("")
	if err != nil {
		return "", err
	}
	defer e.Close() //nolint:errcheck // idle connections
	p, err := newBundle(base, *bin)
	if err != nil {
		return "", err
	}
	return *tag, p.makeImage(ctx, e, *tag)
}
