package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/config"
	"github.com/glovebox-dev/glovebox/internal/term"
	"github.com/glovebox-dev/glovebox/policy/router"
)

// conclude says on standard error what contained the program and what is worth
// knowing about its end.
func (a *App) conclude(f *runFlags, out *outcome) {
	for _, file := range out.files {
		if file.Error != "" {
			a.complain(fmt.Errorf("--out %s: %s", file.Guest, file.Error))
		}
	}
	for _, w := range out.warnings {
		if !f.quiet || out.exit != nil && out.exit.Code == 127 {
			a.warn(w)
		}
	}
	if f.quiet {
		return
	}
	if out.exit != nil {
		for _, w := range out.exit.Warnings {
			a.warn(w)
		}
	}
	if out.receipt != nil {
		lines := receiptLines(out.receipt, out.exit, out.timeout, f.verbose)
		fmt.Fprint(a.Stderr, strings.Join(lines, "\n")+"\n")
	}
}

// everyday are the limits that a short receipt names though nobody asked.
func everyday() []backend.Control {
	return []backend.Control{backend.ControlMemory, backend.ControlCPU, backend.ControlPids, backend.ControlDisk}
}

// receiptLines is a receipt for people. limit is the command's wall time, 0
// where there is no command.
func receiptLines(r *backend.Receipt, exit *backend.Exit, limit time.Duration, verbose bool) []string {
	how := "measured"
	if !r.Measured {
		how = "declared"
	}
	if r.Privileges != "" {
		how += ", " + r.Privileges
	}
	head := fmt.Sprintf("on %s, isolation %s (%s)", r.Backend, r.Achieved, how)
	if exit != nil {
		head = ending(*exit) + " " + head
	}
	lines := []string{"receipt: " + head}
	var limits, weak []string
	for _, g := range r.Limits {
		switch {
		case g.Default && !slices.Contains(everyday(), g.Control):
		case g.Enforcement != backend.Enforced:
			weak = append(weak, fmt.Sprintf("%s %s (%s)", g.Control, g.Value, strings.ReplaceAll(string(g.Enforcement), "_", " ")))
		default:
			limits = append(limits, strings.TrimSpace(string(g.Control)+" "+g.Value))
		}
	}
	if limit != 0 {
		limits = append(limits, "time "+wallText(limit))
	}
	lines = append(lines, "  limits: "+list(limits))
	if len(weak) > 0 {
		lines = append(lines, "  weaker: "+list(weak))
	}
	lines = append(lines, "  walls:  network "+string(r.Network)+"; "+list(held(r.Controls)))
	if exit != nil {
		if used := usage(exit.Usage); used != "" {
			lines = append(lines, "  used:   "+used)
		}
	}
	for _, c := range r.Passed {
		lines = append(lines, fmt.Sprintf("  passed over %s: %s", c.Backend, c.Reason))
	}
	for _, w := range r.Warnings {
		lines = append(lines, "  warning: "+w)
	}
	if verbose {
		lines = append(lines, everything(r)...)
	}
	for i, l := range lines {
		lines[i] = term.String(l)
	}
	return lines
}

// wallText is a command's wall time.
func wallText(d time.Duration) string {
	if d == backend.UntilSandboxEnds {
		return "until the sandbox ends"
	}
	return d.String()
}

// ending is how the program ended, with the limits that it hit.
func ending(e backend.Exit) string {
	s := e.String()
	if len(e.Hits) > 0 {
		hits := make([]string, len(e.Hits))
		for i, h := range e.Hits {
			hits[i] = string(h)
		}
		s += ", hit the limit on " + strings.Join(hits, ", ")
	}
	if e.Usage.Wall > 0 {
		s += " after " + rounded(e.Usage.Wall).String()
	}
	return s
}

func list(items []string) string {
	if len(items) == 0 {
		return "none"
	}
	return strings.Join(items, ", ")
}

// held names the controls that are enforced.
func held(claims map[backend.Control]backend.Claim) []string {
	var out []string
	for _, c := range slices.Sorted(maps.Keys(claims)) {
		if claims[c].Enforcement == backend.Enforced {
			out = append(out, string(c))
		}
	}
	return out
}

