//go:build linux

package files_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/agent/files"
	pb "github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

func TestDownload(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	w.write(t, "d/x.txt", "0123456789")
	got := w.get(t, "~/d/x.txt")
	want := map[string]string{
		"Content-Disposition": "inline; filename=x.txt", "Accept-Ranges": "bytes", "Vary": "Accept-Encoding",
		"Content-Type": "text/plain; charset=utf-8", "Content-Encoding": "",
	}
	for name, value := range want {
		if got.Header.Get(name) != value {
			t.Errorf("%s: %q, want %q", name, got.Header.Get(name), value)
		}
	}
	modified := got.Header.Get("Last-Modified")
	if got.StatusCode != 200 || got.body != "0123456789" || modified == "" {
		t.Errorf("%d %q %q", got.StatusCode, got.body, modified)
	}
	tests := []struct {
		name, header, value string
		status              int
		body                string
	}{
		{"range", "Range", "bytes=2-4", 206, "234"},
		{"suffix", "Range", "bytes=-3", 206, "789"},
		{"no such range", "Range", "bytes=20-", 416, ""},
		{"many ranges", "Range", "bytes=0-0" + strings.Repeat(",1-1", 100), 200, "0123456789"},
		{"not modified", "If-Modified-Since", modified, 304, ""},
		{"modified", "If-Modified-Since", "Mon, 02 Jan 2006 15:04:05 GMT", 200, "0123456789"},
	}
	for _, tt := range tests {
		got := w.get(t, "d/x.txt", tt.header, tt.value, "Accept-Encoding", "gzip")
		if got.StatusCode != tt.status || tt.body != "" && tt.name != "modified" && got.body != tt.body && got.Header.Get("Content-Encoding") == "" {
			t.Errorf("%s: %d %q", tt.name, got.StatusCode, got.body)
		}
		if got.StatusCode == 206 && got.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s: a range is compressed", tt.name)
		}
	}
}

func TestDownload_encoding(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	w.write(t, "x.json", strings.Repeat("{}", 1000))
	tests := []struct {
		accept string
		status int
		gzip   bool
	}{
		{"none", 200, false},
		{"identity", 200, false},
		{"gzip", 200, true},
		{"gzip, deflate", 200, true},
		{"deflate, br", 200, false},
		{"GZIP;q=0.5", 200, true},
		{"gzip;q=0", 200, false},
		{"identity, gzip", 200, false},
		{"gzip, identity", 200, true},
		{"gzip;q=0.4, identity;q=0.5", 200, false},
		{"*", 200, false},
		{"identity;q=0, *", 200, true},
		{"*;q=0, gzip", 200, true},
		{"identity;q=0", 406, false},
		{"br, *;q=0", 406, false},
		{"gzip;q=0, identity;q=0, *", 406, false},
		{"gzip;q=NaN", 200, true},
		{";;;,,,=", 200, false},
	}
	for _, tt := range tests {
		got := w.get(t, "x.json", "Accept-Encoding", tt.accept)
		if got.StatusCode != tt.status || (got.Header.Get("Content-Encoding") == "gzip") != tt.gzip {
			t.Errorf("%q: %d, %q", tt.accept, got.StatusCode, got.Header.Get("Content-Encoding"))
		}
		if got.StatusCode == 406 {
			_ = got.message(t)
		}
		if !tt.gzip {
			continue
		}
		z, err := gzip.NewReader(strings.NewReader(got.body))
		var body []byte
		if err == nil {
			body, err = io.ReadAll(z)
		}
		if err != nil || len(body) != 2000 || got.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%q: %d bytes, %v", tt.accept, len(body), err)
		}
	}
}

func TestDownload_refused(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	w.write(t, "d/f", "")
	mkfifo(t, w.path("fifo"))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: w.path("socket")}), os.Symlink("fifo", w.path("to-fifo")),
		os.Symlink("loop", w.path("loop")), os.Symlink("/proc/self/exe", w.path("agent"))); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		path    string
		status  int
		message string
	}{
		{"no", 404, "path '" + w.path("no") + "' does not exist"},
		{"d/f/x", 404, "path '" + w.path("d/f/x") + "' does not exist"},
		{"d", 400, "path '" + w.path("d") + "' is a directory"},
		{"", 400, "path '" + w.home + "' is a directory"},
		{"fifo", 400, "path '" + w.path("fifo") + "' is not a regular file"},
		{"to-fifo", 400, "path '" + w.path("to-fifo") + "' is not a regular file"},
		{"socket", 400, "path '" + w.path("socket") + "' is not a regular file"},
		{"/dev/zero", 400, "path '/dev/zero' is not a regular file"},
		{"loop", 400, ""},
		{"agent", 400, ""},
		{"~x/y", 400, ""},
	}
	for _, tt := range tests {
		got := w.get(t, tt.path)
		if m := got.message(t); got.StatusCode != tt.status || tt.message != "" && m != tt.message {
			t.Errorf("%s: %d %q, want %d %q", tt.path, got.StatusCode, m, tt.status, tt.message)
		}
	}
	got := w.do(t, http.MethodGet, "path=x&username=eve", nil)
	if m := got.message(t); got.StatusCode != 401 || m != "error looking up user 'eve': user: unknown user eve" {
		t.Errorf("%d %q", got.StatusCode, m)
	}
}

