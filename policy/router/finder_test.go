package router_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/policy/router"
)

// lost is a finder that cannot answer.
type lost struct {
	findable
	finds int
}

func (l *lost) Find(context.Context, string) (backend.Sandbox, error) {
	l.finds++
	return nil, &backend.Error{Op: "find", Kind: backend.ErrUnavailable, Err: errors.New("no engine")}
}

func (*lost) Sandboxes(context.Context) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) { yield(backend.Info{}, errors.New("no engine")) }
}

func TestRouter_findsOnThoseThatCan(t *testing.T) {
	t.Parallel()
	r, err := router.New([]router.Candidate{
		{Name: "a", Executor: &fake{level: backend.IsolationVM}}, {Name: "b", Executor: &lost{}}, {Name: "c", Executor: &findable{id: "y1"}},
	}, router.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f, ok := backend.As[backend.Finder](r)
	if !ok {
		t.Fatal("Finder is hidden though two candidates have it")
	}
	if sb, err := f.Find(t.Context(), "y1"); err != nil || sb.Receipt().Backend != "c" {
		t.Errorf("Find = %v, %v, want it on c", sb, err)
	}
	if _, err := f.Find(t.Context(), "z1"); backend.KindOf(err) != backend.ErrUnavailable {
		t.Errorf("error %v, want that b cannot tell", err)
	}
	var got []string
	for info, err := range f.Sandboxes(t.Context()) {
		got = append(got, fmt.Sprint(info.Backend, info.ID, err))
	}
	if d := cmp.Diff([]string{"bno engine", "cy1<nil>"}, got); d != "" {
		t.Error(d)
	}
}

// One that is known to be down is asked last for a sandbox that it may have.
func TestHealth_findAsksThoseThatAnswerFirst(t *testing.T) {
	t.Parallel()
	down := &backend.Error{Op: "create", Kind: backend.ErrUnavailable, Err: errors.New("no engine")}
	a, b := &lost{findable: findable{fake: fake{level: backend.IsolationKernel, err: down}}}, &findable{fake: fake{level: backend.IsolationKernel}, id: "y1"}
	r, err := router.New([]router.Candidate{{Name: "a", Executor: a}, {Name: "b", Executor: b}}, router.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	create(t, r)
	f, _ := backend.As[backend.Finder](r)
	if _, err := f.Find(t.Context(), "y1"); err != nil || a.finds > 0 {
		t.Errorf("error %v, the one that is down was asked %d times", err, a.finds)
	}
	if _, err := f.Find(t.Context(), "z1"); backend.KindOf(err) != backend.ErrUnavailable || a.finds != 1 {
		t.Errorf("error %v, the one that is down was asked %d times", err, a.finds)
	}
}