func usage(u backend.Usage) string {
	var out []string
	if u.PeakMemory > 0 {
		out = append(out, bytesText(u.PeakMemory)+" memory at most")
	}
	if u.CPU > 0 {
		out = append(out, rounded(u.CPU).String()+" CPU")
	}
	if u.PeakProcesses > 0 {
		out = append(out, plural(u.PeakProcesses, "process", "processes")+" at most")
	}
	if u.Disk > 0 {
		out = append(out, bytesText(u.Disk)+" disk")
	}
	return strings.Join(out, ", ")
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// bytesText is a number of bytes with one decimal.
func bytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") + units[i]
}

// everything is each limit and control with what enforces it.
func everything(r *backend.Receipt) []string {
	var out []string
	for _, g := range r.Limits {
		by := "asked"
		if g.Default {
			by = "default"
		}
		out = append(out, fmt.Sprintf("  %-14s %s, %s, %s%s", g.Control, g.Value, by, g.Enforcement, mechanism(g.Mechanism, g.Note)))
	}
	for _, c := range slices.Sorted(maps.Keys(r.Controls)) {
		cl := r.Controls[c]
		out = append(out, fmt.Sprintf("  %-14s %s%s", c, cl.Enforcement, mechanism(cl.Mechanism, cl.Note)))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Timings)) {
		out = append(out, fmt.Sprintf("  %-14s %s", name, rounded(r.Timings[name])))
	}
	return out
}

// mechanism is what enforces a control, and the note on it.
func mechanism(by, note string) string {
	switch {
	case by == "" && note == "":
		return ""
	case by == "":
		return ": " + note
	case note == "":
		return " by " + by
	default:
		return " by " + by + ": " + note
	}
}

func commandView(r *request) commandExplained {
	c := commandExplained{
		Args: r.command.Args, Env: slices.Sorted(maps.Keys(r.command.Env)), Timeout: wallText(r.command.Timeout),
	}
	if r.program != nil {
		c.Args = r.program.Args(r.program.Name, r.args...)
		c.Language, c.Program = r.program.Language.Name, r.program.Name
	}
	return c
}

// printDecision is --explain for people.
func (a *App) printDecision(d router.Decision, req *request) {
	view := commandView(req)
	lines := []string{fmt.Sprintf("command: %s", strings.Join(view.Args, " "))}
	chosen := "none"
	if d.Backend != "" {
		chosen = d.Backend
	}
	lines = append(lines, fmt.Sprintf("backend: %s (isolation %s or more is asked for)", chosen, d.Spec.MinIsolation))
	for _, c := range d.Candidates {
		lines = append(lines, fmt.Sprintf("  %s (%s, isolation %s): %s", c.Backend, c.Driver, c.Isolation, c.Reason))
		lines = append(lines, limitLines(c, d.Spec.Limits, req)...)
	}
	for _, w := range d.Warnings {
		lines = append(lines, "warning: "+w)
	}
	for _, l := range lines {
		fmt.Fprintln(a.Stdout, term.Lines(l))
	}
}

func limitLines(c router.Verdict, l backend.Limits, req *request) []string {
	if !c.Chosen {
		return nil
	}
	l = l.WithDefaults()
	claim := func(control backend.Control, value string) string {
		cl := backend.Capabilities{Claims: c.Claims}.Claim(control)
		return fmt.Sprintf("    %-10s %-8s %s%s", control, value, cl.Enforcement, mechanism(cl.Mechanism, cl.Note))
	}
	return []string{
		claim(backend.ControlMemory, config.Size(l.Memory).String()),
		claim(backend.ControlCPU, fmt.Sprint(l.CPUs)),
		claim(backend.ControlPids, fmt.Sprint(l.Pids)),
		claim(backend.ControlDisk, config.Size(l.Disk).String()),
		claim(backend.ControlWallTime, wallText(req.command.Timeout)),
		claim(backend.ControlNetworkOff, ""),
	}
}
