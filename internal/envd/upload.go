package envd

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

// maxMetaKey is the largest key of a file's metadata, in bytes.
const maxMetaKey = 246

// Write implements [backend.Filesystem]. r is streamed. It is not read any more
// once Write has returned, which therefore waits for a read under way; only
// when ctx ends does it leave one behind.
func (f *files) Write(ctx context.Context, name string, r io.Reader, perm fs.FileMode) error {
	return f.WriteMeta(ctx, name, r, perm, nil)
}

// WriteMeta implements [backend.MetadataWriter]. Keys become lower case.
func (f *files) WriteMeta(
	ctx context.Context, name string, r io.Reader, perm fs.FileMode, meta map[string]string,
) error {
	w := where{op: "write", field: name, files: true}
	remote, err := f.remote(w, name)
	if err != nil {
		return err
	}
	if err := validMeta(meta); err != nil {
		w.field = "metadata"
		return f.c.error(w, backend.ErrInvalid, err)
	}
	if r == nil {
		r = strings.NewReader("")
	}
	bctx, done, err := f.c.begin(ctx)
	if err != nil {
		return f.c.fail(ctx, w, err)
	}
	defer done()
	src := &upload{r: r, reading: make(chan struct{}, 1)}
	req, err := f.request(bctx, http.MethodPost, remote, nil)
	if err != nil {
		return f.c.error(w, backend.ErrInvalid, err)
	}
	f.fill(req, src)
	if perm != 0 {
		req.Header.Set(wire.HeaderMode, octal(perm))
	}
	for k, v := range meta {
		req.Header.Set(wire.HeaderMetadata+k, v)
	}
	res, err := f.c.http.Do(req)
	src.stop(bctx)
	switch {
	case err == nil && res.StatusCode == http.StatusOK:
		return f.c.fail(bctx, w, drain(res))
	case err == nil:
		return f.c.fail(bctx, w, responseError(res))
	case bctx.Err() == nil && src.failed() != nil:
		return fmt.Errorf("write %s: reading the data to write: %w", name, src.failed())
	default:
		return f.c.fail(bctx, w, err)
	}
}

// fill sets the request's body: raw, or multipart for an envd before 0.5.7.
func (f *files) fill(req *http.Request, src *upload) {
	size := sizeOf(src.r)
	body := io.Reader(src)
	req.Header.Set("Content-Type", "application/octet-stream")
	if before(f.c.opts.EnvdVersion, 0, 5, 7) {
		// Not a constant: what is uploaded could hold it.
		boundary := "glovebox-" + rand.Text()
		// The target is the query's path; the name here is a formality.
		head := "--" + boundary + "\r\nContent-Disposition: form-data; name=\"file\"; filename=\"file\"\r\n" +
			"Content-Type: application/octet-stream\r\n\r\n"
		tail := "\r\n--" + boundary + "--\r\n"
		req.Header.Set("Content-Type", "multipart/form-data; boundary="+boundary)
		body = io.MultiReader(strings.NewReader(head), src, strings.NewReader(tail))
		if size >= 0 {
			size += int64(len(head) + len(tail))
		}
	}
	req.Body, req.ContentLength = io.NopCloser(body), size
	if size == 0 {
		req.Body = http.NoBody
	}
}

// sizeOf is how much r holds, -1 when it does not tell.
func sizeOf(r io.Reader) int64 {
	switch r := r.(type) {
	case *bytes.Buffer:
		return int64(r.Len())
	case *bytes.Reader:
		return int64(r.Len())
	case *strings.Reader:
		return int64(r.Len())
	default:
		return -1
	}
}

// drain reads what a good answer holds, which is not needed.
func drain(res *http.Response) error {
	defer res.Body.Close()
	_, err := io.Copy(io.Discard, io.LimitReader(res.Body, maxErrorBody))
	return err
}

// upload is the caller's reader while a request is sent. The HTTP transport
// may go on reading after it has an answer; the caller's reader must not be.
type upload struct {
	r       io.Reader
	reading chan struct{} // held during a read
	over    atomic.Bool
	err     error // of r; under reading
}

// Read implements [io.Reader].
func (u *upload) Read(p []byte) (int, error) {
	u.reading <- struct{}{}
	defer func() { <-u.reading }()
	if u.over.Load() {
		return 0, errors.New("the request is over")
	}
	n, err := u.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		u.err = err
	}
	return n, err
}

// stop waits for the read under way, for as long as ctx lives.
func (u *upload) stop(ctx context.Context) {
	u.over.Store(true)
	select {
	case u.reading <- struct{}{}:
		<-u.reading
	case <-ctx.Done():
	}
}

// failed is the reader's own error. It must not be called when stop may have
// left a read under way.
func (u *upload) failed() error { return u.err }

func validMeta(meta map[string]string) error {
	total := 0
	for k, v := range meta {
		if k == "" || len(k) > maxMetaKey || strings.IndexFunc(k, notToken) >= 0 {
			return fmt.Errorf("the key %q is not 1 to %d letters, digits and punctuation of a header's name", k, maxMetaKey)
		}
		if strings.IndexFunc(v, notPrintable) >= 0 {
			return fmt.Errorf("the value of %q is not printable ASCII", k)
		}
		total += len(k) + len(v)
	}
	if total > maxMeta {
		return fmt.Errorf("%d bytes, at most %d are kept", total, maxMeta)
	}
	return nil
}

func notPrintable(r rune) bool { return r < ' ' || r > '~' }

func notToken(r rune) bool { return notPrintable(r) || strings.ContainsRune(" \"(),/:;<=>?@[\\]{}", r) }

// before tells whether version is known and older than major.minor.patch.
func before(version string, major, minor, patch int) bool {
	if version == "" {
		return false
	}
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	for i, want := range []int{major, minor, patch} {
		got := 0
		if i < len(parts) {
			digits, _, _ := strings.Cut(parts[i], "-")
			got, _ = strconv.Atoi(digits)
		}
		if got != want {
			return got < want
		}
	}
	return false
}
