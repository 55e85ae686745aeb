//go:build linux

package files_test

import (
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/agent/files"
	pb "github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem"
)

func (w *world) stat(t *testing.T, path string) *pb.EntryInfo {
	t.Helper()
	res, err := w.rpc.Stat(t.Context(), connect.NewRequest(&pb.StatRequest{Path: path}))
	if err != nil {
		t.Fatal(err)
	}
	return res.Msg.GetEntry()
}

func (w *world) list(t *testing.T, path string, depth uint32) ([]string, error) {
	t.Helper()
	res, err := w.rpc.ListDir(t.Context(), connect.NewRequest(&pb.ListDirRequest{Path: path, Depth: depth}))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range res.Msg.GetEntries() {
		rel, err := filepath.Rel(w.home, e.GetPath())
		if err != nil {
			t.Error(err)
		}
		out = append(out, rel)
	}
	return out, nil
}

func TestStat_describesAsE2B(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	p := w.write(t, "d/x.txt", "abc")
	mkfifo(t, w.path("fifo"))
	for link, to := range map[string]string{"l": "d/x.txt", "ll": "l", "dir": "d", "dangling": "nowhere", "loop": "loop"} {
		if err := os.Symlink(to, w.path(link)); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		path, permissions, target string
		kind                      pb.FileType
		mode                      uint32
		link                      bool
	}{
		{"d/x.txt", "-rw-r--r--", "", pb.FileType_FILE_TYPE_FILE, 0o644, false},
		{"~/d/x.txt", "-rw-r--r--", "", pb.FileType_FILE_TYPE_FILE, 0o644, false},
		{"d/../d/./x.txt", "-rw-r--r--", "", pb.FileType_FILE_TYPE_FILE, 0o644, false},
		{"d", "drwxr-xr-x", "", pb.FileType_FILE_TYPE_DIRECTORY, 0o755, false},
		{"l", "Lrwxrwxrwx", p, pb.FileType_FILE_TYPE_FILE, 0o644, true},
		{"ll", "Lrwxrwxrwx", p, pb.FileType_FILE_TYPE_FILE, 0o644, true},
		{"dir", "Lrwxrwxrwx", w.path("d"), pb.FileType_FILE_TYPE_DIRECTORY, 0o755, true},
		{"dangling", "Lrwxrwxrwx", "nowhere", pb.FileType_FILE_TYPE_UNSPECIFIED, 0, true},
		{"loop", "Lrwxrwxrwx", "loop", pb.FileType_FILE_TYPE_UNSPECIFIED, 0, true},
		{"fifo", "prw-------", "", pb.FileType_FILE_TYPE_UNSPECIFIED, 0o600, false},
	}
	for _, tt := range tests {
		e := w.stat(t, tt.path)
		if e.GetType() != tt.kind || e.GetMode() != tt.mode || e.GetPermissions() != tt.permissions ||
			e.GetSymlinkTarget() != tt.target || e.GetIsSymlink() != tt.link || (e.SymlinkTarget != nil) != tt.link ||
			e.GetOwner() != "user" || e.GetName() != filepath.Base(tt.path) {
			t.Errorf("%s: %v", tt.path, e)
		}
	}
	if e := w.stat(t, "d/x.txt"); e.GetSize() != 3 || e.GetPath() != p || e.GetModifiedTime().AsTime().IsZero() {
		t.Errorf("%v", e)
	}
	_, err := w.rpc.Stat(t.Context(), connect.NewRequest(&pb.StatRequest{Path: "no"}))
	wantCode(t, err, connect.CodeNotFound, "file not found: lstat "+w.path("no")+": no such file or directory")
}

func TestPaths_refused(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	for path, text := range map[string]string{
		"~root/x":                  "failed to expand path '~root/x' for user 'user': cannot expand user-specific home dir",
		"a\x00b":                   "path contains invalid characters",
		strings.Repeat("a", 5000):  "path is too long",
		strings.Repeat("b/", 2040): "error getting file info",
		strings.Repeat("c", 300):   "error getting file info",
	} {
		_, err := w.rpc.Stat(t.Context(), connect.NewRequest(&pb.StatRequest{Path: path}))
		wantCode(t, err, connect.CodeInvalidArgument, text)
	}
}

