package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend/backendtest"
	"github.com/glovebox-dev/glovebox/cmd/glovebox/internal/cli"
	"github.com/glovebox-dev/glovebox/conformance"
	"github.com/glovebox-dev/glovebox/conformance/report"
)

// conform runs the command with a fake backend, in a home.
func conform(t *testing.T, home string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Main(t.Context(), cli.App{
		Args: append([]string{"conformance"}, args...), Environ: []string{"HOME=" + home, "GLOVEBOX_STATE_DIR=" + filepath.Join(home, "state")}, Dir: home,
		Registry: registryOf(backendtest.New()), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
	})
	return code, out.String(), errs.String()
}

func TestConformance_list(t *testing.T) {
	t.Parallel()
	code, out, _ := conform(t, t.TempDir(), "list")
	if n := strings.Count(out, "\n"); code != 0 || n != len(conformance.Cases()) {
		t.Errorf("%d, %d lines", code, n)
	}
	code, out, _ = conform(t, t.TempDir(), "list", "--cases", "LC-0?,ER-*", "--area", "lifecycle", "--level", "core", "--json")
	var cases []struct {
		ID, Level string
		Area      conformance.Area
	}
	if err := json.Unmarshal([]byte(out), &cases); err != nil || code != 0 || len(cases) == 0 {
		t.Fatalf("%d %q %v", code, out, err)
	}
	for _, c := range cases {
		if !strings.HasPrefix(c.ID, "LC-0") || c.Area != conformance.Lifecycle || c.Level != string(conformance.Core) {
			t.Errorf("%+v", c)
		}
	}
	code, out, _ = conform(t, t.TempDir(), "show", "LC-01")
	if code != 0 || !strings.HasPrefix(out, "LC-01 (lifecycle, core): ") || !strings.Contains(out, "--cases LC-01") {
		t.Errorf("%d %q", code, out)
	}
}

func TestConformance_run(t *testing.T) {
	t.Parallel()
	code, out, errs := conform(t, t.TempDir(), "run", "--backend", "subprocess", "--cases", "LC-0[1-5]")
	if code != 0 || !strings.Contains(out, "5 passed, 0 failed") || !strings.Contains(errs, "5/5 pass") {
		t.Errorf("%d\n%s\n%s", code, out, errs)
	}
	code, out, _ = conform(t, t.TempDir(), "run", "--cases", "MT-0[1-3]", "--json")
	doc, err := report.Read(strings.NewReader(out))
	if err != nil || code != 0 || len(doc.Reports) == 0 || len(doc.Reports[0].Results) != 3 || doc.Host.CPUs == 0 || len(doc.ConfigHash) != 64 {
		t.Errorf("%d %v\n%s", code, err, out)
	}
}

// One run's reports, made again from its JSON, and its bundle.
func TestConformance_reports(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	file := func(name string) string { return filepath.Join(home, name) }
	args := []string{"run", "--backend", "subprocess", "--cases", "MT-0*", "--bundle", file("b.tar.gz")}
	for _, ending := range []string{"json", "html", "md", "xml", "sarif"} {
		args = append(args, "--report", file("r."+ending))
	}
	code, _, errs := conform(t, home, args...)
	if code != 0 {
		t.Fatalf("%d %s", code, errs)
	}
	code, _, errs = conform(t, home, "report", file("r.json"), "--report", file("again.html"))
	first, _ := os.ReadFile(file("r.html"))
	again, _ := os.ReadFile(file("again.html"))
	if code != 0 || len(first) == 0 || !bytes.Equal(first, again) {
		t.Errorf("%d %s: %d and %d bytes", code, errs, len(first), len(again))
	}
	_, after, _ := strings.Cut(errs0(conform(t, home, "verify", file("b.tar.gz"))), "signed by ")
	key, _, _ := strings.Cut(after, "\n")
	if code, out, errs := conform(t, home, "verify", file("b.tar.gz"), "--key", key); code != 0 || !strings.HasPrefix(out, "whole: ") {
		t.Errorf("%d %s%s", code, out, errs)
	}
	other := "ed25519:" + strings.Repeat("00", 32)
	if code, _, errs := conform(t, home, "verify", file("b.tar.gz"), "--key", other); code != 3 || !strings.Contains(errs, "is signed by "+key) {
		t.Errorf("another key: %d %s", code, errs)
	}
	// The same key signs the next one.
	if code, _, errs := conform(t, home, "report", file("r.json"), "--bundle", file("c.tar.gz")); code != 0 || !strings.Contains(errs, key) {
		t.Errorf("%d %s", code, errs)
	}
	if info, err := os.Stat(filepath.Join(home, "state", "conformance-key.pem")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}
}

