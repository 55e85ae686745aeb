//go:build linux

package files_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/glovebox-dev/glovebox/internal/agent/files"
	pb "github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem"
)

// show is an event as text: "CREATE d/f", with the entry's type if it has one.
func show(ev *pb.FilesystemEvent) string {
	s := strings.TrimPrefix(ev.GetType().String(), "EVENT_TYPE_") + " " + ev.GetName()
	if ev.GetEntry() != nil {
		s += " " + ev.GetEntry().GetType().String()
	}
	return s
}

// watcher is a WatchDir stream that has started.
func (w *world) watch(ctx context.Context, t *testing.T, req *pb.WatchDirRequest, headers ...string) *connect.ServerStreamForClient[pb.WatchDirResponse] {
	t.Helper()
	r := connect.NewRequest(req)
	for i := 0; i < len(headers); i += 2 {
		r.Header().Set(headers[i], headers[i+1])
	}
	st, err := w.rpc.WatchDir(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	if !st.Receive() || st.Msg().GetStart() == nil {
		t.Fatalf("no start event: %v, %v", st.Msg(), st.Err())
	}
	return st
}

// until reads events up to want, which must come.
func until(t *testing.T, st *connect.ServerStreamForClient[pb.WatchDirResponse], want string) []string {
	t.Helper()
	var seen []string
	for st.Receive() {
		if ev := st.Msg().GetFilesystem(); ev != nil {
			seen = append(seen, show(ev))
			if seen[len(seen)-1] == want {
				return seen
			}
		}
	}
	t.Fatalf("the stream ended before %q: %v, saw %v", want, st.Err(), seen)
	return nil
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestWatchDir_recursive(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	w.write(t, "old/f", "")
	st := w.watch(limited(t), t, &pb.WatchDirRequest{Path: "~", Recursive: true})
	w.write(t, "old/f", "more")
	until(t, st, "WRITE old/f")
	w.write(t, "a/b/c/deep", "x") // made before its directories can be watched
	until(t, st, "CREATE a/b/c/deep")
	w.write(t, "a/b/later", "x")
	until(t, st, "WRITE a/b/later")
	if err := os.Rename(w.path("a/b"), w.path("moved")); err != nil {
		t.Fatal(err)
	}
	until(t, st, "RENAME a/b")
	until(t, st, "CREATE moved")
	w.write(t, "moved/c/after", "x")
	until(t, st, "CREATE moved/c/after")
	if err := errors.Join(os.Chmod(w.path("moved/c/after"), 0o600), os.RemoveAll(w.path("moved"))); err != nil {
		t.Fatal(err)
	}
	until(t, st, "CHMOD moved/c/after")
	until(t, st, "REMOVE moved")
}

func TestWatchDir_plainWithEntries(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	w.write(t, "sub/f", "")
	st := w.watch(limited(t), t, &pb.WatchDirRequest{Path: w.home, IncludeEntry: true})
	w.write(t, "sub/g", "")
	w.write(t, "bad\xff", "")
	seen := until(t, st, "CREATE bad\uFFFD FILE_TYPE_FILE")
	for _, ev := range seen {
		if strings.Contains(ev, "sub/") {
			t.Errorf("below the directory: %v", seen)
		}
	}
	if err := os.Remove(w.path("bad\xff")); err != nil {
		t.Fatal(err)
	}
	until(t, st, "REMOVE bad\uFFFD")
}

func TestWatchDir_keepaliveAndEnd(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	st := w.watch(limited(t), t, &pb.WatchDirRequest{}, "Keepalive-Ping-Interval", "1")
	if !st.Receive() || st.Msg().GetKeepalive() == nil {
		t.Errorf("got %v, %v, want a keepalive", st.Msg(), st.Err())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	st = w.watch(ctx, t, &pb.WatchDirRequest{})
	for st.Receive() {
	}
	wantCode(t, st.Err(), connect.CodeDeadlineExceeded, "")
}

func TestWatch_refused(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *files.Options) { o.MaxWatchers, o.MaxWatched = 2, 4 })
	w.write(t, "f", "")
	for i := range 5 {
		w.write(t, fmt.Sprintf("many/%d/f", i), "")
	}
	create := func(req *pb.CreateWatcherRequest) (string, error) {
		res, err := w.rpc.CreateWatcher(t.Context(), connect.NewRequest(req))
		if err != nil {
			return "", err
		}
		return res.Msg.GetWatcherId(), nil
	}
	_, err := create(&pb.CreateWatcherRequest{Path: "no"})
	wantCode(t, err, connect.CodeNotFound, "path "+w.path("no")+" not found: stat ")
	_, err = create(&pb.CreateWatcherRequest{Path: "f"})
	wantCode(t, err, connect.CodeInvalidArgument, "path "+w.path("f")+" not a directory")
	_, err = create(&pb.CreateWatcherRequest{Path: "many", Recursive: true})
	wantCode(t, err, connect.CodeResourceExhausted, "error adding path ")
	first, err := create(&pb.CreateWatcherRequest{})
	if err == nil {
		_, err = create(&pb.CreateWatcherRequest{})
	}
	if err != nil {
		t.Fatalf("refused watchers still count: %v", err)
	}
	_, err = create(&pb.CreateWatcherRequest{})
	wantCode(t, err, connect.CodeResourceExhausted, "error creating watcher")
	remove := func() error {
		_, err := w.rpc.RemoveWatcher(t.Context(), connect.NewRequest(&pb.RemoveWatcherRequest{WatcherId: first}))
		return err
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	wantCode(t, remove(), connect.CodeNotFound, "watcher with id "+first+" not found")
	_, err = w.rpc.GetWatcherEvents(t.Context(), connect.NewRequest(&pb.GetWatcherEventsRequest{WatcherId: "wx"}))
	wantCode(t, err, connect.CodeNotFound, "watcher with id wx not found")
	if _, err := create(&pb.CreateWatcherRequest{}); err != nil {
		t.Errorf("a removed watcher still counts: %v", err)
	}
}

// poll fetches events until want has come or the watcher fails.
func (w *world) poll(t *testing.T, id, want string) ([]string, error) {
	t.Helper()
	ctx, seen := limited(t), []string(nil)
	for {
		res, err := w.rpc.GetWatcherEvents(ctx, connect.NewRequest(&pb.GetWatcherEventsRequest{WatcherId: id}))
		if err != nil {
			return seen, err
		}
		for _, ev := range res.Msg.GetEvents() {
			seen = append(seen, show(ev))
		}
		if slices.Contains(seen, want) {
			return seen, nil
		}
	}
}

func TestWatcher_polled(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *files.Options) { o.MaxEvents = 20 })
	res, err := w.rpc.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{IncludeEntry: true, Recursive: true}))
	if err != nil {
		t.Fatal(err)
	}
	id := res.Msg.GetWatcherId()
	w.write(t, "d/f", "x")
	if seen, err := w.poll(t, id, "CREATE d/f FILE_TYPE_FILE"); err != nil || !slices.Contains(seen, "CREATE d FILE_TYPE_DIRECTORY") {
		t.Errorf("%v, %v", seen, err)
	}
	if err := os.Remove(w.path("d/f")); err != nil {
		t.Fatal(err)
	}
	if seen, err := w.poll(t, id, "REMOVE d/f"); err != nil {
		t.Errorf("%v, %v", seen, err)
	}
	// What nobody fetches is bounded: first come the kept events, then why
	// there are no more.
	for i := range 50 {
		w.write(t, fmt.Sprintf("flood%d", i), "x")
	}
	seen, err := w.poll(t, id, "never")
	wantCode(t, err, connect.CodeResourceExhausted, "watcher error: more than ")
	if len(seen) < 5 {
		t.Errorf("only %v", seen)
	}
}

