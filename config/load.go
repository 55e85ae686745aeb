package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/registry"
	"github.com/glovebox-dev/glovebox/internal/strict"
)

// envPrefix begins the environment variables that are configuration.
const envPrefix = "GLOVEBOX_"

// Options says where configuration comes from.
type Options struct {
	// File is read instead of the user's and the project's file. Naming it is
	// trusting it. Empty: GLOVEBOX_CONFIG, else those two.
	File string
	// Dir is where a project's file is looked for; empty is the working
	// directory.
	Dir string
	// Environ is the environment, as os.Environ gives it.
	Environ []string
	// Flags are the settings that flags gave, the strongest.
	Flags []Flag
	// Registry knows the drivers.
	Registry *registry.Registry
	// OnlyFile ignores environment and flags, to check a file by itself.
	OnlyFile bool
}

// Flag is a setting that a flag gave.
type Flag struct {
	Name  string // of the flag, without dashes
	Key   string // such as "limits.memory"
	Value string
}

// Loaded is a valid configuration and where it came from. It does not change
// and is safe for concurrent use.
type Loaded struct {
	Config   Config
	Files    []string // that were read, the weakest first
	Warnings []string // for the operator, such as a project file that is not trusted
	raw      map[string]any
	origins  map[string]string
}

// Load reads, merges, decodes and validates the configuration. Errors match
// backend.ErrInvalid where the configuration is at fault and name file and key.
func Load(opts Options) (*Loaded, error) {
	out := &Loaded{}
	layers := []layer{{builtins(opts.Registry), func(string) string { return "default" }}}
	files, err := fileLayers(opts, out)
	if err != nil {
		return nil, err
	}
	layers = append(layers, files...)
	if !opts.OnlyFile {
		env, err := envLayer(opts.Environ)
		if err != nil {
			return nil, err
		}
		layers = append(layers, env, flagLayer(opts.Flags))
	}
	if out.raw, out.origins, err = merge(layers); err != nil {
		return nil, err
	}
	if err := strict.Decode(out.raw, &out.Config); err != nil {
		return nil, explain(err, out.origins)
	}
	if err := out.Config.Validate(opts.Registry); err != nil {
		return nil, explain(err, out.origins)
	}
	out.Warnings = append(out.Warnings, out.literalSecrets()...)
	return out, nil
}

// builtins is the configuration when nobody says anything: a backend of each
// local driver, by the driver's name. Limits are not in it: a limit that nobody
// set is a default, which a backend may lack.
func builtins(reg *registry.Registry) map[string]any {
	w := backend.DefaultWarnings()
	backends := map[string]any{}
	for _, driver := range reg.Local() {
		backends[driver] = map[string]any{"driver": driver}
	}
	return map[string]any{
		"version":   Version,
		"backends":  backends,
		"executors": map[string]any{DefaultExecutor: map[string]any{"use": Auto, "min_isolation": DefaultMinIsolation.String()}},
		"warnings": map[string]any{
			"memory": w.Memory, "disk": w.Disk, "pids": w.Pids, "timeout": w.Timeout, "cpu_time": w.CPUTime,
		},
	}
}

func fileLayers(opts Options, out *Loaded) ([]layer, error) {
	env := lookup(opts.Environ)
	if opts.File == "" && !opts.OnlyFile {
		opts.File = env("GLOVEBOX_CONFIG")
	}
	var layers []layer
	add := func(path string, data []byte) error {
		values, lines, err := parse(path, data)
		if err != nil {
			return err
		}
		out.Files = append(out.Files, path)
		layers = append(layers, layer{values, fileOrigin(path, lines)})
		return nil
	}
	if opts.File != "" {
		data, err := readFile(opts.File)
		if err != nil {
			return nil, err
		}
		err = add(opts.File, data)
		return layers, err
	}
	user, err := userFile(env)
	if err != nil {
		return nil, err
	}
	if user != "" {
		data, err := readFile(user)
		if err == nil {
			err = add(user, data)
		}
		if err != nil {
			return nil, err
		}
	}
	project, err := ProjectFile(opts.Dir)
	if err != nil || project == "" {
		return layers, err
	}
	data, warning := trusted(project, env)
	if warning != "" {
		out.Warnings = append(out.Warnings, warning)
		return layers, nil
	}
	err = add(project, data)
	return layers, err
}

