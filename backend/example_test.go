package backend_test

import (
	"context"
	"fmt"
	"os"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/backend/backendtest"
)

// A one-shot: a sandbox, a file, a command, and nothing left afterwards. A real
// program opens a backend such as subprocess instead of the fake.
func ExampleRun() {
	ctx := context.Background()
	res, err := backend.Run(ctx, backendtest.New(), backend.RunSpec{
		Spec:    backend.Spec{MinIsolation: backend.IsolationProcess, Limits: backend.Limits{Memory: 64 << 20}},
		Command: backend.Command{Args: []string{"cat", "notes.txt"}},
		Files:   map[string]backend.File{"notes.txt": {Data: []byte("remember the milk\n")}},
	})
	if err != nil {
		fmt.Println(backend.KindOf(err), err)
		return
	}
	fmt.Printf("%v at level %v: %s", res.Exit, res.Receipt.Achieved, res.Stdout)
	// Output: exited(0) at level vm: remember the milk
}

// What cannot be enforced is refused, with the field and the fix.
func ExampleCapabilities_Admit() {
	ex := backendtest.New(backendtest.WithCapabilities(func(c *backend.Capabilities) {
		delete(c.Claims, backend.ControlDisk)
	}))
	_, err := ex.Create(context.Background(), backend.Spec{Limits: backend.Limits{Disk: 1 << 30}})
	fmt.Println(err)
	// Output: create: limits.disk: cannot be enforced here (nothing enforces it) (backend fake); leave it unset, name disk in advisory, or choose another backend
}

// Several commands in one sandbox, with output as it comes, and an optional
// ability found with As.
func ExampleRunIn() {
	ctx := context.Background()
	ex := backendtest.New()
	defer ex.Close()
	sb, err := ex.Create(ctx, backend.Spec{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sb.Destroy(ctx)
	for _, text := range []string{"one", "two"} {
		exit, err := backend.RunIn(ctx, sb, backend.Command{
			Args: []string{"echo", text}, Output: backend.Output{Stdout: os.Stdout},
		})
		fmt.Println(exit, err)
	}
	_, canPause := backend.As[backend.Pauser](sb)
	fmt.Println("can pause:", canPause)
	// Output:
	// one
	// exited(0) <nil>
	// two
	// exited(0) <nil>
	// can pause: true
}
