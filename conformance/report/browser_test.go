package report_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/internal/testenv"
)

// browse opens the sample's page in a browser and gives the document as it is
// once its script has run.
func browse(t *testing.T, fragment string) string {
	t.Helper()
	path, err := exec.LookPath("chromium")
	why := ""
	if err != nil {
		why = "chromium is not installed"
	}
	testenv.Require(t, "chromium", why)
	dir := t.TempDir()
	page := filepath.Join(dir, "report.html")
	if err := os.WriteFile(page, []byte(written(t, sample().WriteHTML)), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// The page is our own, and a browser's sandbox is not to be had as root.
	cmd := exec.CommandContext(ctx, path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--user-data-dir="+filepath.Join(dir, "profile"), "--dump-dom", "file://"+page+fragment)
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_RUNTIME_DIR="+dir)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium: %v\n%s", err, errs.String())
	}
	return string(out)
}

var (
	counter = regexp.MustCompile(`id="f-count"[^>]*>([^<]*)<`)
	opened  = regexp.MustCompile(`<details id="([^"]*)" open`)
)

func count(dom string) string {
	if m := counter.FindStringSubmatch(dom); m != nil {
		return m[1]
	}
	return "no counter"
}

// The page's own script runs, and nobody else's.
func TestHTML_inABrowser(t *testing.T) {
	t.Parallel()
	dom := browse(t, "")
	if got := count(dom); got != "3 of 3 cases" {
		t.Errorf("without a filter: %s", got)
	}
	if !strings.Contains(dom, "<title>Conformance of strong, weak</title>") || strings.Contains(dom, "<img") || strings.Count(dom, "<script") != 1 {
		t.Error("a sandbox's words became a part of the page")
	}
	if !strings.Contains(dom, "claims is <b>strong</b>") {
		t.Error("it does not say which backend to take")
	}
	if m := opened.FindStringSubmatch(dom); m != nil {
		t.Errorf("%s is open", m[1])
	}
}

func TestHTML_filters(t *testing.T) {
	t.Parallel()
	for fragment, want := range map[string]string{
		"#verdict=fail":                "1 of 3 cases",
		"#area=files":                  "2 of 3 cases",
		"#verdict=not+run":             "1 of 3 cases",
		"#text=AA-01%20requires":       "1 of 3 cases",
		"#verdict=fail&area=files":     "0 of 3 cases",
		"#verdict=there-is-none-such":  "3 of 3 cases",
		"#text=%3Cscript%3Ealert(1)":   "0 of 3 cases",
		"#e-1-BB-01%22%3E%3Cimg%20src": "3 of 3 cases",
	} {
		if got := count(browse(t, fragment)); got != want {
			t.Errorf("%s: %s, want %s", fragment, got, want)
		}
	}
}

// A cell's link opens its evidence.
func TestHTML_evidence(t *testing.T) {
	t.Parallel()
	dom := browse(t, "#e-1-BB-01")
	m := opened.FindAllStringSubmatch(dom, -1)
	if len(m) != 1 || m[0][1] != "e-1-BB-01" || !strings.Contains(dom, `href="#e-1-BB-01"`) {
		t.Errorf("open: %v", m)
	}
}
