//go:build linux

package docker_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
)

// With a network what closes ping sockets stays, beside what opens low ports to
// the agent.
func TestNetwork_sysctls(t *testing.T) {
	f := setUp(t, nil)
	for mode, port := range map[backend.NetworkMode]string{backend.NetworkNone: "", backend.NetworkAllowlist: "0"} {
		sb := f.create(backend.Spec{Network: backend.Network{Mode: mode}})
		var out bytes.Buffer
		exit, err := backend.RunIn(t.Context(), sb, backend.Command{
			Args:   []string{"/bin/cat", "/proc/sys/net/ipv4/ping_group_range", "/proc/sys/net/ipv4/ip_unprivileged_port_start"},
			Output: backend.Output{Stdout: &out},
		})
		got := strings.Fields(out.String())
		if err != nil || !exit.Success() || len(got) != 3 || got[0] != "1" || got[1] != "0" || port != "" && got[2] != port {
			t.Errorf("%s: %q, %s, %v", mode, got, exit, err)
		}
		if err := sb.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
