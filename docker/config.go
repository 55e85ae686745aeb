// Package docker runs sandboxes as hardened containers of a Docker engine, on
// this machine or another: no network, no capability for user code, a system call filter of
// ours on top of the engine's profile, a read-only root, and one tmpfs with a
// cap for all that can be written. The agent is the container's first process
// and is reached over a Unix socket that user code cannot open, or over the
// attach stream of an engine elsewhere: neither docker exec nor docker cp is
// used.
package docker

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
)

const driverName = "docker"

// Config is the backend's configuration. The zero value is the default.
type Config struct {
	// Host is the engine's address, such as unix:///var/run/docker.sock or
	// tcp://build.example:2376. Empty: DOCKER_HOST, else the default socket. An
	// engine over TCP counts as one on another machine, whatever the address.
	Host string `json:"host,omitempty"`
	// Remote says that the engine is on another machine though its address is a
	// Unix socket, such as one that ssh forwards.
	Remote bool `json:"remote,omitempty"`
	// TLSDir holds ca.pem, cert.pem and key.pem for an engine over TCP. Empty:
	// DOCKER_CERT_PATH where DOCKER_TLS_VERIFY is set, as for the docker
	// command.
	TLSDir string `json:"tls_dir,omitempty"`
	// Insecure accepts an engine on another machine without TLS. Whoever is on
	// the way then has all of that machine.
	Insecure bool `json:"insecure,omitempty"`
	// Runtime is the engine's runtime that containers run with. Empty: the
	// engine's default.
	Runtime string `json:"runtime,omitempty"`
	// Image is the image of sandboxes without a template. Empty: the template
	// base, which `glovebox image build base` makes.
	Image string `json:"image,omitempty"`
	// Templates maps template names to the engine's images.
	Templates map[string]string `json:"templates,omitempty"`
	// BuiltTemplates maps further ones to images that glovebox has built; the
	// engine is given those that it lacks.
	BuiltTemplates map[string]string `json:"built_templates,omitempty"`
	// Agent is the path of a static glovebox-agent or glovebox binary; see
	// subprocess.Config.
	Agent string `json:"agent,omitempty"`
	// StateDir holds markers and the journal. Empty: GLOVEBOX_STATE_DIR, else
	// /var/lib/glovebox as root and the XDG state directory otherwise.
	StateDir string `json:"state_dir,omitempty"`
}

// DefaultConfig is the zero Config.
func DefaultConfig() Config { return Config{} }

// Validate tells what is wrong with c, without I/O.
func (c Config) Validate() error {
	invalid := func(field string, err error) error {
		return &backend.Error{Op: "config", Kind: backend.ErrInvalid, Field: field, Err: err}
	}
	for field, p := range map[string]string{"agent": c.Agent, "state_dir": c.StateDir, "tls_dir": c.TLSDir} {
		if p != "" && (!filepath.IsAbs(p) || strings.ContainsRune(p, 0)) {
			return invalid(field, fmt.Errorf("%q is not an absolute path", p))
		}
	}
	for field, templates := range map[string]map[string]string{"templates": c.Templates, "built_templates": c.BuiltTemplates} {
		for name, image := range templates {
			if name == "" || image == "" {
				return invalid(field, errors.New("a template needs a name and an image"))
			}
		}
	}
	return nil
}

// Fact is one thing measured about this host.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	OK    bool   `json:"ok"`
	// Fix says what to do to get it, when it is missing and can be had.
	Fix string `json:"fix,omitempty"`
}

// Report is what Measure found.
type Report struct {
	Health       backend.Health       `json:"health"`
	Capabilities backend.Capabilities `json:"capabilities"`
	Facts        []Fact               `json:"facts"`
}