func errs0(_ int, stdout, _ string) string { return stdout }

func TestConformance_diff(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	good, bad := filepath.Join(home, "good.json"), filepath.Join(home, "bad.json")
	if code, _, errs := conform(t, home, "run", "--backend", "subprocess", "--cases", "LC-01", "--report", good); code != 0 {
		t.Fatal(errs)
	}
	data, _ := os.ReadFile(good)
	if err := os.WriteFile(bad, bytes.Replace(data, []byte(`"verdict": "pass"`), []byte(`"verdict": "fail"`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, _ := conform(t, home, "diff", good, bad); code != 1 || !strings.Contains(out, "worse") || !strings.Contains(out, "pass -> fail") {
		t.Errorf("%d %s", code, out)
	}
	if code, out, _ := conform(t, home, "diff", bad, good, "--json"); code != 0 || !strings.Contains(out, `"worse": false`) {
		t.Errorf("%d %s", code, out)
	}
	if code, out, _ := conform(t, home, "diff", good, good, "--json"); code != 0 || strings.TrimSpace(out) != "[]" {
		t.Errorf("%d %s", code, out)
	}
}

// The fake has no policy hash, so that this case fails, and nobody has a
// python3 in it, so that others say nothing.
func TestConformance_exitCodes(t *testing.T) {
	t.Parallel()
	code, out, errs := conform(t, t.TempDir(), "run", "--backend", "subprocess", "--cases", "RC-04")
	if code != 1 || !strings.Contains(out, "fail  RC-04") || !strings.Contains(errs, "nonconformant: subprocess") {
		t.Errorf("%d\n%s\n%s", code, out, errs)
	}
	for strict, want := range map[string]int{"--strict=false": 0, "--strict": 4} {
		if code, out, errs = conform(t, t.TempDir(), "run", "--backend", "subprocess", "--cases", "CM-01", strict); code != want {
			t.Errorf("%s: %d\n%s\n%s", strict, code, out, errs)
		}
	}
	if code, _, errs = conform(t, t.TempDir(), "run", "--timeout", "1ns", "--backend", "subprocess", "--cases", "LC-01"); code != 1 && code != 3 {
		t.Errorf("no time: %d %s", code, errs)
	}
}

func TestConformance_usage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"run", "--backend", "subproces"},
		{"run", "--require", "subproces"},
		{"run", "--cases", "["},
		{"list", "--cases", "nothing-matches-this"},
		{"list", "--area", "areas"},
		{"list", "--level", "hard"},
		{"list", "--area", "files", "--cases", "LC-01"},
		{"run", "--jobs", "0"},
		{"unexpected"},
		{"run", "unexpected"},
		{"run", "--report", "r.docx"},
		{"run", "--report", "/no/such/directory/r.json"},
		{"run", "--key", "k.pem"},
		{"show"},
		{"show", "XX-99"},
		{"report", "r.json"},
		{"diff", "one"},
		{"verify"},
		{"verify", "b", "--key", "ed25519:00"},
	} {
		if code, _, errs := conform(t, t.TempDir(), args...); code != 2 {
			t.Errorf("%q: %d %s", args, code, errs)
		}
	}
}