func TestUser_ofTheRequest(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	for user, ok := range map[string]bool{"user": true, "": true, "mallory": false} {
		req := connect.NewRequest(&pb.StatRequest{Path: "/"})
		req.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":")))
		_, err := w.rpc.Stat(t.Context(), req)
		if ok && err != nil {
			t.Errorf("%q: %v", user, err)
		}
		if !ok {
			wantCode(t, err, connect.CodeUnauthenticated, "invalid username: '"+user+"'")
		}
	}
}

func TestOwnUID_refusesAnotherAccount(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *files.Options) {
		o.Lookup = func(string) (files.Account, error) {
			return files.Account{Name: "other", UID: 4242, GID: 4242, Home: "/"}, nil
		}
	})
	_, err := w.rpc.Stat(t.Context(), connect.NewRequest(&pb.StatRequest{Path: "/"}))
	wantCode(t, err, connect.CodePermissionDenied, "")
	if got := w.get(t, "/etc/passwd"); got.StatusCode != 403 {
		t.Errorf("download: %d %s", got.StatusCode, got.body)
	}
}

func TestMakeDir(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	w.write(t, "file", "")
	mk := func(p string) (*pb.EntryInfo, error) {
		res, err := w.rpc.MakeDir(t.Context(), connect.NewRequest(&pb.MakeDirRequest{Path: p}))
		if err != nil {
			return nil, err
		}
		return res.Msg.GetEntry(), nil
	}
	e, err := mk("a/b/c")
	if err != nil || e.GetPath() != w.path("a/b/c") || e.GetType() != pb.FileType_FILE_TYPE_DIRECTORY || e.GetMode() != 0o755 {
		t.Errorf("%v, %v", e, err)
	}
	_, err = mk("a/b")
	wantCode(t, err, connect.CodeAlreadyExists, "directory already exists: "+w.path("a/b"))
	_, err = mk("file")
	wantCode(t, err, connect.CodeInvalidArgument, "path already exists but it is not a directory: "+w.path("file"))
	_, err = mk("file/sub/sub")
	wantCode(t, err, connect.CodeInvalidArgument, "")
}

func TestMove(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	w.write(t, "a", "A")
	w.write(t, "b", "B")
	mv := func(from, to string) (*pb.EntryInfo, error) {
		res, err := w.rpc.Move(t.Context(), connect.NewRequest(&pb.MoveRequest{Source: from, Destination: to}))
		if err != nil {
			return nil, err
		}
		return res.Msg.GetEntry(), nil
	}
	if e, err := mv("a", "new/dir/a"); err != nil || e.GetPath() != w.path("new/dir/a") {
		t.Fatalf("%v, %v", e, err)
	}
	if _, err := mv("b", "new/dir/a"); err != nil {
		t.Errorf("replacing: %v", err)
	}
	if got, err := os.ReadFile(w.path("new/dir/a")); string(got) != "B" {
		t.Errorf("%q, %v", got, err)
	}
	_, err := mv("gone", "other/x")
	wantCode(t, err, connect.CodeNotFound, "source file not found: rename "+w.path("gone"))
	if _, err := os.Lstat(w.path("other")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing source left the destination's parent: %v", err)
	}
}

