package plain

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
)

// environ is a command's environment, later entries over earlier ones, and the
// PATH in it. Nothing of the host's is in it but what the system needs.
func (sb *sandbox) environ(own map[string]string) (env []string, path string) {
	env = append(platformEnv(sb.home, sb.tmp), "PATH="+searchPath())
	for _, vars := range []map[string]string{sb.spec.Env, own} {
		for _, k := range slices.Sorted(maps.Keys(vars)) {
			env = append(env, k+"="+vars[k])
		}
	}
	for _, kv := range slices.Backward(env) {
		name, value, _ := strings.Cut(kv, "=")
		if name == "PATH" || runtime.GOOS == "windows" && strings.EqualFold(name, "PATH") {
			return env, value
		}
	}
	return env, ""
}

// lookup finds a program: as it is when its name has a separator, else along
// path. One that is there and cannot be executed counts when there is no other.
func lookup(name, dir, path string) (string, error) {
	if name != filepath.Base(name) || strings.ContainsRune(name, '/') {
		return executable(absolute(dir, name))
	}
	err := error(exec.ErrNotFound)
	for _, d := range filepath.SplitList(path) {
		file, ferr := executable(filepath.Join(absolute(dir, d), name))
		if ferr == nil {
			return file, nil
		}
		if !isMissing(ferr) {
			err = ferr
		}
	}
	return "", err
}

// executable is file, with its extension where programs have one.
func executable(file string) (string, error) {
	path, err := exec.LookPath(file)
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return "", fs.ErrPermission // as execve says
	}
	return path, nil
}

func absolute(dir, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

// kindOf classifies what the system said; rest is the kind of all others.
func kindOf(err error, rest backend.Kind) backend.Kind {
	switch {
	case systemKind(err) != "":
		return systemKind(err)
	case errors.Is(err, fs.ErrNotExist):
		return backend.ErrNotFound
	case errors.Is(err, fs.ErrExist):
		return backend.ErrConflict
	case errors.Is(err, fs.ErrPermission):
		return backend.ErrDenied
	}
	return cmp.Or(rest, backend.ErrInternal)
}

// causeOf is err without the path of the host that it may name.
func causeOf(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	if le, ok := errors.AsType[*os.LinkError](err); ok {
		return le.Err
	}
	if xe, ok := errors.AsType[*exec.Error](err); ok {
		return xe.Err
	}
	return err
}
