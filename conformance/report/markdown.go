package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/conformance"
	"github.com/glovebox-dev/glovebox/internal/term"
)

// WriteMarkdown writes the matrix and what is not pass, as GitHub-flavoured
// Markdown.
func (d *Document) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Conformance report\n\n%s, suite %s, %s, took %v\n\n", d.Started.UTC().Format(time.RFC3339), text(d.Suite.String()), text(d.Host.String()), d.Took.Round(time.Second))
	b.WriteString("| backend | level | verdict | passed | failed | unsupported | inconclusive |\n|---|---|---|---|---|---|---|\n")
	for _, r := range d.Reports {
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %d | %d |\n", text(r.Target), r.Capabilities.Isolation, r.verdict(),
			r.Counts[conformance.Pass], r.Counts[conformance.Fail], r.Counts[conformance.Unsupported], r.Counts[conformance.Inconclusive])
	}
	b.WriteString("\n## What each does not enforce, by its own claims\n\n")
	for _, r := range d.Reports {
		gaps := r.gaps()
		if len(gaps) == 0 {
			fmt.Fprintf(&b, "- **%s**: nothing\n", text(r.Target))
		}
		for _, g := range gaps {
			fmt.Fprintf(&b, "- **%s**: `%s` is %s: %s\n", text(r.Target), g.Control, g.Enforcement, text(g.Note))
		}
	}
	b.WriteString("\n## Cases\n\n| case | requirement |")
	for _, r := range d.Reports {
		fmt.Fprintf(&b, " %s |", text(r.Target))
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(d.Reports)) + "\n")
	rows := d.rows()
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s |", text(r.ID), text(r.Title))
		for _, c := range r.Cells {
			fmt.Fprintf(&b, " %s |", c.Shown())
		}
		b.WriteByte('\n')
	}
	b.WriteString("\n## What is not a pass\n")
	for _, r := range rows {
		for _, c := range r.Cells {
			if c.Verdict == conformance.Pass || c.Verdict == "" {
				continue
			}
			fmt.Fprintf(&b, "\n### %s on %s: %s\n\n%s\n", text(r.ID), text(c.Backend), c.Shown(), text(c.Reason))
			if c.Verdict != conformance.Unsupported {
				b.WriteString(block(c.Log))
			}
		}
	}
	for _, r := range d.Reports {
		for _, l := range r.Left {
			fmt.Fprintf(&b, "\n**Left behind by %s**: %s\n", text(r.Target), text(l))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// text is s as words in Markdown: what came from a sandbox makes no link, no
// HTML, no cell and no line of its own.
func text(s string) string {
	var b strings.Builder
	for _, r := range oneLine(s) {
		if strings.ContainsRune("\\`*_{}[]<>()#+!|~&@:", r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// block is lines as code, each indented, so that no fence in them ends it.
func block(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteByte('\n')
	for _, l := range lines {
		for part := range strings.SplitSeq(printable(l), "\n") {
			b.WriteString("    " + part + "\n")
		}
	}
	return b.String()
}

// printable is s without what terminals and parsers obey, but for line ends and
// tabs.
func printable(s string) string { return term.Lines(s) }

// oneLine is printable in a line.
func oneLine(s string) string { return term.String(s) }

// String is the suite in one line.
func (s Suite) String() string {
	out := "glovebox " + s.Version
	if s.Commit != "" {
		out += " (" + s.Commit[:min(12, len(s.Commit))]
		if s.Modified {
			out += ", changed"
		}
		out += ")"
	}
	return out
}

// String is the host in one line.
func (h Host) String() string {
	parts := []string{h.OS + "/" + h.Arch, h.Distribution, h.Kernel, fmt.Sprintf("%d CPUs", h.CPUs)}
	if h.Memory > 0 {
		parts = append(parts, fmt.Sprintf("%d MiB", h.Memory>>20))
	}
	if h.Root {
		parts = append(parts, "as root")
	} else {
		parts = append(parts, "not as root")
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}

// verdict is what a report says in a word.
func (r Report) verdict() string {
	switch {
	case !r.OK():
		return "nonconformant"
	case !r.Conclusive():
		return "conformant, partial"
	}
	return "conformant"
}
