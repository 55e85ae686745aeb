package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/internal/strict"
)

// runFlags are the flags of run as they were given.
type runFlags struct {
	code, lang, template  string
	env, envFiles         []string
	workdir, user         string
	volumes, files, outs  []string
	labels, advisory      []string
	stdin, tty            bool
	limits                config.Limits
	network               networkFlags
	backend, minIsolation string
	strict, explain, json bool
	quiet, verbose        bool
	receipt               string

	keep     bool // the sandbox outlives us: create, and run -d
	detach   bool
	rm       bool
	name     string
	from     string
	lifetime config.Duration
}

func (f *runFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.SetInterspersed(false) // what follows the program is the program's
	fl.StringVarP(&f.code, "code", "c", "", "run `CODE`, Python unless --lang or its first line says otherwise")
	fl.StringVarP(&f.lang, "lang", "l", "", "the program's `LANGUAGE`: python, javascript, typescript, bash, sh")
	fl.StringArrayVar(&f.outs, "out", nil, "copy a file out after the end: `GUEST[:HOST]` (repeatable)")
	fl.Var(limit(&f.limits.CPUTime, config.ParseDuration, "DURATION"), "cpu-time", "CPU time")
	fl.Var(limit(&f.limits.Output, config.ParseSize, "SIZE"), "output-limit", "bytes of each output stream")
	fl.BoolVar(&f.explain, "explain", false, "say what would be done and why, and do nothing")
	fl.BoolVarP(&f.detach, "detach", "d", false, "keep the sandbox, leave the program running in it and print the sandbox's ID")
	fl.BoolVar(&f.rm, "rm", false, "what run does anyway")
	_ = fl.MarkHidden("rm") // the flag was just added
	f.registerEnv(fl)
	f.registerCommand(fl)
	f.registerSandbox(fl)
}

// registerEnv adds the flags for the environment, which a sandbox and a
// command have.
func (f *runFlags) registerEnv(fl *pflag.FlagSet) {
	fl.StringArrayVarP(&f.env, "env", "e", nil, "set `NAME=VALUE`, or pass NAME on (repeatable)")
	fl.StringArrayVar(&f.envFiles, "env-file", nil, "read variables from `FILE` (repeatable)")
}

// registerCommand adds the flags of one command.
func (f *runFlags) registerCommand(fl *pflag.FlagSet) {
	fl.StringVarP(&f.workdir, "workdir", "w", "", "start in `DIR` inside; the home when empty")
	fl.StringVarP(&f.user, "user", "u", "", "run as `USER` inside")
	fl.BoolVarP(&f.stdin, "stdin", "i", false, "pass standard input on")
	fl.BoolVarP(&f.tty, "tty", "t", false, "give the program this terminal")
	fl.Var(limit(&f.limits.Timeout, config.ParseDuration, "DURATION"), "timeout", "wall time, 30s by default")
}

// registerSandbox adds the flags of a sandbox.
func (f *runFlags) registerSandbox(fl *pflag.FlagSet) {
	fl.StringArrayVarP(&f.volumes, "volume", "v", nil, "show a host directory inside, read-only: `SRC:DST:ro` (repeatable)")
	fl.StringArrayVar(&f.files, "file", nil, "copy a file in before the start: `HOST[:GUEST]`, - is standard input (repeatable)")
	fl.VarP(limit(&f.limits.Memory, config.ParseSize, "SIZE"), "memory", "m", "memory, 512MiB by default")
	fl.Var(limit(&f.limits.CPUs, config.ParseCores, "NUMBER"), "cpus", "CPU cores, 1 by default")
	fl.Var(limit(&f.limits.Pids, config.ParseCount, "NUMBER"), "pids", "processes and threads, 256 by default")
	fl.Var(limit(&f.limits.Pids, config.ParseCount, "NUMBER"), "pids-limit", "the same as --pids")
	fl.Var(limit(&f.limits.Disk, config.ParseSize, "SIZE"), "disk", "bytes that can be written, half the memory by default")
	fl.Var(limit(&f.lifetime, config.ParseDuration, "DURATION"), "lifetime", "how long a kept sandbox lives, 5m by default")
	fl.StringVar(&f.name, "name", "", "a `NAME` for a kept sandbox, which stands for its ID; the label name")
	f.network.register(fl)
	fl.StringVar(&f.from, "from", "", "make the sandbox from this snapshot: `NAME`")
	fl.StringVar(&f.template, "template", "", "make the sandbox from the template `NAME`")
	fl.StringVar(&f.backend, "backend", "", "use this backend: `NAME`, a list with commas, or auto")
	fl.StringVar(&f.minIsolation, "min-isolation", "", "the least isolation accepted: `LEVEL` none, restricted, process, container, kernel, vm")
	fl.BoolVar(&f.strict, "strict", false, "refuse what would only be best effort")
	fl.StringSliceVar(&f.advisory, "advisory", nil, "`CONTROLS` that may go unenforced, such as memory,disk")
	fl.BoolVar(&f.json, "json", false, "print one JSON document, the program's output inside it")
	fl.StringVar(&f.receipt, "receipt", "", "write the receipt as JSON to `FILE`, - is standard error")
	fl.StringArrayVar(&f.labels, "label", nil, "`KEY=VALUE` kept with the sandbox and in its receipt (repeatable)")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "no receipt and no warnings")
	fl.BoolVar(&f.verbose, "verbose", false, "the receipt with every control")
	_ = fl.MarkHidden("pids-limit") // the flag was just added
}