func TestMove_betweenFileSystems(t *testing.T) {
	t.Parallel()
	other, err := os.MkdirTemp("/dev/shm", "glovebox-test-") //nolint:usetesting // another file system than that of t.TempDir
	if err != nil {
		t.Skipf("needs a second file system at /dev/shm: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(other) })
	w := start(t, nil)
	var a, b unix.Stat_t
	if err := errors.Join(unix.Stat(other, &a), unix.Stat(w.home, &b)); err != nil || a.Dev == b.Dev {
		t.Skipf("needs a second file system at /dev/shm: %v", err)
	}
	src := w.write(t, "x", "moved")
	if err := os.Chmod(src, 0o751); err != nil {
		t.Fatal(err)
	}
	res, err := w.rpc.Move(t.Context(), connect.NewRequest(&pb.MoveRequest{Source: "x", Destination: filepath.Join(other, "y")}))
	if err != nil || res.Msg.GetEntry().GetMode() != 0o751 || res.Msg.GetEntry().GetSize() != 5 {
		t.Fatalf("%v, %v", res, err)
	}
	if _, err := os.Lstat(src); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the source is still there: %v", err)
	}
}

func TestListDir(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	w.write(t, "d/s/f", "")
	w.write(t, "d/a", "")
	for link, to := range map[string]string{"d/up": "..", "to-d": "d"} {
		if err := os.Symlink(to, w.path(link)); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		path  string
		depth uint32
		want  string
	}{
		{"d", 0, "d/a d/s d/up"},
		{"d", 1, "d/a d/s d/up"},
		{"d", 2, "d/a d/s d/s/f d/up"},
		{"d", 4294967295, "d/a d/s d/s/f d/up"},
		{"to-d", 2, "to-d/a to-d/s to-d/s/f to-d/up"},
	}
	for _, tt := range tests {
		if got, err := w.list(t, tt.path, tt.depth); err != nil || strings.Join(got, " ") != tt.want {
			t.Errorf("%s %d: %v, %v, want %s", tt.path, tt.depth, got, err, tt.want)
		}
	}
	_, err := w.list(t, "d/a", 1)
	wantCode(t, err, connect.CodeInvalidArgument, "path is not a directory: "+w.path("d/a"))
	_, err = w.list(t, "gone", 1)
	wantCode(t, err, connect.CodeNotFound, "")
	if err := os.Symlink("loop", w.path("loop")); err != nil {
		t.Fatal(err)
	}
	_, err = w.list(t, "loop", 1)
	wantCode(t, err, connect.CodeFailedPrecondition, "error resolving symlink: ")
}

func TestListDir_isBounded(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *files.Options) { o.MaxEntries, o.MaxListing = 10, 8<<10 })
	for i := range 11 {
		w.write(t, "many/"+strings.Repeat("x", i+1), "")
		w.write(t, "spread/"+string(rune('a'+i%4))+"/"+strings.Repeat("x", i+1), "")
		if i < 8 {
			w.write(t, "large/"+strings.Repeat(string(rune('a'+i)), 250)+"/"+strings.Repeat("z", 250)+"/f", "")
		}
	}
	for _, path := range []string{"many", "spread", "large"} {
		_, err := w.list(t, path, 3)
		wantCode(t, err, connect.CodeResourceExhausted, "error reading directory")
	}
	if got, err := w.list(t, "spread", 1); err != nil || len(got) != 4 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestNames_thatAreNotText(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	w.write(t, "bad\xff\xfename", "")
	w.write(t, "new\nline \x1b[31m", "")
	if err := os.Symlink("to\xff", w.path("zlink")); err != nil {
		t.Fatal(err)
	}
	got, err := w.list(t, "", 1)
	if err != nil || strings.Join(got, "|") != "bad\uFFFDname|new\nline \x1b[31m|zlink" {
		t.Errorf("%q, %v", got, err)
	}
	if e := w.stat(t, "new\nline \x1b[31m"); e.GetName() != "new\nline \x1b[31m" {
		t.Errorf("%v", e)
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	keep := w.write(t, "keep/f", "")
	w.write(t, "t/a/b/c", "")
	w.write(t, "t/ro/f", "")
	for range 3 {
		w.write(t, "t/"+strings.Repeat("n", 1), "")
	}
	if err := errors.Join(os.Symlink("../keep", w.path("t/link")), os.Chmod(w.path("t/ro"), 0o500),
		os.Symlink("keep", w.path("l"))); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"t", "t", "l", "gone/x", "keep/f/x"} {
		if _, err := w.rpc.Remove(t.Context(), connect.NewRequest(&pb.RemoveRequest{Path: path})); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if _, err := os.Lstat(w.path(path)); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
	if _, err := os.Stat(keep); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
}

// The test runs again in a process of its own that may have few files open.
func TestRemove_treeDeeperThanPathsAndDescriptors(t *testing.T) {
	const again = "GLOVEBOX_TEST_FILES_FEW"
	if os.Getenv(again) == "" {
		t.Parallel()
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.count=1")
		cmd.Env = append(os.Environ(), again+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}); err != nil {
		t.Fatal(err)
	}
	w := start(t, nil)
	const depth = 3000
	dir, err := unix.Open(w.home, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for i := 0; err == nil && i < depth; i++ {
		var next int
		if err = unix.Mkdirat(dir, "deep", 0o755); err == nil {
			next, err = unix.Openat(dir, "deep", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			_ = unix.Close(dir)
			dir = next
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(dir)
	if got, err := w.list(t, "", 4294967295); err != nil || len(got) == 0 || len(got) > depth {
		t.Errorf("listing: %d entries, %v", len(got), err)
	}
	if _, err := w.rpc.Remove(t.Context(), connect.NewRequest(&pb.RemoveRequest{Path: "deep"})); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(w.home); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