// Code inside can take a lease, which lets an opener wait for most of a minute.
func TestFiles_leasedByAnother(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	f, err := os.Open(w.write(t, "x", "old"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		t.Skipf("needs a file system with leases: %v", err)
	}
	begun := time.Now()
	if got := w.put(t, "x", "new"); got.StatusCode != 409 || time.Since(begun) > 10*time.Second {
		t.Errorf("%d %s after %v", got.StatusCode, got.body, time.Since(begun))
	}
	if got := w.content(t, "x"); got != "old" {
		t.Errorf("%q", got)
	}
}

func TestDownload_pseudoFiles(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	if got := w.get(t, "/proc/meminfo"); got.StatusCode != 200 || got.body != "" {
		t.Errorf("plain: %d %q", got.StatusCode, got.body)
	}
	got := w.get(t, "/proc/meminfo", "Accept-Encoding", "gzip")
	z, err := gzip.NewReader(strings.NewReader(got.body))
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(z); err != nil || !bytes.HasPrefix(body, []byte("MemTotal")) {
		t.Errorf("gzip: %q, %v", body, err)
	}
}

func TestDownload_fileNameIsSafeInAHeader(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	for _, name := range []string{`a";x="b`, "new\r\nSet-Cookie: a=b", "ü", "bad\xff", "a b"} {
		w.write(t, name, "x")
		got := w.get(t, name)
		_, params, err := mime.ParseMediaType(got.Header.Get("Content-Disposition"))
		if err != nil || params["filename"] != strings.ToValidUTF8(name, "\uFFFD") || len(got.Cookies()) != 0 {
			t.Errorf("%q: %q, %v", name, got.Header.Get("Content-Disposition"), err)
		}
	}
}

type entry struct {
	Name, Path, Type string
	Metadata         map[string]string
}

func entries(t *testing.T, a answer) []entry {
	t.Helper()
	var out []entry
	if err := json.Unmarshal([]byte(a.body), &out); err != nil || a.StatusCode != 200 ||
		a.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("%d %q %q: %v", a.StatusCode, a.Header.Get("Content-Type"), a.body, err)
	}
	return out
}

func (w *world) content(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(w.path(name))
	if err != nil {
		t.Error(err)
	}
	return string(data)
}

func TestUpload_raw(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *files.Options) { o.MaxUpload = 100 })
	w.write(t, "old", "something longer than the new content")
	for _, name := range []string{"new/dir/f", "old"} {
		got := entries(t, w.put(t, name, "hello"))
		want := []entry{{Name: name[strings.LastIndex(name, "/")+1:], Path: w.path(name), Type: "file"}}
		if diff := cmp.Diff(want, got); diff != "" || w.content(t, name) != "hello" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	var z bytes.Buffer
	zw := gzip.NewWriter(&z)
	_, _ = zw.Write([]byte("unpacked"))
	_ = zw.Close()
	entries(t, w.put(t, "z", z.String(), "Content-Encoding", "gzip"))
	if got := w.content(t, "z"); got != "unpacked" {
		t.Errorf("gzip: %q", got)
	}
	entries(t, w.put(t, "mode", "x", "Glovebox-Mode", "107751"))
	if st, err := os.Stat(w.path("mode")); err != nil || st.Mode() != 0o751 {
		t.Errorf("mode: %v, %v", st.Mode(), err)
	}
	if got := w.put(t, "large", strings.Repeat("x", 101)); got.StatusCode != 413 {
		t.Errorf("too large: %d %s", got.StatusCode, got.body)
	}
	if got := w.put(t, "exact", strings.Repeat("x", 100)); got.StatusCode != 200 {
		t.Errorf("as large as allowed: %d %s", got.StatusCode, got.body)
	}
}