// settings are the flags that are configuration.
func (f *runFlags) settings() []config.Flag {
	var out []config.Flag
	if f.backend != "" {
		out = append(out, config.Flag{Name: "backend", Key: "backend", Value: f.backend})
	}
	if f.minIsolation != "" {
		out = append(out, config.Flag{Name: "min-isolation", Key: "executors.default.min_isolation", Value: f.minIsolation})
	}
	if f.strict {
		out = append(out, config.Flag{Name: "strict", Key: "executors.default.strict", Value: "true"})
	}
	return out
}

// check refuses combinations that make no sense.
func (f *runFlags) check() error {
	switch {
	case f.tty && f.json:
		return usagef("--tty and --json exclude each other: a terminal's output is no data")
	case f.quiet && f.verbose:
		return usagef("--quiet and --verbose exclude each other")
	case f.explain && f.receipt != "":
		return usagef("--explain makes no sandbox, so there is no receipt")
	case !f.keep && (f.name != "" || f.lifetime != 0):
		return usagef("--name and --lifetime are for kept sandboxes; add --detach, or use: glovebox create")
	}
	if f.detach {
		if err := f.checkDetached(); err != nil {
			return err
		}
	}
	modes := []string{string(backend.NetworkNone), string(backend.NetworkAllowlist), string(backend.NetworkFull)}
	if f.network.mode != "" && !slices.Contains(modes, f.network.mode) {
		return &usageError{fmt.Errorf("--network: %w", strict.Unknown("mode", f.network.mode, modes))}
	}
	if f.minIsolation != "" {
		if _, err := backend.ParseIsolation(f.minIsolation); err != nil {
			return &usageError{fmt.Errorf("--min-isolation: %w", err)}
		}
	}
	return nil
}

// checkDetached refuses what needs somebody to wait for the program's end.
func (f *runFlags) checkDetached() error {
	switch {
	case f.tty || f.stdin:
		return usagef("--detach: nobody is there to read from; use: glovebox create, then glovebox exec -it ID COMMAND")
	case len(f.outs) > 0:
		return usagef("--detach: files cannot be copied out before the end; use: glovebox wait ID, then glovebox cp ID:FILE .")
	case f.rm:
		return usagef("--detach: nobody waits for the end to remove the sandbox, it ends at its deadline; use: glovebox wait --rm ID")
	}
	return nil
}

// pairs reads KEY=VALUE flags.
func pairs(flag string, items []string) (map[string]string, error) {
	if len(items) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(items))
	for _, item := range items {
		k, v, ok := strings.Cut(item, "=")
		if !ok || k == "" {
			return nil, usagef("--%s: %q is not KEY=VALUE", flag, item)
		}
		out[k] = v
	}
	return out, nil
}

// controls reads --advisory.
func controls(names []string) ([]backend.Control, error) {
	var known []string
	for _, c := range backend.Controls() {
		known = append(known, string(c))
	}
	var out []backend.Control
	for _, n := range names {
		if !slices.Contains(known, n) {
			return nil, &usageError{fmt.Errorf("--advisory: %w", strict.Unknown("control", n, known))}
		}
		out = append(out, backend.Control(n))
	}
	return out, nil
}

// limitValue is a pflag.Value for a limit: what its parser refuses is a usage
// error that names the flag.
type limitValue[T comparable] struct {
	into  *T
	parse func(string) (T, error)
	kind  string
}

func limit[T comparable](into *T, parse func(string) (T, error), kind string) *limitValue[T] {
	return &limitValue[T]{into, parse, kind}
}

func (v *limitValue[T]) Set(s string) error {
	x, err := v.parse(s)
	if err != nil {
		return err
	}
	*v.into = x
	return nil
}

func (v *limitValue[T]) String() string {
	var zero T
	if v.into == nil || *v.into == zero {
		return ""
	}
	return fmt.Sprint(*v.into)
}

func (v *limitValue[T]) Type() string { return v.kind }

// timeout is the wall time of the command under the policy's cap. asked is what
// the command line says; unbounded is for what may go on until the sandbox
// ends, which then is the cap.
func timeout(l config.Limits, asked config.Duration, unbounded bool) (time.Duration, error) {
	most := l.MaxTimeoutOr()
	t := time.Duration(l.Timeout)
	if unbounded {
		if asked == 0 {
			return backend.UntilSandboxEnds, nil
		}
		return time.Duration(asked), nil
	}
	if t == 0 {
		return min(backend.DefaultTimeout, most), nil
	}
	if t > most {
		return 0, usagef("--timeout: %s is longer than the %s that limits.max_timeout allows", t, most)
	}
	return t, nil
}
