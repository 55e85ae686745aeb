package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/backend/backendtest"
	"github.com/glovebox-dev/glovebox/cmd/glovebox/internal/cli"
	"github.com/glovebox-dev/glovebox/internal/registry"
)

// asProgram makes the test binary behave as glovebox with a fake backend, so
// that signals, pipes and terminals are real.
const asProgram = "GLOVEBOX_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	fake := backendtest.New(programs()...)
	code := cli.Main(context.Background(), cli.App{
		Args: os.Args[1:], Environ: os.Environ(), Registry: registryOf(fake),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if left := fake.Leaked(); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "LEAKED", left)
		code = 99
	}
	os.Exit(code)
}

// registryOf makes fake the only backend, under the name that is configured by
// default.
func registryOf(fake *backendtest.Fake) func() (*registry.Registry, error) {
	return func() (*registry.Registry, error) {
		return registry.New(registry.Driver("subprocess", func() struct{} { return struct{}{} },
			func(context.Context, registry.Env, struct{}) (backend.Executor, error) { return fake.Reopen(), nil },
			func(context.Context, registry.Env, struct{}) (registry.Report, error) {
				caps := fake.Capabilities()
				return registry.Report{
					Driver: "subprocess", Capabilities: caps, Health: backend.Health{Available: true, Isolation: caps.Isolation},
				}, nil
			}).Local())
	}
}

// programs are the fake's interpreters: each prints its arguments and the
// source it was given.
func programs() []backendtest.Option {
	var out []backendtest.Option
	for _, name := range []string{"python3", "node", "bash", "sh"} {
		out = append(out, backendtest.WithProgram(name, func(ctx context.Context, p *backendtest.Proc) backend.Exit {
			file := p.Args[1]
			if name == "python3" {
				file = p.Args[2]
			}
			data, err := backend.ReadFile(ctx, p.Files, file, 1<<30)
			if err != nil {
				_, _ = fmt.Fprintln(p.Stderr, err)
				return backendtest.Exited(1)
			}
			_, _ = fmt.Fprintf(p.Stdout, "%s\n%s\n", strings.Join(p.Args, " "), data)
			return backendtest.Exited(0)
		}))
	}
	return append(out,
		backendtest.WithProgram("write", func(ctx context.Context, p *backendtest.Proc) backend.Exit {
			if err := backend.WriteFile(ctx, p.Files, p.Args[1], []byte(p.Args[2]), 0); err != nil {
				return backendtest.Exited(1)
			}
			return backendtest.Exited(0)
		}),
		backendtest.WithProgram("ends", func(_ context.Context, p *backendtest.Proc) backend.Exit {
			e := backend.Exit{Reason: backend.Reason(p.Args[1]), Code: 137, Signal: 9}
			if e.Reason == backend.ReasonSignaled {
				e.Signal, e.Code = 11, 139
			}
			return e
		}),
		backendtest.WithProgram("escape", func(_ context.Context, p *backendtest.Proc) backend.Exit {
			_, _ = io.WriteString(p.Stdout, "\x1b]0;owned\a\xff")
			return backendtest.Exited(0)
		}),
		backendtest.WithProgram("size", func(_ context.Context, p *backendtest.Proc) backend.Exit {
			_, _ = fmt.Fprintf(p.Stdout, "size %d %d\n", p.Size().Cols, p.Size().Rows)
			return backendtest.Exited(0)
		}),
		backendtest.WithProgram("talk", func(ctx context.Context, p *backendtest.Proc) backend.Exit {
			for ctx.Err() == nil {
				if _, err := io.WriteString(p.Stdout, strings.Repeat("y\n", 512)); err != nil {
					<-ctx.Done()
				}
			}
			return backendtest.Exited(0)
		}),
		backendtest.WithProgram("ready", func(ctx context.Context, p *backendtest.Proc) backend.Exit {
			_, _ = io.WriteString(p.Stdout, "ready\n")
			_, _ = io.WriteString(os.Stderr, "ready\n") // past everything, for the test
			<-ctx.Done()
			return backendtest.Exited(0)
		}))
}

// world is a home, a working directory and a fake backend.
type world struct {
	t     *testing.T
	fake  *backendtest.Fake
	home  string
	env   []string
	stdin io.Reader
}

func newWorld(t *testing.T, opts ...backendtest.Option) *world {
	t.Helper()
	home := t.TempDir()
	w := &world{t: t, fake: backendtest.New(append(programs(), opts...)...), home: home, stdin: strings.NewReader("")}
	w.env = []string{"HOME=" + home, "XDG_CONFIG_HOME=" + home, "GLOVEBOX_STATE_DIR=" + home + "/state", "SECRET=hunter2"}
	return w
}

type result struct {
	code     int
	out, err string
}

func (w *world) run(args ...string) result {
	w.t.Helper()
	var out, err bytes.Buffer
	code := cli.Main(w.t.Context(), cli.App{
		Args: args, Environ: w.env, Registry: registryOf(w.fake), Dir: w.home, Stdin: w.stdin, Stdout: &out, Stderr: &err,
	})
	if left := w.fake.Leaked(); len(left) > 0 {
		w.t.Errorf("%q left %v", args, left)
	}
	return result{code, out.String(), err.String()}
}

func (w *world) file(name, text string) string {
	w.t.Helper()
	path := filepath.Join(w.home, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// spec and command are those of the last run.
func (w *world) spec() backend.Spec {
	w.t.Helper()
	calls := w.fake.Calls(backendtest.OpCreate)
	if len(calls) == 0 {
		w.t.Fatal("no sandbox was made")
	}
	return calls[len(calls)-1].Arg.(backend.Spec)
}

func (w *world) command() backend.Command {
	w.t.Helper()
	calls := w.fake.Calls(backendtest.OpStart)
	if len(calls) == 0 {
		w.t.Fatal("no command was started")
	}
	return calls[len(calls)-1].Arg.(backend.Command)
}

func (r result) json(t *testing.T) map[string]any {
	t.Helper()
	var doc map[string]any
	dec := json.NewDecoder(strings.NewReader(r.out))
	if err := dec.Decode(&doc); err != nil {
		t.Fatalf("standard output is no document: %v\n%s", err, r.out)
	}
	if dec.More() {
		t.Fatalf("more than one document:\n%s", r.out)
	}
	return doc
}