// TestWatcher_endedOnesCount: a watcher that has ended keeps its events and its
// place, until its client knows of the end and somebody needs the place.
func TestWatcher_endedOnesCount(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *files.Options) { o.MaxWatchers, o.MaxEvents = 2, 5 })
	create := func() (string, error) {
		res, err := w.rpc.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{}))
		if err != nil {
			return "", err
		}
		return res.Msg.GetWatcherId(), nil
	}
	told, err := create()
	if err != nil {
		t.Fatal(err)
	}
	untold, err := create()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		w.write(t, fmt.Sprintf("flood%d", i), "x")
	}
	_, err = w.poll(t, told, "never")
	wantCode(t, err, connect.CodeResourceExhausted, "watcher error: more than ")
	<-time.After(200 * time.Millisecond) // for the other one to end too
	third, err := create()
	if err != nil {
		t.Fatalf("one whose end was told keeps its place: %v", err)
	}
	for range 3 {
		_, err = create()
		wantCode(t, err, connect.CodeResourceExhausted, "error creating watcher: there are 2")
	}
	_, err = w.poll(t, told, "never")
	wantCode(t, err, connect.CodeNotFound, "")
	seen, err := w.poll(t, untold, "never")
	wantCode(t, err, connect.CodeResourceExhausted, "watcher error: more than ")
	if len(seen) < 2 {
		t.Errorf("only %v", seen)
	}
	for _, id := range []string{untold, third} {
		if _, err := w.rpc.RemoveWatcher(t.Context(), connect.NewRequest(&pb.RemoveWatcherRequest{WatcherId: id})); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if _, err := create(); err != nil {
			t.Errorf("a removed watcher still counts: %v", err)
		}
	}
}

func TestClose_endsAllWatching(t *testing.T) {
	// Not parallel: it counts goroutines.
	w := start(t, nil)
	st := w.watch(t.Context(), t, &pb.WatchDirRequest{Recursive: true})
	for range 3 {
		if _, err := w.rpc.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{})); err != nil {
			t.Fatal(err)
		}
	}
	if got := watching(); got < 4 {
		t.Errorf("control: only %d goroutines watch", got)
	}
	for range 2 {
		if err := w.svc.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for st.Receive() {
	}
	wantCode(t, st.Err(), connect.CodeUnavailable, "the sandbox is shutting down")
	// A goroutine that was waited for may still be on its last instructions.
	deadline := time.Now().Add(5 * time.Second)
	for watching() > 0 && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	if got := watching(); got != 0 {
		t.Errorf("%d goroutines still watch", got)
	}
	_, err := w.rpc.CreateWatcher(t.Context(), connect.NewRequest(&pb.CreateWatcherRequest{}))
	wantCode(t, err, connect.CodeUnavailable, "")
}

func watching() int {
	buf := make([]byte, 4<<20)
	stacks := string(buf[:runtime.Stack(buf, true)])
	n := 0
	for g := range strings.SplitSeq(stacks, "\n\n") {
		if strings.Contains(g, "files.(*watch).run") || strings.Contains(g, "fsnotify.") {
			n++
		}
	}
	return n
}
