package envd

import (
	"slices"
	"strconv"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	wireproc "github.com/glovebox-dev/glovebox/internal/envd/wire/process"
)

// exitOf makes an Exit from what the agent said: end where the server is ours,
// status where the stream carried it. When both are there they must agree.
func exitOf(end *gloveboxv1.End, status *wireproc.ProcessEvent_EndEvent) (backend.Exit, error) {
	switch {
	case end == nil && status == nil:
		return backend.Exit{}, protocolf("the stream ended without the command's end")
	case end == nil:
		return fromStatus(status)
	}
	exit, err := fromEnd(end)
	if err != nil || status == nil {
		return exit, err
	}
	seen, err := fromStatus(status)
	if err != nil {
		return backend.Exit{}, err
	}
	differ := exit.Reason == backend.ReasonExited && (seen.Reason != exit.Reason || seen.Code != exit.Code) ||
		exit.Reason == backend.ReasonSignaled && (seen.Reason != exit.Reason || seen.Signal != exit.Signal)
	if differ {
		return backend.Exit{}, protocolf("two ends of one command: %v and %v", exit, seen)
	}
	return exit, nil
}

func reasonOf(r gloveboxv1.End_Reason) (backend.Reason, bool) {
	switch r {
	case gloveboxv1.End_REASON_EXITED:
		return backend.ReasonExited, true
	case gloveboxv1.End_REASON_SIGNALED:
		return backend.ReasonSignaled, true
	case gloveboxv1.End_REASON_TIMEOUT:
		return backend.ReasonTimeout, true
	case gloveboxv1.End_REASON_CPU_LIMIT:
		return backend.ReasonCPULimit, true
	case gloveboxv1.End_REASON_MEMORY_LIMIT:
		return backend.ReasonMemoryLimit, true
	case gloveboxv1.End_REASON_OUTPUT_LIMIT:
		return backend.ReasonOutputLimit, true
	case gloveboxv1.End_REASON_CANCELED:
		return backend.ReasonCanceled, true
	case gloveboxv1.End_REASON_EXPIRED:
		return backend.ReasonExpired, true
	case gloveboxv1.End_REASON_UNSPECIFIED:
	}
	return "", false
}

const maxSignal = 64

func fromEnd(end *gloveboxv1.End) (backend.Exit, error) {
	reason, ok := reasonOf(end.GetReason())
	if !ok {
		return backend.Exit{}, protocolf("unknown reason %d", end.GetReason())
	}
	usage, err := usageOf(end.GetUsage())
	if err != nil {
		return backend.Exit{}, err
	}
	exit := backend.Exit{
		Reason: reason, Hits: hitsOf(end.GetHits()), Usage: usage,
		StdoutTruncated: end.GetStdoutTruncated(), StderrTruncated: end.GetStderrTruncated(),
		OutputHeld: end.GetPipesHeld(),
	}
	if s := end.GetKillScope(); s == "tree" || s == "session" {
		exit.KillScope = s
	}
	code, sig := end.GetCode(), end.GetSignal()
	if reason == backend.ReasonExited {
		if code < 0 || code > 255 || sig != 0 {
			return backend.Exit{}, protocolf("exit status %d with signal %d", code, sig)
		}
		exit.Code = int(code)
		return exit, nil
	}
	if sig == 0 && reason != backend.ReasonSignaled {
		sig = int32(backend.SIGKILL)
	}
	if sig < 1 || sig > maxSignal {
		return backend.Exit{}, protocolf("signal %d", sig)
	}
	exit.Signal, exit.Code = backend.Signal(sig), 128+int(sig)
	return exit, nil
}

// hitsOf keeps the hits that are known.
func hitsOf(names []string) []backend.Hit {
	known := []backend.Hit{
		backend.HitMemory, backend.HitPids, backend.HitDisk, backend.HitFiles, backend.HitOutput,
	}
	var hits []backend.Hit
	for _, h := range known {
		if slices.Contains(names, string(h)) {
			hits = append(hits, h)
		}
	}
	return hits
}

// fromStatus reads E2B's end event: the exit code, or the words of Go's
// os.ProcessState for a signal.
func fromStatus(s *wireproc.ProcessEvent_EndEvent) (backend.Exit, error) {
	if s.GetExited() {
		if s.GetExitCode() < 0 || s.GetExitCode() > 255 {
			return backend.Exit{}, protocolf("exit status %d", s.GetExitCode())
		}
		return backend.Exit{Reason: backend.ReasonExited, Code: int(s.GetExitCode())}, nil
	}
	words, ok := strings.CutPrefix(s.GetStatus(), "signal: ")
	words, _, _ = strings.Cut(words, " (core dumped)")
	sig := signalNumber(words)
	if !ok || sig == 0 {
		return backend.Exit{}, protocolf("status %q", s.GetStatus())
	}
	return backend.Exit{Reason: backend.ReasonSignaled, Signal: sig, Code: 128 + int(sig)}, nil
}

// signalNumber reads Go's words for a Linux signal, on any system; 0 if they
// are none.
func signalNumber(words string) backend.Signal {
	names := [...]string{
		1: "hangup", 2: "interrupt", 3: "quit", 4: "illegal instruction", 5: "trace/breakpoint trap",
		6: "aborted", 7: "bus error", 8: "floating point exception", 9: "killed", 10: "user defined signal 1",
		11: "segmentation fault", 12: "user defined signal 2", 13: "broken pipe", 14: "alarm clock",
		15: "terminated", 16: "stack fault", 17: "child exited", 18: "continued", 19: "stopped (signal)",
		20: "stopped", 21: "stopped (tty input)", 22: "stopped (tty output)", 23: "urgent I/O condition",
		24: "CPU time limit exceeded", 25: "file size limit exceeded", 26: "virtual timer expired",
		27: "profiling timer expired", 28: "window changed", 29: "I/O possible", 30: "power failure",
		31: "bad system call",
	}
	if i := slices.Index(names[1:], words); i >= 0 && words != "" {
		return backend.Signal(i + 1)
	}
	if n, ok := strings.CutPrefix(words, "signal "); ok {
		if i, err := strconv.Atoi(n); err == nil && i > 0 && i <= maxSignal {
			return backend.Signal(i)
		}
	}
	return 0
}