func fileOrigin(path string, lines map[string]int) func(string) string {
	return func(key string) string {
		if n, ok := lines[key]; ok {
			return fmt.Sprintf("%s:%d", path, n)
		}
		return path
	}
}

// userFile is the user's file, or the machine's when the user has none.
func userFile(env func(string) string) (string, error) {
	dir := env("XDG_CONFIG_HOME")
	if dir == "" && env("HOME") != "" {
		dir = filepath.Join(env("HOME"), ".config")
	}
	if runtime.GOOS == "windows" && dir == "" {
		dir = env("APPDATA")
	}
	if filepath.IsAbs(dir) {
		if path, err := find(filepath.Join(dir, "glovebox"), "config"); err != nil || path != "" {
			return path, err
		}
	}
	if runtime.GOOS == "windows" {
		return "", nil
	}
	return find("/etc/glovebox", "config")
}

// ProjectFile is the project's file in dir (the working directory when empty):
// glovebox.yaml, .toml or .json, or .glovebox/config with these endings. It is
// "" when there is none.
func ProjectFile(dir string) (string, error) {
	if dir == "" {
		wd, err := os.Getwd()
		if err != nil {
			return "", fmt.Errorf("config: %w", err)
		}
		dir = wd
	}
	path, err := find(dir, "glovebox")
	if err != nil {
		return "", err
	}
	hidden, err := find(filepath.Join(dir, ".glovebox"), "config")
	if path != "" && hidden != "" {
		return "", fmt.Errorf("config: both %s and %s are there; keep one of them", path, hidden)
	}
	if path == "" {
		path = hidden
	}
	return path, err
}

func lookup(environ []string) func(string) string {
	return func(name string) string {
		// The last one wins, as it does for a program that is started with them.
		for _, e := range slices.Backward(environ) {
			if k, v, _ := strings.Cut(e, "="); k == name {
				return v
			}
		}
		return ""
	}
}

// envLayer reads GLOVEBOX_A__B for a.b. Variables that are not configuration
// are left alone.
func envLayer(environ []string) (layer, error) {
	values := map[string]any{}
	names := map[string]string{}
	for _, kv := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(kv, "=")
		rest, ok := strings.CutPrefix(name, envPrefix)
		if !ok || rest == "STATE_DIR" || rest == "CONFIG" || strings.HasPrefix(rest, "TEST_") {
			continue
		}
		path := strings.Split(strings.ToLower(rest), "__")
		if slices.Contains(path, "") {
			return layer{}, &Error{Origin: "environment " + name, Err: errors.New("not a key; write GLOVEBOX_A__B for a.b")}
		}
		if err := put(values, path, strict.Text(value)); err != nil {
			return layer{}, &Error{Key: strings.Join(path, "."), Origin: "environment " + name, Err: err}
		}
		names[strings.Join(path, separator)] = name
	}
	return layer{values, func(key string) string {
		var from []string // a section is given by several
		for k, n := range names {
			if k == key || strings.HasPrefix(k, key+separator) {
				from = append(from, n)
			}
		}
		slices.Sort(from)
		return strings.TrimSpace("environment " + strings.Join(from, ", "))
	}}, nil
}

func flagLayer(flags []Flag) layer {
	values := map[string]any{}
	names := map[string]string{}
	for _, f := range flags {
		path := strings.Split(f.Key, ".")
		_ = put(values, path, strict.Text(f.Value)) // flags name leaves, which cannot collide
		names[strings.Join(path, separator)] = f.Name
	}
	return layer{values, func(key string) string {
		if n, ok := names[key]; ok {
			return "flag --" + n
		}
		return "flag"
	}}
}

func put(values map[string]any, path []string, v any) error {
	for _, segment := range path[:len(path)-1] {
		next, ok := values[segment].(map[string]any)
		if !ok {
			if _, taken := values[segment]; taken {
				return errors.New("another variable gives a value to a section of this key")
			}
			next = map[string]any{}
			values[segment] = next
		}
		values = next
	}
	last := path[len(path)-1]
	if _, taken := values[last]; taken {
		return errors.New("another variable gives this key or a key below it")
	}
	values[last] = v
	return nil
}
