package cli_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend/backendtest"
	"github.com/glovebox-dev/glovebox/cmd/glovebox/internal/cli"
	"github.com/glovebox-dev/glovebox/conformance"
)

// conform runs the command with a fake backend.
func conform(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Main(t.Context(), cli.App{
		Args: append([]string{"conformance"}, args...), Environ: []string{"HOME=" + t.TempDir()}, Dir: t.TempDir(),
		Registry: registryOf(backendtest.New()), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
	})
	return code, out.String(), errs.String()
}

func TestConformance_list(t *testing.T) {
	t.Parallel()
	code, out, _ := conform(t, "--list")
	if n := strings.Count(out, "\n"); code != 0 || n != len(conformance.Cases()) {
		t.Errorf("%d, %d lines", code, n)
	}
	code, out, _ = conform(t, "--list", "--filter", "^lifecycle LC-01", "--json")
	var cases []struct{ ID string }
	if err := json.Unmarshal([]byte(out), &cases); err != nil || code != 0 || len(cases) != 1 || cases[0].ID != "LC-01" {
		t.Errorf("%d %q %v", code, out, err)
	}
}

func TestConformance_run(t *testing.T) {
	t.Parallel()
	code, out, errs := conform(t, "--backend", "subprocess", "--filter", "^lifecycle LC-0[1-5]")
	if code != 0 || !strings.Contains(out, "5 passed, 0 failed") || !strings.Contains(errs, "5/5 pass") {
		t.Errorf("%d\n%s\n%s", code, out, errs)
	}
	code, out, _ = conform(t, "--filter", "MT-0[1-3]", "--json")
	var doc struct {
		Schema  int
		Reports []conformance.Report
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || code != 0 || doc.Schema != 1 || len(doc.Reports) == 0 || len(doc.Reports[0].Results) != 3 {
		t.Errorf("%d %v\n%s", code, err, out)
	}
}

// The fake has no policy hash, so that this case fails.
func TestConformance_failureIsTheExitCode(t *testing.T) {
	t.Parallel()
	code, out, errs := conform(t, "--backend", "subprocess", "--filter", "RC-04")
	if code != 1 || !strings.Contains(out, "fail  RC-04") || !strings.Contains(errs, "not as it must be: subprocess") {
		t.Errorf("%d\n%s\n%s", code, out, errs)
	}
}

func TestConformance_usage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--backend", "subproces"}, {"--filter", "("}, {"--filter", "nothing matches this"}, {"--parallel", "0"}, {"unexpected"},
	} {
		if code, _, errs := conform(t, args...); code != 2 {
			t.Errorf("%q: %d %s", args, code, errs)
		}
	}
}
