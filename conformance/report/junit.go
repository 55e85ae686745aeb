package report

import (
	"encoding/xml"
	"io"
	"strings"

	"github.com/glovebox-dev/glovebox/conformance"
)

type junitSuites struct {
	XMLName xml.Name     `xml:"testsuites"`
	Suites  []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Time     float64     `xml:"time,attr"`
	Stamp    string      `xml:"timestamp,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Time    float64       `xml:"time,attr"`
	Failure *junitMessage `xml:"failure"`
	Error   *junitMessage `xml:"error"`
	Skipped *junitMessage `xml:"skipped"`
}

type junitMessage struct {
	Message string `xml:"message,attr,omitempty"`
	Text    string `xml:",chardata"`
}

// WriteJUnit writes a test suite for each backend. An unsupported case is a
// skipped one; an inconclusive case, and a run that stopped, is an error, since
// neither proves anything.
func (d *Document) WriteJUnit(w io.Writer) error {
	var out junitSuites
	for _, r := range d.Reports {
		s := junitSuite{Name: r.Target, Time: r.Took.Seconds(), Stamp: r.Started.UTC().Format("2006-01-02T15:04:05")}
		add := func(c junitCase) {
			s.Tests++
			switch {
			case c.Failure != nil:
				s.Failures++
			case c.Error != nil:
				s.Errors++
			case c.Skipped != nil:
				s.Skipped++
			}
			s.Cases = append(s.Cases, c)
		}
		for _, res := range r.Results {
			c := junitCase{Class: r.Target + "." + string(res.Area), Name: res.ID + " " + res.Title, Time: res.Took.Seconds()}
			m := &junitMessage{Message: printable(res.Reason), Text: printable(strings.Join(res.Log, "\n"))}
			switch res.Verdict {
			case conformance.Fail:
				c.Failure = m
			case conformance.Inconclusive:
				c.Error = m
			case conformance.Unsupported, conformance.Waived:
				c.Skipped = &junitMessage{Message: string(res.Verdict) + ": " + m.Message}
			case conformance.Pass:
			}
			add(c)
		}
		if len(r.Left) > 0 {
			add(junitCase{Class: r.Target, Name: "nothing is left behind", Failure: &junitMessage{Text: printable(strings.Join(r.Left, "\n"))}})
		}
		if r.Stopped != "" {
			add(junitCase{Class: r.Target, Name: "every case ran", Error: &junitMessage{Message: printable(r.Stopped)}})
		}
		out.Suites = append(out.Suites, s)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	enc := xml.NewEncoder(w)
	enc.Indent("", "  ")
	if err := enc.Encode(out); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
