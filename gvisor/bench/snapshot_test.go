//go:build linux

package bench_test

import (
	"context"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/testenv"
	"github.com/glovebox-dev/glovebox/internal/testenv/ratio"
)

// BenchmarkRestore: a sandbox with Python at work, made anew and made from a
// snapshot, each until it has answered. What is warm in the snapshot is warmed
// in the other.
func BenchmarkRestore(b *testing.B) {
	testenv.NeedRoot(b)
	ex := open(b)
	warm := backend.Command{Args: []string{"/bin/bash", "-c", "command -v python3 >/dev/null && python3 -c 'import json' || true"}}
	answer := func(spec backend.Spec, first ...backend.Command) error {
		sb, err := ex.Create(b.Context(), spec)
		if err != nil {
			return err
		}
		for _, c := range append(first, backend.Command{Args: []string{"/bin/true"}}) {
			if err := succeed(backend.RunIn(b.Context(), sb, c)); err != nil {
				return err
			}
		}
		return sb.Destroy(b.Context())
	}
	sb, err := ex.Create(b.Context(), backend.Spec{})
	if err != nil {
		b.Fatal(err)
	}
	if err := succeed(backend.RunIn(b.Context(), sb, warm)); err != nil {
		b.Fatal(err)
	}
	saver, _ := backend.As[backend.Snapshotter](sb)
	name, err := saver.Snapshot(b.Context(), backend.SnapshotOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		store, _ := backend.As[backend.SnapshotStore](ex)
		if err := store.DeleteSnapshot(context.Background(), name); err != nil { //nolint:usetesting // the benchmark's is over
			b.Error(err)
		}
	}()
	ratio.Medians(b, 0, []ratio.Of{ratio.Timed("restored", func() error { return answer(backend.Spec{From: name}) })}, []ratio.Of{
		ratio.Timed("cold", func() error { return answer(backend.Spec{}) }),
		ratio.Timed("cold-and-warmed", func() error { return answer(backend.Spec{}, warm) }),
	})
}
