package report

import (
	_ "embed"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/conformance"
)

//go:embed page.html.tmpl
var pageSource string

// page is what the template gets.
type page struct {
	*Document
	Rows     []*row
	Areas    []conformance.Area
	Verdicts []string
	Backends []summary
	Strong   string // the strongest that is conformant; "" when none is
}

// summary is a backend in a few words.
type summary struct {
	Report
	Word string // conformant, nonconformant
	Gaps []gap
	Bad  []*cell // what failed
	Open []*cell // what said nothing
}

// WriteHTML writes one page that needs nothing else: no other file, no network.
// It can be read and printed without its script, which only filters.
func (d *Document) WriteHTML(w io.Writer) error {
	t, err := template.New("page").Funcs(template.FuncMap{
		"join":  func(lines []string) string { return printable(strings.Join(lines, "\n")) },
		"clean": printable,
		"slug":  slug,
		"round": func(t time.Duration) time.Duration {
			if t < time.Second {
				return t.Round(time.Millisecond)
			}
			return t.Round(10 * time.Millisecond)
		},
		"utc": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	}).Parse(pageSource)
	if err != nil {
		return err
	}
	return t.Execute(w, d.page())
}

func (d *Document) page() page {
	p := page{Document: d, Rows: d.rows()}
	for _, r := range p.Rows {
		if !slices.Contains(p.Areas, r.Area) {
			p.Areas = append(p.Areas, r.Area)
		}
		for _, c := range r.Cells {
			if !slices.Contains(p.Verdicts, c.Shown()) {
				p.Verdicts = append(p.Verdicts, c.Shown())
			}
		}
	}
	slices.Sort(p.Verdicts)
	level := backend.IsolationNone
	for i, r := range d.Reports {
		s := summary{Report: r, Word: r.verdict(), Gaps: r.gaps()}
		for _, row := range p.Rows {
			switch c := row.Cells[i]; c.Verdict {
			case conformance.Fail:
				s.Bad = append(s.Bad, c)
			case conformance.Inconclusive, "":
				s.Open = append(s.Open, c)
			default:
			}
		}
		p.Backends = append(p.Backends, s)
		if r.OK() && r.Capabilities.Isolation > level {
			level, p.Strong = r.Capabilities.Isolation, r.Target
		}
	}
	return p
}

// slug is s as the name of a style.
func slug(s string) string { return strings.ReplaceAll(s, " ", "-") }
