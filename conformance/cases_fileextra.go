package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func fileExtraCases() []Case {
	return []Case{
		{ID: "FS-60", Area: Files, Title: "a range of a file is that range", Needs: needs(shell(), feature(backend.FeatureRange)), Run: ranges},
		{ID: "FS-61", Area: Files, Title: "metadata stays with a file and is told by stat", Needs: needs(shell(), feature(backend.FeatureMetadata)), Run: metadata},
		{ID: "FS-62", Area: Files, Title: "metadata over its bounds is refused", Needs: needs(shell(), feature(backend.FeatureMetadata)), Run: badMetadata},
		{ID: "FS-63", Area: Files, Title: "files as another user are that user's", Needs: needs(shell(), feature(backend.FeatureUsers)), Run: filesAs},
		{ID: "FS-64", Area: Files, Title: "envd answers over its transport", Needs: needs(feature(backend.FeatureEnvd)), Run: envd},
	}
}

func ranges(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.write(ctx, sb, "f", "0123456789")
	ro := find[backend.RangeOpener](t, "range", sb.Files())
	for _, tt := range []struct {
		off, n int64
		want   string
	}{{0, -1, "0123456789"}, {3, 4, "3456"}, {8, 100, "89"}, {10, -1, ""}, {99, 5, ""}, {4, 0, ""}} {
		rc, err := ro.OpenRange(ctx, "f", tt.off, tt.n)
		if err != nil {
			t.Errorf("%+v: %v", tt, err)
			continue
		}
		got, err := io.ReadAll(rc)
		_ = rc.Close()
		if err != nil || string(got) != tt.want {
			t.Errorf("%+v: %q %v", tt, got, err)
		}
	}
	_, err := ro.OpenRange(ctx, "f", -1, 5)
	t.kind("a negative offset", err, backend.ErrInvalid)
	_, err = ro.OpenRange(ctx, "missing", 0, 5)
	t.kind("a missing file", err, backend.ErrNotFound)
}

func metadata(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	meta := map[string]string{"source": "https://example.com/a b", "n": "1"}
	if err := find[backend.MetadataWriter](t, "metadata", sb.Files()).WriteMeta(ctx, "f", strings.NewReader("x"), 0, meta); err != nil {
		t.Fatalf("%v", err)
	}
	st, err := sb.Files().Stat(ctx, "f")
	if err != nil {
		t.Fatalf("%v", err)
	}
	if attr, ok := st.Sys().(*backend.FileAttr); !ok || !maps.Equal(attr.Metadata, meta) {
		t.Errorf("%+v", st.Sys())
	}
}

func badMetadata(ctx context.Context, t *T) {
	mw := find[backend.MetadataWriter](t, "metadata", t.Create(ctx, backend.Spec{}).Files())
	for _, bad := range []map[string]string{{strings.Repeat("k", 300): "v"}, {"k": "line\n"}, {"": "v"}, {"k": strings.Repeat("v", 5000)}} {
		err := mw.WriteMeta(ctx, "g", strings.NewReader("x"), 0, bad)
		t.kind("metadata", err, backend.ErrInvalid, backend.ErrTooLarge)
	}
}

func filesAs(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	root := find[backend.UserFiles](t, "users", sb.Files()).FilesAs("root")
	if err := backend.WriteFile(ctx, root, "/tmp/roots", []byte("secret"), 0o600); err != nil {
		t.Fatalf("%v", err)
	}
	if data, err := backend.ReadFile(ctx, root, "/tmp/roots", 100); err != nil || string(data) != "secret" {
		t.Errorf("%q, %v", data, err)
	}
	t.kind("read as user", readAll(ctx, sb.Files(), "/tmp/roots"), backend.ErrDenied)
	st, err := root.Stat(ctx, "/tmp/roots")
	if err != nil {
		t.Fatalf("%v", err)
	}
	if attr, ok := st.Sys().(*backend.FileAttr); !ok || attr.Owner != "root" || attr.UID != 0 {
		t.Errorf("%+v", st.Sys())
	}
	_, err = find[backend.UserFiles](t, "users", sb.Files()).FilesAs("mallory").Stat(ctx, "/tmp")
	t.kind("an unknown account", err, backend.ErrNotFound)
}

