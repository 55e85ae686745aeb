package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/config"
)

func TestBuilds(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{memory: 8GiB, disk: 2GiB, timeout: 20m, lifetime: 2h, allow: [192.0.2.1], ca_file: /x}": "",
		"{ca_file: x.pem}": "builds.ca_file",
		"{lifetime: 100h}": "builds.lifetime",
		"{limits: {}}":     "limits",
	} {
		path := filepath.Join(t.TempDir(), "glovebox.yaml")
		if err := os.WriteFile(path, []byte("version: 1\nbuilds: "+text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := config.Load(config.Options{Dir: t.TempDir(), File: path, Registry: drivers(t)})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
