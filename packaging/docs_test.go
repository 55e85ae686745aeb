//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/image"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

// TestDocs_table compares docs/container-image.md with what doctor measures in
// containers with the flags of each row.
func TestDocs_table(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(testenv.Root(t), "docs", "container-image.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "|---|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	if len(rows) < 4 {
		t.Fatalf("the table has %d rows", len(rows))
	}
	for _, row := range rows {
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		if len(cells) != 4 {
			t.Fatalf("the row %q has %d cells", row, len(cells))
		}
		t.Run(cells[1], func(t *testing.T) {
			flags := strings.Fields(strings.NewReplacer("`", "", "RUNSC", runsc, "IMAGES", images(t)).Replace(cells[0]))
			if cells[0] == "none" {
				flags = nil
			}
			if strings.Contains(cells[0], "RUNSC") {
				if _, err := os.Stat(runsc); err != nil {
					testenv.Require(t, "gvisor", err.Error())
				}
			}
			compare(t, startBox(t, flags...), cells[1], cells[2], cells[3])
		})
	}
}

const runsc = "/usr/local/bin/runsc"

func images(t *testing.T) string {
	t.Helper()
	store, err := image.Default(os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	return store.Dir()
}

func compare(t *testing.T, b box, level, bestEffort, unsupported string) {
	t.Helper()
	runs(t, b, level)
	var told doctor
	decode(t, b.must(t, "glovebox", "doctor", "--json"), &told)
	for _, backend := range told.Backends {
		if backend.Health.Isolation != level {
			continue
		}
		if !backend.Health.Available {
			t.Errorf("%s is not available: %s", backend.Name, backend.Health.Reason)
		}
		got := map[string][]string{}
		for name, c := range backend.Capabilities.Claims {
			got[c.Enforcement] = append(got[c.Enforcement], name)
		}
		for enforcement, want := range map[string]string{"best_effort": bestEffort, "unsupported": unsupported} {
			slices.Sort(got[enforcement])
			if names := strings.Join(got[enforcement], ", "); names != want {
				t.Errorf("%s are %s, the table says %s", enforcement, names, want)
			}
		}
		return
	}
	t.Errorf("no backend has the level %s", level)
}

// TestContainer_socket: an engine that is reached is not one that can be used.
func TestContainer_socket(t *testing.T) {
	t.Parallel()
	b := startBox(t, "--user", "0", "--volume", strings.TrimPrefix(docker(t).Host(), "unix://")+":/var/run/docker.sock")
	var told doctor
	decode(t, b.must(t, "glovebox", "doctor", "--json"), &told)
	for _, backend := range told.Backends {
		if backend.Name == "docker" {
			if backend.Health.Available || !strings.Contains(backend.Health.Reason, "on another machine, or in a container") {
				t.Errorf("%+v", backend.Health)
			}
			return
		}
	}
	t.Error("doctor says nothing of docker")
}
