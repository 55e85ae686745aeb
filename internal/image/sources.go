package image

import (
	"bufio"
	"bytes"
	"context"
	"net/url"
	"os/exec"
	"slices"
	"strings"
)

// defaultSources are Debian's own archives.
func defaultSources(suite string) []string {
	return sourceLines("http://deb.debian.org/debian", "http://deb.debian.org/debian-security", suite)
}

func sourceLines(main, security, suite string) []string {
	return []string{
		"deb " + main + " " + suite + " main",
		"deb " + main + " " + suite + "-updates main",
		"deb " + security + " " + suite + "-security main",
	}
}

// target is one place that apt is configured to get packages from.
type target struct{ uri, release, component string }

// hostSources are the lines that name the archives of suite which this host's
// apt is configured with. A host of another Debian release gives its mirror's
// address; one that has none, Debian's own.
func hostSources(ctx context.Context, suite string) []string {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets",
		"--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages").Output()
	if err != nil {
		return defaultSources(suite)
	}
	return chooseSources(parseTargets(out), suite)
}

func parseTargets(out []byte) []target {
	var all []target
	for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
		f := strings.Fields(sc.Text())
		if len(f) != 3 {
			continue
		}
		// What is on this disk, apt inside the new root could not read.
		if u, err := url.Parse(f[0]); err != nil || u.Scheme != "http" && u.Scheme != "https" {
			continue
		}
		t := target{strings.TrimRight(f[0], "/"), f[1], f[2]}
		if !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return all
}

func chooseSources(all []target, suite string) []string {
	var lines []string
	main, security := "", ""
	for _, t := range all {
		if t.component != "main" {
			continue // non-free packages are none of ours
		}
		switch t.release {
		case suite, suite + "-updates", suite + "-security":
			lines = append(lines, "deb "+t.uri+" "+t.release+" main")
		}
		// Another release of Debian lies beside ours on the same mirror.
		switch u, _ := url.Parse(t.uri); { // parsed before
		case strings.HasSuffix(u.Path, "/debian"):
			main = t.uri
		case strings.HasSuffix(u.Path, "/debian-security"):
			security = t.uri
		}
	}
	if slices.ContainsFunc(lines, func(l string) bool { return strings.HasSuffix(l, " "+suite+" main") }) {
		return lines
	}
	if main == "" {
		return defaultSources(suite)
	}
	if security == "" {
		security = "http://deb.debian.org/debian-security"
	}
	return sourceLines(main, security, suite)
}

// hostAptOptions are the host's settings that say how the archive is reached.
func hostAptOptions(ctx context.Context) []string {
	keys := []string{
		"Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::Check-Valid-Until", "Acquire::Check-Date",
		"Acquire::Retries", "Acquire::http::Timeout",
	}
	out, err := exec.CommandContext(ctx, "apt-config", append([]string{"dump", "--no-empty"}, keys...)...).Output()
	if err != nil {
		return nil
	}
	var opts []string
	for line := range strings.Lines(string(out)) {
		key, value, ok := strings.Cut(strings.TrimSuffix(strings.TrimSpace(line), ";"), " ")
		if ok && slices.Contains(keys, key) && strings.HasPrefix(value, `"`) {
			opts = append(opts, key+" "+value)
		}
	}
	return opts
}
