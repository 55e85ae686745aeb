//go:build linux

package gvisor_test

import (
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
)

func TestSandbox(t *testing.T) {
	asBoth(t, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Limits: backend.Limits{Disk: 8 << 20}})
		r := sb.Receipt()
		if r.Achieved != backend.IsolationKernel || !strings.Contains(r.Kernel, "4.4.0") {
			t.Errorf("achieved %v on %q", r.Achieved, r.Kernel)
		}
		got := sh(t, sb, "id -un; id -u; hostname; pwd; python3 -c 'print(6*7)'; touch ~/x /tmp/y /var/tmp/z /dev/shm/w && echo wrote; cat /proc/1/comm")
		t.Log(got)
		for _, user := range []string{"", "root"} {
			got := run(t, sb, backend.Command{User: user, Args: []string{"/bin/bash", "-c",
				"id -u; grep -E 'Cap|NoNew|Secc' /proc/self/status; touch /x /usr/x /etc/x /root/x /run/x /home/x /.glovebox/x; echo a > /etc/passwd; cat /proc/1/environ; head -c 10M /dev/zero > /tmp/big; ls -la / /.glovebox /dev; df /tmp; head -c 20M /dev/zero > /dev/big; mount"}})
			t.Log(got.out, got.err)
		}
	})
}
