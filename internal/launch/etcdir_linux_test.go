package launch_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/launch"
)

func TestPrepareEtc_staysWhileItIsHeld(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	prepare := func(hostname string) (string, *os.File) {
		t.Helper()
		dir, hold, err := launch.PrepareEtc(cache, "/home/user", hostname)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { hold.Close() })
		return dir, hold
	}
	one, hold := prepare("one")
	if again, _ := prepare("one"); again != one {
		t.Errorf("made twice: %s and %s", one, again)
	}
	other, h2 := prepare("other") // as when the host's files have changed
	for _, dir := range []string{one, other} {
		if data, err := os.ReadFile(filepath.Join(dir, "hosts")); err != nil || !strings.Contains(string(data), "localhost") {
			t.Errorf("%s: %q %v", dir, data, err)
		}
	}
	h2.Close()
	prepare("third")
	if _, err := os.Stat(other); err == nil {
		t.Error("one that nobody holds is kept")
	}
	if _, err := os.Stat(filepath.Join(one, "hosts")); err != nil {
		t.Error("one that is held is gone")
	}
	hold.Close()
}

func TestPrepareEtc_byManyAtOnce(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 10 {
				dir, hold, err := launch.PrepareEtc(cache, "/home/user", string(rune('a'+i%2)))
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(filepath.Join(dir, "hosts")); err != nil {
					t.Error(err)
				}
				hold.Close()
			}
		})
	}
	wg.Wait()
}
