package report

import (
	"encoding/json"
	"io"

	"github.com/glovebox-dev/glovebox/conformance"
)

// The part of SARIF 2.1.0 (OASIS, https://docs.oasis-open.org/sarif/sarif/v2.1.0)
// that is written.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool        sarifTool         `json:"tool"`
		Automation  sarifAutomation   `json:"automationDetails"`
		Invocations []sarifInvocation `json:"invocations"`
		Results     []sarifResult     `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifAutomation struct {
		ID string `json:"id"`
	}
	sarifInvocation struct {
		Successful bool   `json:"executionSuccessful"`
		Start      string `json:"startTimeUtc"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version,omitempty"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID   string    `json:"id"`
		Text sarifText `json:"shortDescription"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		RuleIndex int             `json:"ruleIndex"`
		Kind      string          `json:"kind"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifLocation struct {
		Logical []sarifLogical `json:"logicalLocations"`
	}
	sarifLogical struct {
		Name      string `json:"name"`
		Qualified string `json:"fullyQualifiedName"`
	}
)

const sarifSchema = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

// WriteSARIF writes a run for each backend. A failure is an error; an
// unsupported case is not applicable, an inconclusive one open.
func (d *Document) WriteSARIF(w io.Writer) error {
	log := sarifLog{Schema: sarifSchema, Version: "2.1.0", Runs: []sarifRun{}}
	for _, r := range d.Reports {
		run := sarifRun{
			Tool:        sarifTool{sarifDriver{Name: "glovebox conformance", Version: d.Suite.Version, Rules: []sarifRule{}}},
			Automation:  sarifAutomation{ID: "glovebox-conformance/" + r.Target},
			Invocations: []sarifInvocation{{Successful: r.Stopped == "", Start: r.Started.UTC().Format("2006-01-02T15:04:05Z")}},
			Results:     []sarifResult{},
		}
		rules := map[string]int{}
		add := func(id, title, kind, level, message string) {
			if _, ok := rules[id]; !ok {
				rules[id] = len(run.Tool.Driver.Rules)
				run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{ID: id, Text: sarifText{title}})
			}
			run.Results = append(run.Results, sarifResult{
				RuleID: id, RuleIndex: rules[id], Kind: kind, Level: level, Message: sarifText{printable(message)},
				Locations: []sarifLocation{{[]sarifLogical{{Name: r.Target, Qualified: r.Target + "/" + id}}}},
			})
		}
		for _, res := range r.Results {
			kind, level := sarifKind(res.Verdict)
			message := res.Reason
			if message == "" {
				message = res.Title
			}
			add(res.ID, res.Title, kind, level, message)
		}
		for _, l := range r.Left {
			add("left-behind", "Nothing is left behind", "fail", "error", l)
		}
		log.Runs = append(log.Runs, run)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(log)
}

// sarifKind is a verdict as SARIF has it: its level is "none" unless it fails.
func sarifKind(v conformance.Verdict) (kind, level string) {
	switch v {
	case conformance.Pass:
		return "pass", "none"
	case conformance.Unsupported:
		return "notApplicable", "none"
	case conformance.Waived:
		return "review", "none"
	case conformance.Fail:
		return "fail", "error"
	case conformance.Inconclusive:
	}
	return "open", "none"
}
