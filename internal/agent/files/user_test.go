//go:build linux

package files_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/agent/files"
	pb "github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

// asUser serves the home of uid 1000, with secrets of root's beside it, and
// switches to that user for every access.
func asUser(t *testing.T) *world {
	t.Helper()
	testenv.NeedRoot(t)
	var home string
	w := start(t, func(o *files.Options) {
		o.OwnUID = false
		o.Lookup = func(name string) (files.Account, error) {
			switch name {
			case "", "user":
				return files.Account{Name: "user", UID: 1000, GID: 1000, Home: home}, nil
			case "root":
				return files.Account{Name: "root", Home: home}, nil
			}
			return files.Account{}, errors.New("user: unknown user " + name)
		}
	})
	home = w.home
	err := errors.Join(os.Chmod(filepath.Dir(home), 0o755), os.Chown(home, 1000, 1000),
		os.Mkdir(w.path("roots"), 0o700), os.WriteFile(w.path("roots/secret"), []byte("s3cret"), 0o600),
		os.WriteFile(w.path("readonly"), []byte("root's"), 0o644), os.Symlink("roots/secret", w.path("link")),
		os.Symlink("readonly", w.path("link-w")), os.Symlink("roots", w.path("dirlink")))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestAsUser_kernelRefuses(t *testing.T) {
	t.Parallel()
	w := asUser(t)
	for _, path := range []string{"roots/secret", "link", "dirlink/secret"} {
		if got := w.get(t, path); got.StatusCode != 403 || strings.Contains(got.body, "s3cret") {
			t.Errorf("read %s: %d %s", path, got.StatusCode, got.body)
		}
		if got := w.do(t, http.MethodGet, "path="+path+"&username=root", nil); got.body != "s3cret" {
			t.Errorf("control: root cannot read %s: %d %s", path, got.StatusCode, got.body)
		}
	}
	for _, path := range []string{"readonly", "link-w", "link", "roots/new", "dirlink/new", "/etc/glovebox-test"} {
		if got := w.put(t, path, "mine"); got.StatusCode != 403 {
			t.Errorf("write %s: %d %s", path, got.StatusCode, got.body)
		}
	}
	body, kind := form(t, "../../../../../../etc/glovebox-test", "x")
	if got := w.do(t, http.MethodPost, "", body, "Content-Type", kind); got.StatusCode != 403 {
		t.Errorf("multipart: %d %s", got.StatusCode, got.body)
	}
	if got := w.put(t, "readonly", "x", "Glovebox-Mode", "777"); got.StatusCode != 403 {
		t.Errorf("mode: %d %s", got.StatusCode, got.body)
	}
	got := w.do(t, http.MethodPost, "/compose", strings.NewReader(`{"source_paths":["readonly","link"],"destination":"all"}`))
	if got.StatusCode != 403 {
		t.Errorf("compose: %d %s", got.StatusCode, got.body)
	}
	ctx := t.Context()
	_, err := w.rpc.ListDir(ctx, connect.NewRequest(&pb.ListDirRequest{Path: "roots"}))
	wantCode(t, err, connect.CodePermissionDenied, "")
	_, err = w.rpc.MakeDir(ctx, connect.NewRequest(&pb.MakeDirRequest{Path: "roots/d"}))
	wantCode(t, err, connect.CodePermissionDenied, "")
	_, err = w.rpc.Move(ctx, connect.NewRequest(&pb.MoveRequest{Source: "roots/secret", Destination: "mine"}))
	wantCode(t, err, connect.CodePermissionDenied, "")
	_, err = w.rpc.Remove(ctx, connect.NewRequest(&pb.RemoveRequest{Path: "roots"}))
	wantCode(t, err, connect.CodePermissionDenied, "")
	_, err = w.rpc.CreateWatcher(ctx, connect.NewRequest(&pb.CreateWatcherRequest{Path: "roots"}))
	wantCode(t, err, connect.CodePermissionDenied, "")
	if data, err := os.ReadFile(w.path("roots/secret")); err != nil || string(data) != "s3cret" {
		t.Errorf("root's file: %q, %v", data, err)
	}
	// The unreadable directory is listed, what is in it is left out.
	if list, err := w.list(t, "", 3); err != nil || strings.Join(list, " ") != "dirlink link link-w readonly roots" {
		t.Errorf("%v, %v", list, err)
	}
}

func TestAsUser_whatIsMadeBelongsToTheUser(t *testing.T) {
	t.Parallel()
	w := asUser(t)
	if got := w.put(t, "a/b/f", "x", "X-Metadata-K", "v"); got.StatusCode != 200 {
		t.Fatalf("%d %s", got.StatusCode, got.body)
	}
	if _, err := w.rpc.MakeDir(t.Context(), connect.NewRequest(&pb.MakeDirRequest{Path: "c/d"})); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "a/b", "a/b/f", "c", "c/d"} {
		st, err := os.Stat(w.path(name))
		if err != nil {
			t.Error(err)
		} else if sys, ok := st.Sys().(*syscall.Stat_t); !ok || sys.Uid != 1000 || sys.Gid != 1000 {
			t.Errorf("%s belongs to %v", name, st.Sys())
		}
	}
	// Root inside is uid 0 without capabilities: it is refused where it is not
	// the owner and has no right.
	if err := os.Chmod(w.path("a"), 0o700); err != nil {
		t.Fatal(err)
	}
	st, err := w.rpc.Stat(t.Context(), connect.NewRequest(&pb.StatRequest{Path: "a/b/f"}))
	if err != nil || st.Msg.GetEntry().GetSize() != 1 {
		t.Errorf("%v, %v", st, err)
	}
}

