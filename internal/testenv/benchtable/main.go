// Command benchtable reads what `go test -bench` prints and writes its figures
// as a Markdown table, with the machine that they were taken on. What is no
// figure goes to standard error, and a benchmark that failed fails it.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/conformance/host"
	"github.com/glovebox-dev/glovebox/internal/version"
)

func main() {
	if err := table(os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "benchtable:", err)
		os.Exit(1)
	}
}

// row is one benchmark.
type row struct {
	of      string // its package's directory
	name    string
	figures []string
}

var result = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.+)$`)

func table(in io.Reader, out, rest io.Writer) error {
	var rows []row
	of, failed := "", false
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		line := lines.Text()
		if pkg, ok := strings.CutPrefix(line, "pkg: "); ok {
			of = strings.TrimSuffix(strings.TrimPrefix(pkg, "github.com/glovebox-dev/glovebox/"), "/bench")
			continue
		}
		m := result.FindStringSubmatch(line)
		if m == nil {
			failed = failed || strings.HasPrefix(line, "FAIL") || strings.HasPrefix(line, "--- FAIL")
			fmt.Fprintln(rest, line)
			continue
		}
		r := row{of: of, name: m[1]}
		fields := strings.Fields(m[2])
		for i := 0; i+1 < len(fields); i += 2 {
			if fields[i+1] != "ns/op" {
				r.figures = append(r.figures, fields[i+1]+" "+fields[i])
			}
		}
		rows = append(rows, r)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if len(rows) == 0 || failed {
		return errors.New("a benchmark failed, or there was none")
	}
	v := version.Get()
	fmt.Fprintf(out, "%s, %s, kernel %s, %d CPUs, %d MiB, commit %s, %s\n\n| backend | benchmark | figures |\n|---|---|---|\n",
		time.Now().UTC().Format(time.DateOnly), host.Distribution(), host.Kernel(), runtime.NumCPU(), host.Memory()>>20, v.Commit, v.Go)
	for _, r := range rows {
		if _, err := fmt.Fprintf(out, "| %s | %s | %s |\n", path.Base(r.of), r.name, strings.Join(r.figures, ", ")); err != nil {
			return err
		}
	}
	return nil
}
