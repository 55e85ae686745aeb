// Command choose runs untrusted code on the strongest backend that this machine
// has and never on one that is too weak.
//
//	CGO_ENABLED=0 go run ./examples/choose
//
// Expect exit code 0, what ran where, each backend that was passed over with its
// reason, and a level that nothing here reaches.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/docker"
	"github.com/glovebox-dev/glovebox/gvisor"
	"github.com/glovebox-dev/glovebox/policy/router"
	"github.com/glovebox-dev/glovebox/subprocess"
)

func main() {
	subprocess.MaybeAgent() // that of any driver will do
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "choose:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	ex, err := open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ex.Close()) }()
	if err := strongest(ctx, ex); err != nil {
		return err
	}
	_, err = ex.Create(ctx, backend.Spec{MinIsolation: backend.IsolationVM})
	fmt.Println("vm:", backend.KindOf(err))
	return nil
}

// [open]
// open gives an executor over all three, the preferred one first. It owns them.
func open(ctx context.Context) (*router.Router, error) {
	// A backend opens whatever the machine has; whether it works is found out when
	// it is used.
	strong, err := gvisor.Open(ctx, gvisor.DefaultConfig())
	if err != nil {
		return nil, err
	}
	engine, err := docker.Open(ctx, docker.DefaultConfig())
	if err != nil {
		return nil, errors.Join(err, strong.Close())
	}
	plain, err := subprocess.Open(ctx, subprocess.DefaultConfig())
	if err != nil {
		return nil, errors.Join(err, strong.Close(), engine.Close())
	}
	return router.New([]router.Candidate{
		{Name: "gvisor", Executor: strong}, {Name: "docker", Executor: engine}, {Name: "subprocess", Executor: plain},
	}, router.Options{MinIsolation: backend.IsolationProcess})
}

// [end]

// [strongest]
func strongest(ctx context.Context, ex backend.Executor) error {
	res, err := backend.Run(ctx, ex, backend.RunSpec{Command: backend.Command{Args: []string{"sh", "-c", "echo $((6 * 7))"}}})
	if err != nil {
		return err
	}
	fmt.Printf("on %s, isolation %v: %s", res.Receipt.Backend, res.Receipt.Achieved, res.Stdout)
	for _, c := range res.Receipt.Passed {
		fmt.Printf("passed over %s, isolation %v: %s\n", c.Backend, c.Isolation, c.Reason)
	}
	return nil
}

// [end]
