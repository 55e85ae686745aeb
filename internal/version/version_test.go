package version_test

import (
	"runtime"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/version"
)

func TestGet_namesTheBuild(t *testing.T) {
	t.Parallel()
	got := version.Get()
	if got.Version == "" || got.Go != runtime.Version() || got.OS != runtime.GOOS || got.Arch != runtime.GOARCH {
		t.Errorf("Get() = %+v", got)
	}
}
