//go:build linux

package boot

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
	"github.com/glovebox-dev/glovebox/internal/launch"
	"github.com/glovebox-dev/glovebox/internal/launch/spawn"
)

// served is the agent's server as the program makes it of a configuration.
func served(t *testing.T, cfg *launch.Config) http.Handler {
	t.Helper()
	r, err := spawn.New(spawn.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	srv, fs, err := newServer(cfg, &launch.Sandbox{Reaper: r})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	return srv.Handler()
}

func get(h http.Handler, path, token string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	if token != "" {
		req.Header.Set(wire.HeaderAccessToken, token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

func TestServer_metricsAreTheSandboxs(t *testing.T) {
	t.Parallel()
	h := served(t, &launch.Config{Mode: launch.ModePlain, LimitMemory: 64 << 20, LimitCPUs: 2.5, Root: launch.Root{Home: t.TempDir()}})
	var m map[string]float64
	if err := json.Unmarshal(get(h, "/metrics", "").Body.Bytes(), &m); err != nil {
		t.Fatal(err)
	}
	if m["mem_total"] != 64<<20 || m["cpu_count"] != 3 || m["disk_total"] <= 0 {
		t.Errorf("%v", m)
	}
}

func TestServer_tokenIsTheLaunchers(t *testing.T) {
	t.Parallel()
	h := served(t, &launch.Config{Mode: launch.ModePlain, Token: "secret", Root: launch.Root{Home: t.TempDir()}})
	for token, want := range map[string]int{"": http.StatusUnauthorized, "wrong": http.StatusUnauthorized, "secret": http.StatusOK} {
		if got := get(h, "/envs", token); got.Code != want {
			t.Errorf("token %q: %d, want %d", token, got.Code, want)
		}
	}
	if got := get(served(t, &launch.Config{Mode: launch.ModePlain, Root: launch.Root{Home: t.TempDir()}}), "/envs", ""); got.Code != http.StatusOK {
		t.Errorf("no token: %d", got.Code)
	}
}
