package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/backend/backendtest"
	"github.com/glovebox-dev/glovebox/conformance"
)

func TestCases_areWellFormed(t *testing.T) {
	t.Parallel()
	cases := conformance.Cases()
	if len(cases) < 100 {
		t.Errorf("only %d cases", len(cases))
	}
	ids, titles := map[string]bool{}, map[string]bool{}
	form := regexp.MustCompile(`^[A-Z]{2}-[0-9]{2}$`)
	for _, c := range cases {
		if !form.MatchString(c.ID) || ids[c.ID] || titles[c.Title] || c.Title == "" || c.Area == "" || c.Run == nil {
			t.Errorf("%q: %q", c.ID, c.Title)
		}
		ids[c.ID], titles[c.Title] = true, true
		for _, driver := range []string{"subprocess", "docker", "gvisor", "runsc", "e2b"} {
			if strings.Contains(strings.ToLower(c.Title), driver) {
				t.Errorf("%s knows a driver", c.ID)
			}
		}
	}
	again := conformance.Cases()
	for i := range cases {
		if again[i].ID != cases[i].ID {
			t.Fatalf("the order is not the same: %s, %s", cases[i].ID, again[i].ID)
		}
	}
}

func verdictOf(t *testing.T, report conformance.Report, id string) conformance.Result {
	t.Helper()
	i := slices.IndexFunc(report.Results, func(r conformance.Result) bool { return r.ID == id })
	if i < 0 {
		t.Fatalf("no %s in %+v", id, report.Results)
	}
	return report.Results[i]
}