func TestUpload_refused(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	w.write(t, "d/f", "")
	mkfifo(t, w.path("fifo"))
	raw := "application/octet-stream"
	tests := []struct {
		name, query, kind string
		headers           []string
		status            int
		message           string
	}{
		{"no path", "", raw, nil, 400, "path query parameter is required for raw body upload"},
		{"other type", "path=x", "text/plain", nil, 400, "unsupported content type: text/plain"},
		{"no type", "path=x", "", nil, 400, "unsupported content type: "},
		{"no boundary", "path=x", "multipart/form-data", nil, 400, "unsupported content type"},
		{"directory", "path=d", raw, nil, 400, "path is a directory: " + w.path("d")},
		{"fifo", "path=fifo", raw, nil, 400, "path is not a regular file: " + w.path("fifo")},
		{"device", "path=/dev/null", raw, nil, 400, "path is not a regular file: /dev/null"},
		{"own descriptor", "path=/proc/self/fd/1", raw, nil, 400, ""},
		{"below a file", "path=d/f/x", raw, nil, 400, "error ensuring directories: path is a file: "},
		{"unknown user", "path=x&username=eve", raw, nil, 401, "error looking up user 'eve': user: unknown user eve"},
		{"encoding", "path=x", raw, []string{"Content-Encoding", "br"}, 400, "error decompressing request body: unsupported Content-Encoding: br"},
		{"not gzip", "path=x", raw, []string{"Content-Encoding", "gzip"}, 400, "error decompressing request body"},
		{"mode", "path=x", raw, []string{"Glovebox-Mode", "rwx"}, 400, "Glovebox-Mode"},
		{"metadata value", "path=x", raw, []string{"X-Metadata-A", "\xff"}, 400, "invalid metadata"},
		{"metadata key", "path=x", raw, []string{"X-Metadata-" + strings.Repeat("a", 247), "v"}, 400, "invalid metadata"},
		{"metadata size", "path=x", raw, []string{"X-Metadata-A", strings.Repeat("v", 4096)}, 400, "invalid metadata"},
	}
	for _, tt := range tests {
		got := w.do(t, http.MethodPost, tt.query, strings.NewReader("content"), append(tt.headers, "Content-Type", tt.kind)...)
		if m := got.message(t); got.StatusCode != tt.status || !strings.HasPrefix(m, tt.message) {
			t.Errorf("%s: %d %q, want %d %q", tt.name, got.StatusCode, m, tt.status, tt.message)
		}
	}
}

func TestUpload_multipart(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *files.Options) { o.MaxParts = 3 })
	body, kind := form(t, "a.txt", "A", "sub/dir/b", "B", "~/c", "C")
	got := entries(t, w.do(t, http.MethodPost, "", body, "Content-Type", kind))
	want := []entry{
		{"a.txt", w.path("a.txt"), "file", nil}, {"b", w.path("sub/dir/b"), "file", nil}, {"c", w.path("c"), "file", nil},
	}
	if diff := cmp.Diff(want, got); diff != "" || w.content(t, "sub/dir/b") != "B" {
		t.Error(diff)
	}
	// A path in the query is where the file goes, whatever its part is called.
	body, kind = form(t, "../../evil", "E")
	if got := entries(t, w.do(t, http.MethodPost, "path=q", body, "Content-Type", kind)); got[0].Path != w.path("q") {
		t.Error(got)
	}
	// What leads out of the home resolves as E2B does: where it goes is for the
	// kernel to allow.
	body, kind = form(t, "sub/../../"+w.home[strings.LastIndex(w.home, "/")+1:]+"/back", "E")
	if got := entries(t, w.do(t, http.MethodPost, "", body, "Content-Type", kind)); got[0].Path != w.path("back") {
		t.Error(got)
	}
	body, kind = form(t, "x", "1", "y", "2", "./x", "3")
	res := w.do(t, http.MethodPost, "", body, "Content-Type", kind)
	if m := res.message(t); res.StatusCode != 400 || !strings.HasPrefix(m, "you cannot upload multiple files to the same path '"+w.path("x")+"'") ||
		!strings.HasSuffix(m, w.path("y")) || w.content(t, "x") != "1" {
		t.Errorf("%d %q", res.StatusCode, m)
	}
	body, kind = form(t, "1", "", "2", "", "3", "", "4", "")
	if res := w.do(t, http.MethodPost, "", body, "Content-Type", kind); res.StatusCode != 400 {
		t.Errorf("too many parts: %d", res.StatusCode)
	}
	res = w.do(t, http.MethodPost, "", strings.NewReader("--b\r\nContent-Disposition: form-data; name=file; filename=cut\r\n\r\nhalf"),
		"Content-Type", "multipart/form-data; boundary=b")
	if res.StatusCode != 400 {
		t.Errorf("cut off: %d %s", res.StatusCode, res.body)
	}
}

