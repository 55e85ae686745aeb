package conformance

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

// Area is a part of the contract.
type Area string

// The areas.
const (
	Meta        Area = "meta"        // what is claimed, and that it is there or refused
	Errors      Area = "errors"      // what is wrong is named
	Lifecycle   Area = "lifecycle"   // from create to destroy, expiry, kept sandboxes
	Receipts    Area = "receipts"    // what was granted
	Specs       Area = "specs"       // strict, advisory, templates, mounts
	Start       Area = "startup"     // what a sandbox starts with, and its commands begin with
	Commands    Area = "commands"    // exit codes, output, environment, users
	Stdin       Area = "stdin"       // standard input
	PTY         Area = "pty"         // terminals
	Signals     Area = "signals"     // signals
	Ends        Area = "ends"        // why commands end, and what ends with them
	Files       Area = "files"       // the file system
	Watch       Area = "watch"       // changes of files
	Limits      Area = "limits"      // limits, hits and usage
	Concurrency Area = "concurrency" // many commands and many sandboxes
	Reattach    Area = "reattach"    // commands after their starter
	Ports       Area = "ports"       // dialling what listens inside
	Pause       Area = "pause"       // pausing and resuming
	Snapshots   Area = "snapshots"   // saving and starting from what was saved
	Network     Area = "network"     // no network
	Leaks       Area = "leaks"       // nothing is left behind
)

// Level is how much a case asks of a backend.
type Level string

// The levels.
const (
	Core     Level = "core"     // of every backend
	Extended Level = "extended" // of one that claims what it needs
)

// Levels are all levels, least first.
func Levels() []Level { return []Level{Core, Extended} }

// Case is one requirement.
type Case struct {
	ID    string // "LC-01": stable, never used again for another requirement
	Area  Area
	Title string // the requirement in one sentence
	Needs []Need
	// Alone cases measure the host or this process, so no other runs beside them.
	Alone bool
	// Timeout bounds the case; 0 is Options.Timeout.
	Timeout time.Duration
	Run     func(ctx context.Context, t *T)
}

// Level is Core unless the case needs something that is the backend's to claim.
func (c Case) Level() Level {
	for _, n := range c.Needs {
		if n.Kind != NeedProgram && n.Kind != NeedWitness {
			return Extended
		}
	}
	return Core
}

// Need is something without which a case cannot be: what a backend claims, or
// a precondition of the suite itself.
type Need struct {
	Kind NeedKind `json:"kind"`
	Name string   `json:"name"`
}

// NeedKind says what a need is about.
type NeedKind string

// The kinds of needs. The last two are not the backend's to claim: without
// them a case is inconclusive.
const (
	NeedFeature  NeedKind = "feature"  // a feature is claimed
	NeedEnforced NeedKind = "enforced" // a control is claimed as enforced
	NeedClaimed  NeedKind = "claimed"  // a control is claimed, if only as best effort
	NeedNetwork  NeedKind = "network"  // a network mode can be had
	NeedLevel    NeedKind = "level"    // sandboxes reach a level of isolation
	NeedProgram  NeedKind = "program"  // a program is in the sandbox
	NeedWitness  NeedKind = "witness"  // the caller gave one
)

// String is the need as reports show it.
func (n Need) String() string { return strings.TrimSpace(string(n.Kind) + " " + n.Name) }

func feature(f backend.Feature) Need     { return Need{NeedFeature, string(f)} }
func enforced(c backend.Control) Need    { return Need{NeedEnforced, string(c)} }
func claimed(c backend.Control) Need     { return Need{NeedClaimed, string(c)} }
func network(m backend.NetworkMode) Need { return Need{NeedNetwork, string(m)} }
func shell() Need                        { return Need{NeedProgram, "sh"} }
func python() Need                       { return Need{NeedProgram, "python3"} }
func watched() Need                      { return Need{NeedWitness, ""} }

func needs(n ...Need) []Need { return n }

// unmet says why a claim does not meet n; "" when it does, or when n is no
// matter of claims.
func (n Need) unmet(caps backend.Capabilities) string {
	switch n.Kind {
	case NeedFeature:
		if !caps.Has(backend.Feature(n.Name)) {
			return "feature " + n.Name + " is not claimed"
		}
	case NeedEnforced, NeedClaimed:
		cl := caps.Claim(backend.Control(n.Name))
		if cl.Enforcement != backend.Enforced && (n.Kind == NeedEnforced || cl.Enforcement != backend.BestEffort) {
			return strings.TrimSuffix(fmt.Sprintf("%s is %s: %s", n.Name, cl.Enforcement, cl.Note), ": ")
		}
	case NeedNetwork:
		if !slices.Contains(caps.Networks, backend.NetworkMode(n.Name)) {
			return "network mode " + n.Name + " is not claimed"
		}
	case NeedLevel:
		if l, err := backend.ParseIsolation(n.Name); err != nil || caps.Isolation < l {
			return fmt.Sprintf("isolation %s is claimed, below %s", caps.Isolation, n.Name)
		}
	case NeedProgram, NeedWitness:
	}
	return ""
}

// Cases are all cases, in the order in which reports list them.
func Cases() []Case {
	return slices.Concat(
		metaCases(), featureCases(), controlCases(), errorCases(), lifecycleCases(), keptCases(), receiptCases(), specCases(), startupCases(),
		commandCases(), outputCases(), stdinCases(), terminalCases(), signalCases(), endCases(), fileCases(), fileErrorCases(),
		fileExtraCases(), watchCases(), limitCases(), usageCases(), concurrencyCases(), reattachCases(), portCases(),
		pauseCases(), snapshotCases(), networkCases(), fullNetworkCases(), leakCases(),
	)
}

// Matching is a filter of cases whose "area ID title" matches a regular
// expression, whatever the case of letters.
func Matching(pattern string) (func(Case) bool, error) {
	re, err := regexp.Compile("(?i)" + pattern)
	if err != nil {
		return nil, &backend.Error{Op: "conformance", Kind: backend.ErrInvalid, Field: "filter", Err: err}
	}
	return func(c Case) bool { return re.MatchString(string(c.Area) + " " + c.ID + " " + c.Title) }, nil
}

// Within is a filter of the cases of some areas.
func Within(areas ...Area) func(Case) bool {
	return func(c Case) bool { return slices.Contains(areas, c.Area) }
}
