package conformance

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func reattachCases() []Case {
	p := needs(shell(), feature(backend.FeatureProcesses))
	return []Case{
		{ID: "RA-01", Area: Reattach, Title: "running commands are listed with what they were started with", Needs: p, Run: listRunning},
		{ID: "RA-02", Area: Reattach, Title: "who attaches gets what came before and what comes", Needs: append(p, feature(backend.FeatureInput)), Run: attachReplay},
		{ID: "RA-03", Area: Reattach, Title: "who attaches without replay gets what comes", Needs: append(p, feature(backend.FeatureInput)), Run: attachWithoutReplay},
		{ID: "RA-04", Area: Reattach, Title: "an ended command keeps its exit and its output", Needs: p, Run: attachEnded},
		{ID: "RA-05", Area: Reattach, Title: "who attached can signal", Needs: p, Run: attachedSignals},
		{ID: "RA-06", Area: Reattach, Title: "a replay is bounded, and is the end of the output", Needs: p, Run: replayBounded},
		{ID: "RA-07", Area: Reattach, Title: "a second executor attaches to a kept sandbox's command", Needs: append(p, feature(backend.FeatureFind)), Run: attachAcross},
		{ID: "RA-08", Area: Reattach, Title: "a slow listener does not hold up another", Needs: p, Run: slowListener},
	}
}

func (t *T) attach(ctx context.Context, sb backend.Sandbox, id string, replay bool) (backend.Process, *tape, *tape) {
	var out, errs tape
	q, err := find[backend.ProcessFinder](t, "processes", sb).Attach(ctx, id, backend.AttachOptions{Output: backend.Output{Stdout: &out, Stderr: &errs}, Replay: replay})
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	return q, &out, &errs
}

func listRunning(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.good(t.sh(ctx, sb, "mkdir d"))
	p, _, _ := t.start(ctx, sb, backend.Command{
		Args: []string{"sh", "-c", "echo ready; sleep 1000"}, Tag: "mine", Env: map[string]string{"K": "v"}, Dir: "d", Timeout: backend.UntilSandboxEnds,
	})
	all, err := find[backend.ProcessFinder](t, "processes", sb).Processes(ctx)
	if err != nil {
		t.Fatalf("%v", err)
	}
	i := slices.IndexFunc(all, func(i backend.ProcessInfo) bool { return i.ID == p.ID() })
	if i < 0 {
		t.Fatalf("%s is not in %+v", p.ID(), all)
	}
	info := all[i]
	if info.Tag != "mine" || info.PID <= 1 || info.Exit != nil || info.Env["K"] != "v" || time.Since(info.Started).Abs() > time.Minute ||
		!slices.Equal(info.Args, []string{"sh", "-c", "echo ready; sleep 1000"}) || info.User != backend.DefaultUser || info.Dir == "" {
		t.Errorf("%+v", info)
	}
	t.signal(ctx, p, backend.SIGKILL)
}

func attachReplay(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	p, in, out := t.talk(ctx, sb, "sh", "-c", "echo before; read line; echo after $line; echo oops >&2; exit 4")
	t.until(ctx, "it runs", func() bool { return out.String() == "before\n" })
	q, again, errs := t.attach(ctx, sb, p.ID(), true)
	if q.ID() != p.ID() {
		t.Errorf("attached to %s", q.ID())
	}
	t.until(ctx, "the replay is there", func() bool { return again.String() == "before\n" })
	t.types(ctx, in, "it\n")
	for _, w := range []backend.Process{q, p} {
		t.exited("it", t.wait(ctx, w), "exited(4)")
	}
	if want := "before\nafter it\n"; again.String() != want || out.String() != want || errs.String() != "oops\n" {
		t.Errorf("%q, %q, %q", out.String(), again.String(), errs.String())
	}
}

func attachWithoutReplay(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	p, _, out := t.talk(ctx, sb, "sh", "-c", "echo before; read line; echo after $line")
	t.until(ctx, "it runs", func() bool { return out.String() == "before\n" })
	q, again, _ := t.attach(ctx, sb, p.ID(), false)
	in, ok := backend.As[backend.Inputter](q)
	if !ok {
		t.Fatalf("who attached cannot write input")
	}
	t.types(ctx, in, "it\n")
	t.exited("it", t.wait(ctx, q), "exited(0)")
	if again.String() != "after it\n" {
		t.Errorf("%q", again.String())
	}
}

