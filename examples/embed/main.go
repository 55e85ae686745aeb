// Command embed runs untrusted code from a Go program: once with files in and
// out, then several commands in one sandbox.
//
//	CGO_ENABLED=0 go run ./examples/embed
//
// Expect exit code 0, the sum that the first program computed, what it got, a
// command cut off at its timeout and a request that is refused.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/subprocess"
)

// [main]
func main() {
	// First: each sandbox's first process is this program, started again.
	subprocess.MaybeAgent()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	ex, err := subprocess.Open(ctx, subprocess.DefaultConfig())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ex.Close()) }()
	if err := once(ctx, ex); err != nil {
		return err
	}
	if err := several(ctx, ex); err != nil {
		return err
	}
	return refused(ctx, ex)
}

// [end]

// [once]
func once(ctx context.Context, ex backend.Executor) error {
	res, err := backend.Run(ctx, ex, backend.RunSpec{
		Spec: backend.Spec{
			MinIsolation: backend.IsolationProcess,
			Limits:       backend.Limits{Memory: 64 << 20, Pids: 16},
		},
		Command: backend.Command{
			Args:    []string{"awk", "{ s += $1 } END { print s >\"sum.txt\"; print NR, \"lines\" }", "numbers.txt"},
			Timeout: 5 * time.Second,
		},
		Files: map[string]backend.File{"numbers.txt": {Data: []byte("17\n4\n21\n")}},
		Fetch: []string{"sum.txt"},
	})
	if err != nil {
		return err // we do not know what the program did
	}
	// What it did is no error, whatever it was.
	fmt.Printf("%v: %s", res.Exit, res.Stdout)
	fmt.Printf("sum.txt: %s", res.Files["sum.txt"])
	fmt.Printf("isolation %v, network %s\n", res.Receipt.Achieved, res.Receipt.Network)
	return nil
}

// [end]

// [several]
func several(ctx context.Context, ex backend.Executor) (err error) {
	sb, err := ex.Create(ctx, backend.Spec{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sb.Destroy(context.WithoutCancel(ctx))) }()
	for _, cmd := range []backend.Command{
		{Args: []string{"sh", "-c", "echo kept >note; exit 3"}},
		{Args: []string{"cat", "note"}},
		{Args: []string{"sleep", "60"}, Timeout: 200 * time.Millisecond},
		{Args: []string{"no-such-program"}},
	} {
		cmd.Output.Stdout = os.Stdout
		exit, err := backend.RunIn(ctx, sb, cmd)
		if err != nil {
			return err
		}
		fmt.Println(cmd.Args[0], "ended with", exit)
	}
	return nil
}

// [end]

// [refused]
func refused(ctx context.Context, ex backend.Executor) error {
	_, err := ex.Create(ctx, backend.Spec{MinIsolation: backend.IsolationVM})
	fmt.Println(backend.KindOf(err), "-", err)
	if backend.KindOf(err) != backend.ErrUnsupported {
		return fmt.Errorf("a level was not refused: %w", err)
	}
	return nil
}

// [end]
