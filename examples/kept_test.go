package examples_test

import (
	"encoding/csv"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/internal/testenv"
)

// others are the examples that TestExamples does not run.
func others() []string { return []string{"kept.sh", "fetch.sh"} }

// backends are all that run on this kind of machine.
func backends() []string { return []string{"subprocess", "docker", "gvisor"} }

// TestExamples_everyBackend: the headers name no backend, so that what they say
// must hold on each.
func TestExamples_everyBackend(t *testing.T) {
	t.Parallel()
	for _, b := range backends()[1:] {
		t.Run(b, func(t *testing.T) {
			t.Parallel()
			w := worldOf(t, b)
			for name, check := range map[string]func(*testing.T, report){
				"look.sh": checkLook, "sales.py": checkSales, "forth.py": checkForth,
				"attacks/fill.py": checkFill, "attacks/steal.py": checkNothingStolen,
			} {
				r := w.run(name)
				if r.Receipt.Driver != b {
					t.Errorf("%s ran on %s", name, r.Receipt.Driver)
				}
				check(t, r)
			}
		})
	}
}

func checkNothingStolen(t *testing.T, r report) {
	t.Helper()
	wantExit(t, r, 0)
	if strings.Contains(r.Stdout.Text, "STOLEN") || strings.Count(r.Stdout.Text, "contained ") < 9 {
		t.Errorf("from the sandbox:\n%s%s", r.Stdout.Text, r.Stderr.Text)
	}
}

func TestKept(t *testing.T) {
	t.Parallel()
	for _, b := range backends() {
		t.Run(b, func(t *testing.T) { //nolint:paralleltest // root's state directory is one for all backends
			w := worldOf(t, b)
			before, _, _ := w.shell("glovebox ps -q")
			stdout, stderr, code := w.shell("bash examples/kept.sh")
			if want := regions(t) + "4\ngone on\n"; code != 0 || stdout != want {
				t.Errorf("it ended with %d and printed\n%s%s\nwant\n%s", code, stdout, stderr, want)
			}
			after, _, _ := w.shell("glovebox ps -q")
			// Other tests share root's state directory.
			for id := range strings.FieldsSeq(after) {
				if info, _, _ := w.shell("glovebox exec " + id + " ls"); strings.Contains(info, "regions.txt") && !strings.Contains(before, id) {
					t.Errorf("the sandbox %s is left", id)
				}
			}
		})
	}
}

// regions is what `uniq -c` says of the orders by region.
func regions(t *testing.T) string {
	t.Helper()
	f, err := os.Open("data/sales.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, row := range rows[1:] {
		counts[row[2]]++
	}
	var lines []string
	for region, n := range counts {
		lines = append(lines, fmt.Sprintf("%7d %s\n", n, region))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[8:], b[8:]) })
	return strings.Join(lines, "")
}

// TestFetch: what rules name is reached, and nothing else, on every backend.
func TestFetch(t *testing.T) {
	t.Parallel()
	for _, b := range backends() {
		t.Run(b, func(t *testing.T) {
			t.Parallel()
			w := worldOf(t, b)
			if _, err := os.Stat("/usr/bin/curl"); b == "subprocess" && err != nil {
				testenv.Require(t, b, "there is no curl for it")
			}
			server := httptest.NewServer(http.FileServer(http.Dir("data")))
			defer server.Close()
			_, port, err := net.SplitHostPort(server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			line := strings.ReplaceAll(command(t, "fetch.sh"), "8765", port)
			stdout, stderr, code := w.shell(line)
			data, err := os.ReadFile("data/plan.json")
			if err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("200 http://127.0.0.1:%s/plan.json: %d bytes\n"+
				"403 http://example.com/: glovebox: no rule of network.allow names example.com\n", port, len(data))
			if diff := cmp.Diff(want, stdout); code != 0 || diff != "" {
				t.Errorf("it ended with %d (-want +got):\n%s%s", code, diff, stderr)
			}
		})
	}
}
