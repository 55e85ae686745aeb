package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/glovebox-dev/glovebox/conformance"
)

// Change is a case whose verdict on a backend is another one in a later report.
type Change struct {
	Backend string              `json:"backend"`
	Case    string              `json:"case"`
	Title   string              `json:"title"`
	Before  conformance.Verdict `json:"before,omitempty"` // "" when it was not run
	After   conformance.Verdict `json:"after,omitempty"`
	Worse   bool                `json:"worse"`            // it proves less than before
	Reason  string              `json:"reason,omitempty"` // of the later verdict
}

// rank orders verdicts by how much they prove.
func rank(v conformance.Verdict) int {
	switch v {
	case conformance.Pass:
		return 4
	case conformance.Unsupported:
		return 3
	case conformance.Waived:
		return 2
	case conformance.Fail:
		return 0
	case conformance.Inconclusive:
	}
	return 1 // also what was not run
}

// Diff lists what changed from before to after, what became worse first. A
// backend that only one of them has is compared with nothing.
func Diff(before, after *Document) []Change {
	type key struct{ backend, id string }
	old := map[key]conformance.Result{}
	for _, r := range before.Reports {
		for _, res := range r.Results {
			old[key{r.Target, res.ID}] = res
		}
	}
	var out []Change
	add := func(target string, was, is conformance.Result) {
		out = append(out, Change{
			Backend: target, Case: cmp.Or(is.ID, was.ID), Title: cmp.Or(is.Title, was.Title), Before: was.Verdict, After: is.Verdict,
			Worse: rank(is.Verdict) < rank(was.Verdict), Reason: is.Reason,
		})
	}
	for _, r := range after.Reports {
		for _, res := range r.Results {
			k := key{r.Target, res.ID}
			if was := old[k]; was.Verdict != res.Verdict {
				add(r.Target, was, res)
			}
			delete(old, k)
		}
	}
	for k, was := range old {
		add(k.backend, was, conformance.Result{})
	}
	slices.SortFunc(out, func(a, b Change) int {
		switch {
		case a.Worse && !b.Worse:
			return -1
		case b.Worse && !a.Worse:
			return 1
		}
		return cmp.Or(cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.Case, b.Case))
	})
	return out
}

// WriteChanges writes changes for people, each in a line. Reasons quote what
// came from sandboxes, here without what a terminal obeys.
func WriteChanges(w io.Writer, changes []Change) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range changes {
		word := "better"
		if c.Worse {
			word = "worse"
		}
		if _, err := fmt.Fprintf(tw, "%s\t%s\t%s\t%s -> %s\t%s\n", word, printable(c.Backend), printable(c.Case),
			cmp.Or(string(c.Before), string(notRun)), cmp.Or(string(c.After), string(notRun)), oneLine(cmp.Or(c.Reason, c.Title))); err != nil {
			return err
		}
	}
	return tw.Flush()
}