func attachEnded(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	p, _, _ := t.start(ctx, sb, backend.Command{Args: []string{"sh", "-c", "echo out; echo err >&2; exit 5"}})
	t.wait(ctx, p)
	q, out, errs := t.attach(ctx, sb, p.ID(), true)
	t.exited("it", t.wait(ctx, q), "exited(5)")
	if out.String() != "out\n" || errs.String() != "err\n" {
		t.Errorf("%q %q", out.String(), errs.String())
	}
	all, err := find[backend.ProcessFinder](t, "processes", sb).Processes(ctx)
	i := slices.IndexFunc(all, func(i backend.ProcessInfo) bool { return i.ID == p.ID() })
	if err != nil || i < 0 || all[i].Exit == nil || all[i].Exit.Code != 5 {
		t.Errorf("%+v, %v", all, err)
	}
}

func attachedSignals(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	p, _ := t.ready(ctx, sb, "trap 'exit 6' TERM; "+loop)
	q, _, _ := t.attach(ctx, sb, p.ID(), false)
	t.signal(ctx, q, backend.SIGTERM)
	t.exited("it", t.wait(ctx, q), "exited(6)")
	t.exited("its starter", t.wait(ctx, p), "exited(6)")
}

func replayBounded(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	p, _, _ := t.start(ctx, sb, backend.Command{Args: []string{"sh", "-c", "head -c 50000000 /dev/zero; echo the end"}})
	t.wait(ctx, p)
	q, out, _ := t.attach(ctx, sb, p.ID(), true)
	t.exited("it", t.wait(ctx, q), "exited(0)")
	if got := out.String(); !strings.HasSuffix(got, "the end\n") || len(got) > 20<<20 {
		t.Errorf("%d bytes, ending in %.20q", len(got), got[max(len(got)-20, 0):])
	}
}

func attachAcross(ctx context.Context, t *T) {
	var id string
	box := t.keep(ctx, backend.Spec{}, func(sb backend.Sandbox) {
		p, out := t.ready(ctx, sb, "echo early; trap 'echo late; exit 7' TERM; "+loop)
		if !strings.HasPrefix(out.String(), "early\n") {
			t.Errorf("%q", out.String())
		}
		id = p.ID()
	})
	sb := t.findAgain(ctx, box)
	q, out, _ := t.attach(ctx, sb, id, true)
	t.until(ctx, "the replay is there", func() bool { return out.String() == "early\nready\n" })
	t.signal(ctx, q, backend.SIGTERM)
	t.exited("it", t.wait(ctx, q), "exited(7)")
	if out.String() != "early\nready\nlate\n" {
		t.Errorf("%q", out.String())
	}
}

func slowListener(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	p, _ := t.ready(ctx, sb, "echo ready; until test -e go; do sleep 0.05; done; head -c 200000 /dev/zero")
	g := newGate()
	defer close(g.open)
	_, err := find[backend.ProcessFinder](t, "processes", sb).Attach(ctx, p.ID(), backend.AttachOptions{Output: backend.Output{Stdout: g}})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.write(ctx, sb, "go", "")
	t.exited("it", t.wait(ctx, p), "exited(0)")
}

func portCases() []Case {
	d := needs(python(), feature(backend.FeatureDial))
	return []Case{
		{ID: "PO-01", Area: Ports, Title: "a port that nobody listens on is unavailable", Needs: d, Run: dialNobody},
		{ID: "PO-02", Area: Ports, Title: "a connection carries bytes both ways, and closes each way", Needs: d, Run: dialEcho},
		{ID: "PO-03", Area: Ports, Title: "only loopback can be dialled", Needs: d, Run: dialInvalid},
		{ID: "PO-04", Area: Ports, Title: "ten connections at once", Needs: d, Run: dialMany},
		{ID: "PO-05", Area: Ports, Title: "a connection ends with its sandbox", Needs: d, Run: dialDestroyed},
	}
}