func runCases(t *testing.T, opts conformance.Options, cases ...conformance.Case) conformance.Report {
	t.Helper()
	fake := newFake(backendtest.Without(backend.FeatureExtend))
	opts.Cases = cases
	report, err := conformance.Run(t.Context(), fakesTarget(fake, nil), opts)
	if err != nil {
		t.Fatal(err)
	}
	if left := fake.Leaked(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	return report
}

func TestRun_verdicts(t *testing.T) {
	t.Parallel()
	cleaned := 0
	cases := []conformance.Case{
		{ID: "passes", Run: func(ctx context.Context, t *conformance.T) { t.Create(ctx, backend.Spec{}) }},
		{ID: "fails", Run: func(_ context.Context, t *conformance.T) {
			t.Cleanup(func(ctx context.Context) {
				if ctx.Err() == nil {
					cleaned++
				}
			})
			t.Errorf("first")
			t.Fatalf("second")
			t.Errorf("never")
		}},
		{ID: "panics", Run: func(context.Context, *conformance.T) { panic("oh") }},
		{ID: "inconclusive", Run: func(_ context.Context, t *conformance.T) { t.Inconclusivef("the control says no") }},
		{ID: "unsupported", Needs: []conformance.Need{{Kind: conformance.NeedFeature, Name: "extend"}}, Run: nil},
		{ID: "no program", Needs: []conformance.Need{{Kind: conformance.NeedProgram, Name: "sh"}}, Run: nil},
		{ID: "no witness", Needs: []conformance.Need{{Kind: conformance.NeedWitness}}, Run: nil},
		{ID: "waived", Run: func(_ context.Context, t *conformance.T) { t.Errorf("as ever") }},
		{ID: "stale", Run: func(context.Context, *conformance.T) {}},
	}
	report := runCases(t, conformance.Options{Waivers: map[string]string{"waived": "known", "stale": "known"}}, cases...)
	for id, want := range map[string]conformance.Verdict{
		"passes": conformance.Pass, "fails": conformance.Fail, "panics": conformance.Fail, "inconclusive": conformance.Inconclusive,
		"unsupported": conformance.Unsupported, "no program": conformance.Inconclusive, "no witness": conformance.Inconclusive,
		"waived": conformance.Waived, "stale": conformance.Fail,
	} {
		if got := verdictOf(t, report, id); got.Verdict != want {
			t.Errorf("%s: %+v, want %s", id, got, want)
		}
	}
	if got := verdictOf(t, report, "fails"); got.Reason != "first" || len(got.Log) != 2 || cleaned != 1 {
		t.Errorf("%+v, cleaned %d", got, cleaned)
	}
	if report.OK() || report.Conclusive() || report.Counts[conformance.Fail] != 3 || report.Schema != conformance.SchemaVersion {
		t.Errorf("%+v", report)
	}
	for i, res := range report.Results {
		if res.ID != cases[i].ID {
			t.Errorf("%d is %s", i, res.ID)
		}
	}
}

func TestRun_goesOnAfterAHungCase(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	report := runCases(t, conformance.Options{Timeout: 50 * time.Millisecond},
		conformance.Case{ID: "hangs", Run: func(ctx context.Context, t *conformance.T) {
			t.Create(ctx, backend.Spec{})
			<-release
			t.Errorf("nobody listens")
		}},
		conformance.Case{ID: "slow", Run: func(ctx context.Context, _ *conformance.T) { <-ctx.Done() }},
		conformance.Case{ID: "next", Run: func(context.Context, *conformance.T) {}},
	)
	if got := verdictOf(t, report, "hangs"); got.Verdict != conformance.Fail || !strings.Contains(got.Reason, "hung") {
		t.Errorf("%+v", got)
	}
	if got := verdictOf(t, report, "slow"); got.Verdict != conformance.Fail {
		t.Errorf("%+v", got)
	}
	if got := verdictOf(t, report, "next"); got.Verdict != conformance.Pass {
		t.Errorf("%+v", got)
	}
}

func TestRun_stopsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	fake := newFake()
	report, err := conformance.Run(ctx, fakesTarget(fake, nil), conformance.Options{Cases: []conformance.Case{
		{ID: "one", Run: func(ctx context.Context, t *conformance.T) { t.Create(ctx, backend.Spec{}); cancel() }},
		{ID: "two", Run: func(context.Context, *conformance.T) {}},
	}})
	if err != nil || report.Stopped == "" || report.OK() || len(report.Results) != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	if left := fake.Leaked(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestRun_parallelAndAlone(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	running, most := 0, map[bool]int{}
	var cases []conformance.Case
	for i := range 12 {
		alone := i%4 == 0
		cases = append(cases, conformance.Case{ID: fmt.Sprint(i), Alone: alone, Run: func(ctx context.Context, _ *conformance.T) {
			mu.Lock()
			running++
			most[alone] = max(most[alone], running)
			mu.Unlock()
			select {
			case <-ctx.Done():
			case <-time.After(30 * time.Millisecond):
			}
			mu.Lock()
			running--
			mu.Unlock()
		}})
	}
	report := runCases(t, conformance.Options{Parallel: 3}, cases...)
	if most[true] != 1 || most[false] < 2 || most[false] > 3 || len(report.Results) != 12 {
		t.Errorf("at once: %v, %d results", most, len(report.Results))
	}
}

func TestRun_openFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("no")
	_, err := conformance.Run(t.Context(), conformance.Target{
		Open: func(context.Context) (backend.Executor, error) { return nil, broken },
	}, conformance.Options{})
	if !errors.Is(err, broken) {
		t.Error(err)
	}
	if _, err := conformance.Run(t.Context(), conformance.Target{}, conformance.Options{}); backend.KindOf(err) != backend.ErrInvalid {
		t.Error(err)
	}
}

func TestReport_formats(t *testing.T) {
	t.Parallel()
	report := runCases(t, conformance.Options{},
		conformance.Case{ID: "AA-01", Area: conformance.Meta, Title: "passes", Run: func(context.Context, *conformance.T) {}},
		conformance.Case{ID: "AA-02", Area: conformance.Meta, Title: "fails", Run: func(_ context.Context, t *conformance.T) { t.Errorf("why\nmore") }},
	)
	var table bytes.Buffer
	if err := report.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"pass  AA-01  meta  passes\n", "fail AA-02: why\nmore\n", "1 passed, 1 failed"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("%q is not in\n%s", want, table.String())
		}
	}
	data, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	var back conformance.Report
	if err := json.Unmarshal(data, &back); err != nil || back.Results[1].Verdict != conformance.Fail || back.Schema != 1 {
		t.Errorf("%s: %v", data, err)
	}
}

func TestMatching(t *testing.T) {
	t.Parallel()
	match, err := conformance.Matching("^files|lc-0[12]")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		c    conformance.Case
		want bool
	}{
		{conformance.Case{ID: "FS-01", Area: conformance.Files}, true},
		{conformance.Case{ID: "LC-02", Area: conformance.Lifecycle}, true},
		{conformance.Case{ID: "LC-03", Area: conformance.Lifecycle}, false},
	} {
		if match(tt.c) != tt.want {
			t.Errorf("%s: %v", tt.c.ID, !tt.want)
		}
	}
	if _, err := conformance.Matching("("); backend.KindOf(err) != backend.ErrInvalid {
		t.Error(err)
	}
}
