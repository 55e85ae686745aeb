// Package statedir says where glovebox keeps what it has to remember. It is
// apart from what is kept there, so that asking brings no database along.
package statedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/glovebox-dev/glovebox/backend"
)

// Env names the environment variable with the state directory.
const Env = "GLOVEBOX_STATE_DIR"

// Dir is the state directory: override, else the one Env names, else
// /var/lib/glovebox for root and the XDG state directory of anybody else.
// getenv looks up the environment. It does not touch the disk. A relative
// directory is ErrInvalid.
func Dir(override string, getenv func(string) string) (string, error) {
	for _, dir := range []struct{ name, path string }{{"state_dir", override}, {Env, getenv(Env)}} {
		if dir.path == "" {
			continue
		}
		if !filepath.IsAbs(dir.path) {
			return "", invalid(dir.name, fmt.Errorf("%q is not an absolute path", dir.path))
		}
		return filepath.Clean(dir.path), nil
	}
	if os.Geteuid() == 0 {
		return "/var/lib/glovebox", nil
	}
	if xdg := getenv("XDG_STATE_HOME"); filepath.IsAbs(xdg) { // XDG says to ignore a relative one
		return filepath.Join(xdg, "glovebox"), nil
	}
	home, below := "HOME", filepath.Join(".local", "state")
	if runtime.GOOS == "windows" {
		home, below = "USERPROFILE", filepath.Join("AppData", "Local")
	}
	if dir := getenv(home); filepath.IsAbs(dir) {
		return filepath.Join(dir, below, "glovebox"), nil
	}
	return "", invalid("state_dir", errors.New("there is no home directory: "+home+" is not set to an absolute path"))
}

func invalid(field string, err error) error {
	return &backend.Error{
		Op: "state", Kind: backend.ErrInvalid, Field: field, Err: err, Fix: "set " + Env + " to a directory of yours",
	}
}
