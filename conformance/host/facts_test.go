package host_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/conformance/host"
)

func TestFacts(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		if host.Kernel() != "" || host.Memory() != 0 {
			t.Error("facts without /proc")
		}
		return
	}
	if k := host.Kernel(); !strings.Contains(k, ".") || strings.ContainsAny(k, " \n") {
		t.Errorf("kernel %q", k)
	}
	if m := host.Memory(); m < 64<<20 {
		t.Errorf("memory %d", m)
	}
	if d := host.Distribution(); strings.ContainsAny(d, "\"\n") {
		t.Errorf("distribution %q", d)
	}
}