func TestUpload_metadata(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	if err := unix.Setxattr(w.home, "user.e2b.probe", nil, 0); err != nil {
		t.Skipf("needs a file system with user attributes: %v", err)
	}
	res := w.put(t, "f", "x", "X-Metadata-Author", "me & you", "X-Metadata-Empty", "")
	want := map[string]string{"author": "me & you", "empty": ""}
	if got := entries(t, res); len(got) != 1 || !cmp.Equal(got[0].Metadata, want) {
		t.Fatalf("%v", got)
	}
	if err := errors.Join(unix.Setxattr(w.path("f"), "user.e2b.inside", []byte("s\xff"), 0),
		unix.Setxattr(w.path("f"), "user.e2b.huge", bytes.Repeat([]byte("h"), 2000), 0),
		unix.Setxattr(w.path("f"), "user.other", []byte("kept"), 0), os.Symlink("f", w.path("link"))); err != nil {
		t.Fatal(err)
	}
	want["inside"], want["huge"] = "s\uFFFD", strings.Repeat("h", 2000)
	for _, name := range []string{"f", "link"} {
		if got := w.stat(t, name).GetMetadata(); !cmp.Equal(got, want) {
			t.Errorf("stat %s: %v", name, got)
		}
	}
	mv, err := w.rpc.Move(t.Context(), connect.NewRequest(&pb.MoveRequest{Source: "f", Destination: "g"}))
	if err != nil || !cmp.Equal(mv.Msg.GetEntry().GetMetadata(), want) {
		t.Errorf("move: %v, %v", mv, err)
	}
	if got := entries(t, w.put(t, "g", "x")); got[0].Metadata != nil || w.stat(t, "g").GetMetadata() != nil {
		t.Errorf("not cleared: %v", got)
	}
	var buf [8]byte
	if n, err := unix.Getxattr(w.path("g"), "user.other", buf[:]); err != nil || string(buf[:n]) != "kept" {
		t.Errorf("another's attribute: %q, %v", buf[:n], err)
	}
}

func TestUpload_fullDisk(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	w := start(t, nil)
	mnt := w.path("mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", mnt, "tmpfs", 0, "size=64k,nr_inodes=4"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mnt, unix.MNT_DETACH) })
	got := w.put(t, "mnt/f", strings.Repeat("x", 200<<10))
	if m := got.message(t); got.StatusCode != 507 || m != "attempted to write 204800 bytes: not enough disk space available" {
		t.Errorf("bytes: %d %q", got.StatusCode, m)
	}
	last := answer{}
	for _, name := range []string{"1", "2", "3", "4"} {
		last = w.put(t, "mnt/"+name, "")
	}
	if m := last.message(t); last.StatusCode != 507 || !strings.HasPrefix(m, "not enough inodes available") {
		t.Errorf("inodes: %d %q", last.StatusCode, m)
	}
}

func TestCompose(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	w.write(t, "1", "one ")
	w.write(t, "2", "two")
	w.write(t, "out", "old")
	mkfifo(t, w.path("fifo"))
	post := func(body string) answer {
		return w.do(t, http.MethodPost, "/compose", strings.NewReader(body), "Content-Type", "application/json")
	}
	refused := []struct {
		body    string
		status  int
		message string
	}{
		{"{", 400, "invalid request body: "},
		{`{"source_paths":[],"destination":"x"}`, 400, "source_paths must not be empty"},
		{`{"source_paths":["1"]}`, 400, "destination is required"},
		{`{"source_paths":["1","no"],"destination":"out"}`, 404, "source file not found: " + w.path("no")},
		{`{"source_paths":["1","fifo"],"destination":"out"}`, 400, "source path is not a regular file: "},
		{`{"source_paths":["1"],"destination":"./1"}`, 400, "source path "},
		{`{"source_paths":["1"],"destination":"x","username":"eve"}`, 401, "error looking up user 'eve'"},
	}
	for _, tt := range refused {
		got := post(tt.body)
		if m := got.message(t); got.StatusCode != tt.status || !strings.HasPrefix(m, tt.message) {
			t.Errorf("%s: %d %q", tt.body, got.StatusCode, m)
		}
	}
	if w.content(t, "out") != "old" || w.content(t, "1") != "one " {
		t.Error("a refused request changed files")
	}
	got := post(`{"source_paths":["1","~/2"],"destination":"new/out"}`)
	var e entry
	if err := json.Unmarshal([]byte(got.body), &e); err != nil || got.StatusCode != 200 || e.Path != w.path("new/out") || e.Type != "file" {
		t.Errorf("%d %s %v", got.StatusCode, got.body, err)
	}
	if w.content(t, "new/out") != "one two" {
		t.Errorf("%q", w.content(t, "new/out"))
	}
	left, err := w.list(t, "", 2)
	if err != nil || strings.Join(left, " ") != "fifo new new/out out" {
		t.Errorf("left %v, %v", left, err)
	}
}
