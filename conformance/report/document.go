// Package report makes what came of conformance runs into documents that can be
// filed: one JSON document, and from it HTML, Markdown, JUnit and SARIF, a
// comparison of two, and a signed bundle. Everything quoted from a sandbox is
// hostile, and is escaped for each format.
package report

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/conformance"
)

// MaxDocument bounds a document that is read, in bytes.
const MaxDocument = 64 << 20

// Document is what came of one run of the suite against some backends. Its JSON
// is versioned: a field's meaning never changes within one Schema.
type Document struct {
	Schema  int           `json:"schema"` // conformance.SchemaVersion
	Suite   Suite         `json:"suite"`
	Started time.Time     `json:"started"`
	Took    time.Duration `json:"took_ns"`
	Host    Host          `json:"host"`
	// Config is the configuration with its secrets redacted, ConfigHash the
	// SHA-256 of its canonical JSON, in hexadecimal.
	Config     map[string]any `json:"config,omitempty"`
	ConfigHash string         `json:"config_hash,omitempty"`
	// Filter is which cases were asked for, "" for all.
	Filter  string   `json:"filter,omitempty"`
	Reports []Report `json:"reports"`
}

// Suite is the program that ran the cases.
type Suite struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
}

// Host is the machine that it ran on.
type Host struct {
	OS           string `json:"os"`
	Arch         string `json:"arch"`
	Kernel       string `json:"kernel,omitempty"`
	Distribution string `json:"distribution,omitempty"`
	CPUs         int    `json:"cpus"`
	Memory       int64  `json:"memory,omitempty"` // bytes
	Root         bool   `json:"root"`             // the suite ran as root
}

// Report is what came of a run against one backend.
type Report struct {
	conformance.Report
	// Privilege and Facts are what the backend's own probe found on the host.
	Privilege string   `json:"privilege,omitempty"`
	Facts     []Fact   `json:"facts,omitempty"`
	Warnings  []string `json:"warnings,omitempty"`
}

// Fact is one thing that was measured about the host.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	OK    bool   `json:"ok"`
}

// Read reads a document's JSON. Fields that it does not know are ignored, a
// schema that it does not know is refused.
func Read(r io.Reader) (*Document, error) {
	invalid := func(err error) (*Document, error) {
		return nil, &backend.Error{Op: "conformance", Kind: backend.ErrInvalid, Field: "report", Err: err, Fix: "give the JSON of glovebox conformance run"}
	}
	data, err := io.ReadAll(io.LimitReader(r, MaxDocument+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxDocument {
		return invalid(fmt.Errorf("it is larger than %d bytes", MaxDocument))
	}
	var d Document
	if err := json.Unmarshal(data, &d); err != nil {
		return invalid(err)
	}
	switch {
	case d.Schema != conformance.SchemaVersion:
		return invalid(fmt.Errorf("schema %d, this program knows %d", d.Schema, conformance.SchemaVersion))
	case len(d.Reports) == 0:
		return invalid(errors.New("it has no report"))
	}
	return &d, nil
}

// WriteJSON writes the document as Read reads it.
func (d *Document) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(d)
}

// Conformant tells whether nothing failed and nothing was left behind on any
// backend, and whether every case said something (complete). An inconclusive
// case is not complete.
func (d *Document) Conformant() (ok, complete bool) {
	ok, complete = len(d.Reports) > 0, true
	for _, r := range d.Reports {
		ok = ok && r.OK()
		complete = complete && r.Conclusive()
	}
	return ok, complete
}

// row is a case beside what came of it on each backend.
type row struct {
	ID    string
	Area  conformance.Area
	Level conformance.Level
	Title string
	Cells []*cell // one for each report
}

// cell is what came of a case on a backend.
type cell struct {
	conformance.Result
	Backend string
	Anchor  string
	Basis   basis
}

// basis is what a verdict rests on.
type basis string

const (
	measured basis = "measured" // the program ran, and what it did was looked at
	declared basis = "declared" // the backend does not claim it; that it is refused was tried
	notRun   basis = "not run"  // nothing was learnt
)

func basisOf(v conformance.Verdict) basis {
	switch v {
	case conformance.Pass, conformance.Fail, conformance.Waived:
		return measured
	case conformance.Unsupported:
		return declared
	case conformance.Inconclusive:
	}
	return notRun
}

// rows are all cases of all reports, in the order in which they first come.
func (d *Document) rows() []*row {
	var out []*row
	at := map[string]*row{}
	for i, rep := range d.Reports {
		for _, res := range rep.Results {
			r := at[res.ID]
			if r == nil {
				r = &row{ID: res.ID, Area: res.Area, Level: res.Level, Title: res.Title, Cells: make([]*cell, len(d.Reports))}
				at[res.ID] = r
				out = append(out, r)
			}
			r.Cells[i] = &cell{Result: res, Backend: rep.Target, Anchor: fmt.Sprintf("e-%d-%s", i, res.ID), Basis: basisOf(res.Verdict)}
		}
	}
	for _, r := range out {
		for i, c := range r.Cells {
			if c == nil {
				r.Cells[i] = &cell{
					Result:  conformance.Result{ID: r.ID, Area: r.Area, Title: r.Title, Reason: cmp.Or(d.Reports[i].Stopped, "it was not among the cases of this run")},
					Backend: d.Reports[i].Target, Basis: notRun,
				}
			}
		}
	}
	return out
}

// Shown is a word for the verdict; a case that has none was not run.
func (c *cell) Shown() string { return cmp.Or(string(c.Verdict), string(notRun)) }

// gap is a control that a backend does not enforce.
type gap struct {
	Control     backend.Control
	Enforcement backend.Enforcement
	Note        string
}

// gaps are what a backend says itself that it does not stop.
func (r Report) gaps() []gap {
	var out []gap
	for c, claim := range r.Capabilities.Claims {
		if claim.Enforcement != backend.Enforced {
			out = append(out, gap{c, claim.Enforcement, cmp.Or(claim.Note, claim.Mechanism)})
		}
	}
	slices.SortFunc(out, func(a, b gap) int { return cmp.Compare(a.Control, b.Control) })
	return out
}
