package examples_test

import (
	"cmp"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
)

var update = flag.Bool("update", false, "write what is claimed into the tables of the documentation")

// column is one of a table of claims: a backend as somebody has it.
type column struct{ backend, privilege string }

func (c column) String() string { return c.backend + " " + c.privilege }

// bySubprocess and byOthers are the columns in the order of the tables.
func bySubprocess() []column {
	return []column{{"subprocess", "root"}, {"subprocess", "userns"}, {"subprocess", "restricted"}}
}

func byOthers() []column {
	return []column{{"docker", "engine"}, {"gvisor", "root"}, {"gvisor", "rootless"}}
}

// claims are what the backends claim in those columns that this user can have
// here, if this host has what the tables presuppose.
func claims(t *testing.T, columns []column) map[column]backend.Capabilities {
	t.Helper()
	w := bareWorld(t)
	out := map[column]backend.Capabilities{}
	for _, c := range columns {
		var env []string
		if c.backend != "docker" {
			env = append(env, "GLOVEBOX_BACKENDS__"+strings.ToUpper(c.backend)+"__WITH__PRIVILEGE="+c.privilege)
		}
		b := w.diagnose(c.backend, env...)
		t.Run(c.String(), func(t *testing.T) {
			if b.Privilege != c.privilege || !inFull(c, b) {
				t.Skipf("not compared: this host or user does not have %s in full", c)
			}
			out[c] = b.Capabilities
		})
	}
	if len(out) == 0 {
		t.Skip("this host has none of the privileges in full")
	}
	return out
}

// inFull tells whether the claims are those of a host with all that the tables
// presuppose.
func inFull(c column, b diagnosed) bool {
	by := func(mechanism string, controls ...backend.Control) bool {
		return !slices.ContainsFunc(controls, func(control backend.Control) bool {
			return !strings.HasPrefix(b.Capabilities.Claim(control).Mechanism, mechanism)
		})
	}
	switch c.backend {
	case "docker": // what it claims depends on who asks, and not on the engine
		return os.Geteuid() == 0 && by("Landlock", backend.ControlFileRules)
	case "gvisor": // nor does this depend on runsc
		return c.privilege != "root" || by("cgroup", backend.ControlMemory, backend.ControlCPU)
	default:
		return b.Health.Available && b.Capabilities.Claim(backend.ControlAgent).Enforcement == backend.Enforced &&
			(c.privilege != "root" || by("cgroup", backend.ControlMemory, backend.ControlPids, backend.ControlCPU, backend.ControlKillTree))
	}
}

func word(c backend.Claim) string {
	switch c.Enforcement {
	case backend.Enforced:
		return "yes"
	case backend.BestEffort:
		return "partly"
	default:
		return "no"
	}
}

// versions are what differs between hosts that enforce the same.
var versions = regexp.MustCompile(`^(Landlock) ABI [0-9]+$|(cgroup) v[12]`)

func sentence(c backend.Claim) string {
	parts := slices.DeleteFunc([]string{c.Mechanism, c.Note}, func(s string) bool { return s == "" })
	why := versions.ReplaceAllString(strings.Join(parts, "; "), "$1$2")
	if why == "" {
		return word(c)
	}
	return word(c) + ": " + why
}

// table is one of claims in a document: below a heading, a row for each control,
// with the columns after the first cells.
type table struct {
	document, heading string
	first             int
	columns           []column
	cell              func(backend.Claim) string
	every             bool // it has every control
}

// written are the table's cells by control.
func (tb table) written(t *testing.T) map[backend.Control][]string {
	t.Helper()
	out := map[backend.Control][]string{}
	for _, row := range rows(section(t, document(t, tb.document), tb.heading)) {
		out[backend.Control(strings.Trim(row[0], "`"))] = row[tb.first:]
	}
	return out
}

// replace writes what is claimed into the table's cells.
func (tb table) replace(t *testing.T, has map[column]backend.Capabilities) {
	t.Helper()
	doc := document(t, tb.document)
	part := section(t, doc, tb.heading)
	lines := strings.Split(part, "\n")
	for i, l := range lines {
		cells := strings.Split(strings.TrimSuffix(l, " |"), " | ")
		control, ok := strings.CutPrefix(cells[0], "| `")
		if !ok || len(cells) != tb.first+len(tb.columns) {
			continue
		}
		for j, c := range tb.columns {
			if caps, ok := has[c]; ok {
				cells[tb.first+j] = tb.cell(caps.Claim(backend.Control(strings.TrimSuffix(control, "`"))))
			}
		}
		lines[i] = strings.Join(cells, " | ") + " |"
	}
	doc = strings.Replace(doc, part, strings.Join(lines, "\n"), 1)
	if err := os.WriteFile(filepath.Join("..", tb.document), []byte(doc), 0o644); err != nil {
		t.Fatal(err)
	}
}

// compare holds the table against the claims.
func (tb table) compare(t *testing.T, has map[column]backend.Capabilities) {
	t.Helper()
	if *update {
		tb.replace(t, has)
	}
	written := tb.written(t)
	if len(written) < 8 {
		t.Fatalf("the table has %d rows", len(written))
	}
	for i, c := range tb.columns {
		caps, ok := has[c]
		if !ok {
			continue
		}
		want, got := map[backend.Control]string{}, map[backend.Control]string{}
		for control, cells := range written {
			got[control] = cells[i]
			want[control] = tb.cell(caps.Claim(control))
		}
		if tb.every {
			for control, claim := range caps.Claims {
				want[control] = tb.cell(claim)
			}
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("%s, %s (-claimed +written); see and then run with -update:\n%s", tb.heading, c, diff)
		}
	}
}

func TestReadme_levels(t *testing.T) {
	t.Parallel()
	columns := append(bySubprocess(), byOthers()...)
	has := claims(t, columns)
	table{"README.md", "## Backends and levels", 1, columns, word, false}.compare(t, has)

	part := section(t, document(t, "README.md"), "## Backends and levels")
	_, row, ok := strings.Cut(part, "\n| level |")
	row, _, _ = strings.Cut(row, "\n")
	cells := strings.Split(strings.Trim(row, "|"), "|")
	if !ok || len(cells) != len(columns) {
		t.Fatalf("the row of levels is %q", row)
	}
	for i, c := range columns {
		if caps, ok := has[c]; ok && strings.Trim(cells[i], " `") != caps.Isolation.String() {
			t.Errorf("%s: the level %s is written, %s is claimed", c, cells[i], caps.Isolation)
		}
	}
}

func TestSecurity_claims(t *testing.T) {
	t.Parallel()
	has := claims(t, append(bySubprocess(), byOthers()...))
	for _, tb := range []table{
		{"docs/security.md", "### subprocess", 2, bySubprocess(), sentence, true},
		{"docs/security.md", "### docker and gVisor", 1, byOthers(), sentence, true},
	} {
		tb.compare(t, has)
	}
}

// TestSecurity_meanings: every control is explained once, in one order.
func TestSecurity_meanings(t *testing.T) {
	t.Parallel()
	doc := document(t, "docs/security.md")
	var controls [][]string
	for _, heading := range []string{"### subprocess", "### docker and gVisor"} {
		var names []string
		for _, row := range rows(section(t, doc, heading)) {
			names = append(names, strings.Trim(row[0], "`"))
		}
		if !slices.IsSortedFunc(names, cmp.Compare) {
			t.Errorf("%s is not sorted", heading)
		}
		controls = append(controls, names)
	}
	if diff := gocmp.Diff(controls[0], controls[1]); diff != "" {
		t.Errorf("controls (-subprocess +docker and gVisor):\n%s", diff)
	}
}
