package report_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/conformance"
	"github.com/glovebox-dev/glovebox/conformance/report"
)

func written(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// JSON is what everything else can be made from again.
func TestJSON_roundTrip(t *testing.T) {
	t.Parallel()
	text := written(t, sample().WriteJSON)
	got, err := report.Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	// What is no UTF-8 was replaced the first time.
	if diff := cmp.Diff(strings.ReplaceAll(text, `\ufffd`, "\uFFFD"), written(t, got.WriteJSON)); diff != "" {
		t.Error(diff)
	}
	if ok, complete := got.Conformant(); ok || complete {
		t.Errorf("conformant %t, complete %t", ok, complete)
	}
	for _, wrong := range []string{"", "{}", `{"schema":99,"reports":[{}]}`, `{"schema":1}`, `[1]`} {
		if _, err := report.Read(strings.NewReader(wrong)); backend.KindOf(err) != backend.ErrInvalid {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// Nothing from a sandbox becomes a cell, a heading, a link or HTML.
func TestMarkdown_hostileText(t *testing.T) {
	t.Parallel()
	text := written(t, sample().WriteMarkdown)
	for line := range strings.Lines(text) {
		code := strings.HasPrefix(line, "    ")
		bare := regexp.MustCompile(`\\.`).ReplaceAllString(line, "")
		if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f || unicode.Is(unicode.Cf, r) }) {
			t.Errorf("a terminal would obey %q", line)
		}
		if !code && (strings.ContainsAny(bare, "<[") || strings.HasPrefix(line, "# heading") || strings.HasPrefix(line, "```")) {
			t.Errorf("a sandbox writes Markdown: %q", line)
		}
		if strings.HasPrefix(line, "| AA-") || strings.HasPrefix(line, "| BB-") {
			if n := strings.Count(bare, "|"); n != 5 {
				t.Errorf("%d bars: %q", n, line)
			}
		}
	}
	if !utf8.ValidString(text) || !strings.Contains(text, "not run") || !strings.Contains(text, "nonconformant") {
		t.Error(text)
	}
}

func TestJUnit_counts(t *testing.T) {
	t.Parallel()
	var doc struct {
		Suites []struct {
			Name     string `xml:"name,attr"`
			Tests    int    `xml:"tests,attr"`
			Failures int    `xml:"failures,attr"`
			Errors   int    `xml:"errors,attr"`
			Skipped  int    `xml:"skipped,attr"`
			Cases    []struct {
				Name    string `xml:"name,attr"`
				Failure *struct {
					Text string `xml:",chardata"`
				} `xml:"failure"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal([]byte(written(t, sample().WriteJUnit)), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Suites) != 2 {
		t.Fatalf("%+v", doc)
	}
	strong, weak := doc.Suites[0], doc.Suites[1]
	if strong.Tests != 3 || strong.Failures != 0 || strong.Errors != 1 || strong.Skipped != 1 {
		t.Errorf("%+v", strong)
	}
	// Beside its cases what it left, and that it was stopped.
	if weak.Tests != 4 || weak.Failures != 2 || weak.Errors != 1 || weak.Skipped != 1 || len(weak.Cases) != 4 {
		t.Errorf("%+v", weak)
	}
	if f := weak.Cases[1].Failure; f == nil || !strings.HasPrefix(f.Text, "first\n") {
		t.Errorf("%+v", weak.Cases[1])
	}
}

func TestSARIF_kinds(t *testing.T) {
	t.Parallel()
	var doc struct {
		Version string
		Runs    []struct {
			Tool struct {
				Driver struct{ Rules []struct{ ID string } }
			}
			Results []struct {
				RuleID, Kind, Level string
				RuleIndex           int
			}
		}
	}
	if err := json.Unmarshal([]byte(written(t, sample().WriteSARIF)), &doc); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, run := range doc.Runs {
		for _, r := range run.Results {
			if rule := run.Tool.Driver.Rules[r.RuleIndex].ID; rule != r.RuleID {
				t.Errorf("%s has the rule %s", r.RuleID, rule)
			}
			got = append(got, r.RuleID+" "+r.Kind+" "+r.Level)
		}
	}
	want := []string{
		"AA-01 pass none", "AA-02 notApplicable none", "BB-01 open none",
		"AA-01 review none", "BB-01 fail error", "left-behind fail error",
	}
	if diff := cmp.Diff(want, got); diff != "" || doc.Version != "2.1.0" {
		t.Error(diff, doc.Version)
	}
}

// What became worse comes first, and what is gone proves less than before.
func TestDiff(t *testing.T) {
	t.Parallel()
	before, after := sample(), sample()
	after.Reports[0].Results[0].Verdict = conformance.Fail                                              // worse
	after.Reports[0].Results[2].Verdict = conformance.Pass                                              // better
	after.Reports[1].Results = after.Reports[1].Results[1:]                                             // AA-01, waived, is gone
	after.Reports[1].Results[0].Reason = "the same verdict for another reason is no change: " + hostile // nothing
	got := report.Diff(before, after)
	want := []report.Change{
		{Backend: "strong", Case: "AA-01", Title: "what AA-01 requires", Before: conformance.Pass, After: conformance.Fail, Worse: true},
		{Backend: "weak", Case: "AA-01", Title: "what AA-01 requires", Before: conformance.Waived, Worse: true},
		{Backend: "strong", Case: "BB-01", Title: "what BB-01 requires", Before: conformance.Inconclusive, After: conformance.Pass, Reason: "there is no python3"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if same := report.Diff(before, sample()); len(same) != 0 {
		t.Errorf("of the same: %v", same)
	}
	text := written(t, func(w io.Writer) error { return report.WriteChanges(w, got) })
	if strings.Count(text, "\n") != 3 || !strings.Contains(text, "waived -> not run") {
		t.Error(text)
	}
}
