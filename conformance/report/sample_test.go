package report_test

import (
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/conformance"
	"github.com/glovebox-dev/glovebox/conformance/report"
)

// hostile is what a sandbox's output would like to be in a report.
const hostile = "</pre></script><script>document.title='owned'</script>\"><img src=x onerror=document.title='owned'>" +
	"]]> | cell | [x](javascript:alert(1)) `code` \x1b[31mred\x07 \u202e\x9b \xff\n```\n# heading\n"

// sample is a document of two backends in which every verdict and every place
// for a stranger's words is used.
func sample() *report.Document {
	result := func(id string, area conformance.Area, v conformance.Verdict, reason string) conformance.Result {
		return conformance.Result{ID: id, Area: area, Level: conformance.Core, Title: "what " + id + " requires", Verdict: v, Reason: reason, Took: time.Second}
	}
	caps := func(level backend.Isolation) backend.Capabilities {
		return backend.Capabilities{Driver: "some", Isolation: level, Claims: map[backend.Control]backend.Claim{
			backend.ControlMemory: {Enforcement: backend.Enforced, Mechanism: "a group"},
			backend.ControlPids:   {Enforcement: backend.BestEffort, Note: "counted | every 50 ms"},
		}}
	}
	began := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	strong := conformance.Report{
		Schema: conformance.SchemaVersion, Target: "strong", Started: began, Took: 3 * time.Second, Capabilities: caps(backend.IsolationKernel), Watched: true,
		Results: []conformance.Result{
			result("AA-01", conformance.Files, conformance.Pass, ""),
			result("AA-02", conformance.Files, conformance.Unsupported, "it is not claimed"),
			result("BB-01", conformance.Limits, conformance.Inconclusive, "there is no python3"),
		},
		Counts: map[conformance.Verdict]int{conformance.Pass: 1, conformance.Unsupported: 1, conformance.Inconclusive: 1},
	}
	bad := result("BB-01", conformance.Limits, conformance.Fail, "it said "+hostile)
	bad.Log = []string{"first", hostile}
	weak := conformance.Report{
		Schema: conformance.SchemaVersion, Target: "weak", Started: began, Took: time.Second, Capabilities: caps(backend.IsolationProcess),
		Results: []conformance.Result{result("AA-01", conformance.Files, conformance.Waived, "known"), bad},
		Counts:  map[conformance.Verdict]int{conformance.Waived: 1, conformance.Fail: 1}, Left: []string{"a process " + hostile}, Stopped: "interrupted",
	}
	return &report.Document{
		Schema: conformance.SchemaVersion, Suite: report.Suite{Version: "1.2.3", Commit: "0123456789abcdef", Go: "go1"}, Started: began, Took: 4 * time.Second,
		Host: report.Host{OS: "linux", Arch: "amd64", Kernel: "6.1 " + hostile, CPUs: 2, Memory: 1 << 30}, Config: map[string]any{"limits": map[string]any{"memory": "1GiB"}},
		ConfigHash: "abc", Reports: []report.Report{
			{Report: strong, Privilege: "root", Facts: []report.Fact{{Name: "cgroup v2", Value: hostile, OK: true}}},
			{Report: weak, Warnings: []string{hostile}},
		},
	}
}