func TestAsUser_ownReadOnlyFiles(t *testing.T) {
	t.Parallel()
	w := asUser(t)
	if got := w.put(t, "f", "first", "Glovebox-Mode", "444"); got.StatusCode != 200 {
		t.Fatalf("%d %s", got.StatusCode, got.body)
	}
	if got := w.put(t, "f", "second"); got.StatusCode != 200 {
		t.Errorf("again: %d %s", got.StatusCode, got.body)
	}
	if e := w.stat(t, "f"); e.GetMode() != 0o444 || w.content(t, "f") != "second" {
		t.Errorf("%v", e)
	}
	if got := w.put(t, "cache/x/f", ""); got.StatusCode != 200 {
		t.Fatalf("%d %s", got.StatusCode, got.body)
	}
	if err := errors.Join(os.Chmod(w.path("cache/x"), 0), os.Chmod(w.path("cache"), 0o500)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.rpc.Remove(t.Context(), connect.NewRequest(&pb.RemoveRequest{Path: "cache"})); err != nil {
		t.Error(err)
	}
}

// TestAsUser_swappedFiles lets one goroutine swap a name between its own file,
// a FIFO and a link to root's file, as code inside can, while it is read and
// written: nothing of root's may come out or change, and nothing may hang.
func TestAsUser_swappedFiles(t *testing.T) {
	t.Parallel()
	w := asUser(t)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		name := w.path("x")
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Remove(name)
			switch i % 3 {
			case 0:
				_ = os.Symlink("roots/secret", name)
			case 1:
				_ = unix.Mkfifo(name, 0o666)
			default:
				_ = os.WriteFile(name, []byte("own"), 0o666)
			}
		}
	}()
	for range 300 {
		if got := w.get(t, "x"); strings.Contains(got.body, "s3cret") {
			t.Fatalf("root's file came out: %s", got.body)
		}
		_ = w.put(t, "x", "evil")
	}
	close(stop)
	<-done
	if data, err := os.ReadFile(w.path("roots/secret")); err != nil || string(data) != "s3cret" {
		t.Errorf("root's file: %q, %v", data, err)
	}
}
