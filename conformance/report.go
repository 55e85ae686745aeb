package conformance

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// SchemaVersion is Report's; a field's meaning never changes within one.
const SchemaVersion = 1

// Verdict is what came of a case. Verdicts are append-only.
type Verdict string

// The verdicts.
const (
	Pass         Verdict = "pass"
	Unsupported  Verdict = "unsupported"  // not claimed, and refused as it must be
	Inconclusive Verdict = "inconclusive" // a precondition or a control does not hold here
	Waived       Verdict = "waived"       // a failure that is known, with a reason; one that passes is stale and fails
	Fail         Verdict = "fail"
)

// Result is what came of one case.
type Result struct {
	ID      string        `json:"id"`
	Area    Area          `json:"area"`
	Level   Level         `json:"level"`
	Title   string        `json:"title"`
	Verdict Verdict       `json:"verdict"`
	Reason  string        `json:"reason,omitempty"` // why it is not pass
	Log     []string      `json:"log,omitempty"`
	Took    time.Duration `json:"took_ns"`
}

// Report is what came of a run.
type Report struct {
	Schema       int                  `json:"schema"`
	Target       string               `json:"target"`
	Started      time.Time            `json:"started"`
	Took         time.Duration        `json:"took_ns"`
	Capabilities backend.Capabilities `json:"capabilities"`
	Results      []Result             `json:"results"` // in the order of Cases
	Counts       map[Verdict]int      `json:"counts"`
	// Left is what the witness found after the run that belongs to it.
	Left []string `json:"left,omitempty"`
	// Watched tells whether a witness looked at the host.
	Watched bool `json:"watched"`
	// Stopped says why not every case ran.
	Stopped string `json:"stopped,omitempty"`
}

// OK tells whether nothing failed, nothing was left behind and every case ran.
// Inconclusive cases do not count against the backend; Conclusive tells.
func (r Report) OK() bool {
	return r.Counts[Fail] == 0 && len(r.Left) == 0 && r.Stopped == "" && len(r.Results) > 0
}

// Conclusive tells whether every case said something.
func (r Report) Conclusive() bool { return r.Counts[Inconclusive] == 0 }

// WriteTable writes the results for people. Log lines quote what came from
// sandboxes: a caller that writes to a terminal filters what that would obey.
func (r Report) WriteTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, res := range r.Results {
		if _, err := fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", res.Verdict, res.ID, res.Area, res.Title); err != nil {
			return err
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, res := range r.Results {
		if res.Verdict == Pass {
			continue
		}
		if _, err := fmt.Fprintf(w, "\n%s %s: %s\n", res.Verdict, res.ID, cmp.Or(res.Reason, res.Title)); err != nil {
			return err
		}
		if res.Verdict == Unsupported {
			continue
		}
		for _, line := range res.Log {
			if _, err := fmt.Fprintf(w, "    %s\n", strings.ReplaceAll(line, "\n", "\n    ")); err != nil {
				return err
			}
		}
	}
	for _, l := range r.Left {
		if _, err := fmt.Fprintf(w, "left behind: %s\n", l); err != nil {
			return err
		}
	}
	if r.Stopped != "" {
		if _, err := fmt.Fprintf(w, "stopped: %s\n", r.Stopped); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\n%s (%s, isolation %s): %s\n", r.Target, r.Capabilities.Driver, r.Capabilities.Isolation, r.Summary())
	return err
}

// Summary is the counts in one line.
func (r Report) Summary() string {
	s := fmt.Sprintf("%d passed, %d failed, %d inconclusive, %d unsupported, %v",
		r.Counts[Pass], r.Counts[Fail], r.Counts[Inconclusive], r.Counts[Unsupported], r.Took.Round(time.Millisecond))
	if n := r.Counts[Waived]; n > 0 {
		s += fmt.Sprintf(", %d waived", n)
	}
	if !r.Watched {
		s += ", the host was not watched"
	}
	return s
}