func watchCases() []Case {
	w := needs(shell(), feature(backend.FeatureWatch))
	return []Case{
		{ID: "WT-01", Area: Watch, Title: "creating, writing, changing modes, renaming and removing are told in order", Needs: w, Run: watchEvents},
		{ID: "WT-02", Area: Watch, Title: "a recursive watch sees what is below, new directories included", Needs: w, Run: watchRecursive},
		{ID: "WT-03", Area: Watch, Title: "a watch that is not recursive sees one directory", Needs: w, Run: watchFlat},
		{ID: "WT-04", Area: Watch, Title: "a watch ends with its context, without an error", Needs: w, Run: watchCancelled},
		{ID: "WT-05", Area: Watch, Title: "watching what is missing is an error", Needs: w, Run: watchMissing},
		{ID: "WT-06", Area: Watch, Title: "a watch ends with its sandbox", Needs: w, Run: watchDestroyed},
	}
}

// watching runs script once the watch is armed and waits for the events in this
// order, others between them; what comes of avoid is a failure.
func (t *T) watching(ctx context.Context, opts backend.WatchOptions, script string, want []backend.WatchEvent, avoid string) {
	sb := t.Create(ctx, backend.Spec{})
	t.good(t.sh(ctx, sb, "mkdir -p w/sub"))
	wctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var seen []string
	for ev, err := range find[backend.Watcher](t, "watch", sb.Files()).Watch(wctx, "w", opts) {
		if err != nil {
			t.Fatalf("%v, still to come %v, seen %q", err, want, seen)
		}
		if ev.Op == backend.WatchReady {
			t.good(t.sh(ctx, sb, "cd w; "+script))
			continue
		}
		seen = append(seen, fmt.Sprint(ev))
		if avoid != "" && strings.HasPrefix(ev.Name, avoid) {
			t.Errorf("told of %v", ev)
		}
		if len(want) > 0 && ev == want[0] {
			want = want[1:]
		}
		if len(want) == 0 {
			return
		}
	}
	t.Errorf("never: %v; seen %q", want, seen)
}

func watchEvents(ctx context.Context, t *T) {
	t.watching(ctx, backend.WatchOptions{}, "echo x >a; chmod 600 a; mv a b; rm b", []backend.WatchEvent{
		{Name: "a", Op: backend.WatchCreate},
		{Name: "a", Op: backend.WatchWrite},
		{Name: "a", Op: backend.WatchChmod},
		{Name: "a", Op: backend.WatchRename},
		{Name: "b", Op: backend.WatchCreate},
		{Name: "b", Op: backend.WatchRemove},
	}, "")
}

func watchRecursive(ctx context.Context, t *T) {
	t.watching(ctx, backend.WatchOptions{Recursive: true}, "echo x >sub/a; mkdir sub/new; sleep 0.5; echo x >sub/new/b", []backend.WatchEvent{
		{Name: "sub/a", Op: backend.WatchCreate}, {Name: "sub/new", Op: backend.WatchCreate}, {Name: "sub/new/b", Op: backend.WatchCreate},
	}, "")
}

func watchFlat(ctx context.Context, t *T) {
	t.watching(ctx, backend.WatchOptions{}, "echo x >sub/a; echo x >last", []backend.WatchEvent{{Name: "last", Op: backend.WatchCreate}}, "sub/")
}

func watchCancelled(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for ev, err := range find[backend.Watcher](t, "watch", sb.Files()).Watch(wctx, ".", backend.WatchOptions{}) {
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if ev.Op == backend.WatchReady {
			cancel()
		}
	}
	t.good(t.exec(ctx, sb, "true"))
}

func watchMissing(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	for ev, err := range find[backend.Watcher](t, "watch", sb.Files()).Watch(ctx, "missing", backend.WatchOptions{}) {
		if err == nil {
			t.Fatalf("%v", ev)
		}
		t.kind("watch", err, backend.ErrNotFound)
	}
}

func watchDestroyed(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	wctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var last error
	for ev, err := range find[backend.Watcher](t, "watch", sb.Files()).Watch(wctx, ".", backend.WatchOptions{}) {
		if last = err; ev.Op == backend.WatchReady {
			if err := sb.Destroy(ctx); err != nil {
				t.Errorf("%v", err)
			}
		}
	}
	if wctx.Err() != nil {
		t.Errorf("it did not end")
	}
	t.kind("its end", last, backend.ErrClosed, backend.ErrLost)
}

func envd(ctx context.Context, t *T) {
	rt, err := find[backend.EnvdTransport](t, "envd", t.Create(ctx, backend.Spec{})).Envd(ctx)
	if err != nil {
		t.Fatalf("%v", err)
	}
	status, body, err := get(ctx, rt, "http://sandbox/health")
	if err != nil || status/100 != 2 {
		t.Errorf("%d %.200q, %v", status, bytes.TrimSpace(body), err)
	}
}
