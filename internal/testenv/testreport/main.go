// Command testreport reads the events of "go test -json" on its standard input
// and prints what go test would, the skipped tests with their reasons, and how
// many there were. Its argument is a file with the skips that are known: one
// that it does not list fails the run, as a failing test does.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go test -json ./... | testreport KNOWN-SKIPS")
		os.Exit(2)
	}
	ok, err := run(os.Args[1], os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

func run(known string, in io.Reader, out io.Writer) (ok bool, err error) {
	text, err := os.ReadFile(known)
	if err != nil {
		return false, err
	}
	skips, err := parseSkips(string(text))
	if err != nil {
		return false, err
	}
	r := &report{out: out, known: skips, said: map[string]*strings.Builder{}}
	if err := r.read(in); err != nil {
		return false, err
	}
	fmt.Fprintf(out, "%d tests passed, %d failed, %d skipped (%d of them unknown)\n", r.passed, r.failed, r.skipped, r.unknown)
	return r.failed == 0 && r.broken == 0 && r.unknown == 0, nil
}

// skip is a test that may be skipped when it gives a reason that matches.
type skip struct{ test, reason *regexp.Regexp }

// parseSkips reads lines of two regular expressions, a tab between them: of
// package and test, as in "subprocess TestCPython/root", and of the reason.
func parseSkips(text string) ([]skip, error) {
	var out []skip
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		test, reason, found := strings.Cut(line, "\t")
		if !found {
			return nil, fmt.Errorf("known skips: %q has no tab", line)
		}
		t, terr := regexp.Compile("^(?:" + test + ")$")
		r, rerr := regexp.Compile(reason)
		if err := errors.Join(terr, rerr); err != nil {
			return nil, fmt.Errorf("known skips: %w", err)
		}
		out = append(out, skip{t, r})
	}
	return out, nil
}

// event is one of test2json's.
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

type report struct {
	out                              io.Writer
	known                            []skip
	said                             map[string]*strings.Builder // by package and test
	passed, failed, skipped, unknown int
	broken                           int // packages
}

func (r *report) read(in io.Reader) error {
	rd := bufio.NewReader(in)
	for {
		line, err := rd.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil && e.Action != "" {
				r.take(&e)
			} else {
				r.out.Write(line) //nolint:errcheck // standard output
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) take(e *event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		io.WriteString(r.out, e.Output) //nolint:errcheck // standard output
	case "output":
		b := r.said[key]
		if b == nil {
			b = &strings.Builder{}
			r.said[key] = b
		}
		b.WriteString(e.Output)
	case "pass", "fail", "skip":
		said := r.said[key]
		delete(r.said, key)
		text := ""
		if said != nil {
			text = said.String()
		}
		if e.Test == "" {
			r.endPackage(e, text)
		} else {
			r.endTest(e, text)
		}
	}
}

func (r *report) endTest(e *event, text string) {
	switch e.Action {
	case "pass":
		r.passed++
	case "fail":
		r.failed++
		io.WriteString(r.out, text) //nolint:errcheck // standard output
	case "skip":
		r.skipped++
		reason := reasonOf(text)
		name := short(e.Package) + " " + e.Test
		mark := ""
		if !r.knows(name, reason) {
			r.unknown++
			mark = " (unknown)"
		}
		fmt.Fprintf(r.out, "skip\t%s: %s%s\n", name, reason, mark)
	}
}

func (r *report) knows(name, reason string) bool {
	for _, s := range r.known {
		if s.test.MatchString(name) && s.reason.MatchString(reason) {
			return true
		}
	}
	return false
}

// endPackage prints a package's line, and what it said itself when it failed:
// a panic, a race, its tests' output that nobody ended.
func (r *report) endPackage(e *event, text string) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(r.out, "ok  \t%s\t%.3fs\n", e.Package, e.Elapsed)
	case "skip":
		fmt.Fprintf(r.out, "?   \t%s\t[no test files]\n", e.Package)
	case "fail":
		r.broken++
		for key, b := range r.said {
			if strings.HasPrefix(key, e.Package+" ") {
				io.WriteString(r.out, b.String()) //nolint:errcheck // standard output
				delete(r.said, key)
			}
		}
		io.WriteString(r.out, text) //nolint:errcheck // standard output
		fmt.Fprintf(r.out, "FAIL\t%s\t%.3fs\n", e.Package, e.Elapsed)
	}
}

// reasonOf takes what a skipped test said, on one line, without go test's own.
func reasonOf(text string) string {
	var out []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- SKIP") {
			continue
		}
		out = append(out, line)
	}
	return strings.Join(out, " ")
}

func short(pkg string) string { return strings.TrimPrefix(pkg, "github.com/glovebox-dev/glovebox/") }
