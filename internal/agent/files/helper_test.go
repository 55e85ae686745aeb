//go:build linux

package files_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/agent/files"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem/filesystemconnect"
)

// world is a running service and the home of its user.
type world struct {
	home string
	url  string
	http *http.Client
	rpc  filesystemconnect.FilesystemClient
	svc  *files.Service
}

// start serves home for the account "user", who is this process itself unless
// edit says otherwise.
func start(t *testing.T, edit func(*files.Options)) *world {
	t.Helper()
	home := t.TempDir()
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	opts := files.Options{
		OwnUID: true,
		Lookup: func(name string) (files.Account, error) {
			if name != "" && name != "user" {
				return files.Account{}, fmt.Errorf("user: unknown user %s", name)
			}
			return files.Account{Name: "user", UID: uid, GID: gid, Home: home}, nil
		},
		OwnerName: func(id uint32) string {
			if id == uid {
				return "user"
			}
			return ""
		},
	}
	if edit != nil {
		edit(&opts)
	}
	svc := files.New(opts)
	mux := http.NewServeMux()
	svc.Mount(mux)
	srv := httptest.NewServer(mux)
	t.Cleanup(func() {
		if err := svc.Close(); err != nil {
			t.Error(err)
		}
		srv.Close()
	})
	return &world{
		home: home, url: srv.URL, http: srv.Client(), svc: svc,
		rpc: filesystemconnect.NewFilesystemClient(srv.Client(), srv.URL, connect.WithProtoJSON()),
	}
}

func (w *world) path(name string) string { return filepath.Join(w.home, name) }

func (w *world) write(t *testing.T, name, content string) string {
	t.Helper()
	p := w.path(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
	return p
}

// answer is an HTTP answer, read.
type answer struct {
	*http.Response
	body string
}

func (w *world) do(t *testing.T, method, query string, body io.Reader, headers ...string) answer {
	t.Helper()
	url := w.url + "/files"
	if strings.HasPrefix(query, "/") {
		url += query
	} else {
		url += "?" + query
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	// Otherwise the transport asks for gzip and unpacks it unseen.
	req.Header.Set("Accept-Encoding", "identity")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	if req.Header.Get("Accept-Encoding") == "none" {
		req.Header.Del("Accept-Encoding")
	}
	res, err := w.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res, string(data)}
}

func (w *world) get(t *testing.T, path string, headers ...string) answer {
	t.Helper()
	return w.do(t, http.MethodGet, "path="+escape(path), nil, headers...)
}

func (w *world) put(t *testing.T, path, content string, headers ...string) answer {
	t.Helper()
	return w.do(t, http.MethodPost, "path="+escape(path), strings.NewReader(content),
		append([]string{"Content-Type", "application/octet-stream"}, headers...)...)
}

// message is the text of an error answer, checked for its shape.
func (a answer) message(t *testing.T) string {
	t.Helper()
	var e struct {
		Code    int
		Message string
	}
	if err := json.Unmarshal([]byte(a.body), &e); err != nil || e.Code != a.StatusCode {
		t.Errorf("error body %q with status %d: %v", a.body, a.StatusCode, err)
	}
	return e.Message
}

// form is a multipart body of parts named file with these names and contents.
func form(t *testing.T, parts ...string) (io.Reader, string) {
	t.Helper()
	var buf bytes.Buffer
	mw := multipart.NewWriter(&buf)
	for i := 0; i < len(parts); i += 2 {
		h := textproto.MIMEHeader{"Content-Disposition": {`form-data; name="file"; filename="` + parts[i] + `"`}}
		part, err := mw.CreatePart(h)
		if err == nil {
			_, err = io.WriteString(part, parts[i+1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := mw.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf, mw.FormDataContentType()
}

func escape(s string) string { return url.QueryEscape(s) }

func mkfifo(t *testing.T, path string) {
	t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}

// wantCode checks the code of an RPC error and how its message begins.
func wantCode(t *testing.T, err error, code connect.Code, prefix string) {
	t.Helper()
	var ce *connect.Error
	if !errors.As(err, &ce) || ce.Code() != code || !strings.HasPrefix(ce.Message(), prefix) {
		t.Errorf("got %v, want %s: %s...", err, code, prefix)
	}
}
