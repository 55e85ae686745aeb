package envd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/glovebox-dev/glovebox/backend"
)

// request makes a request to /files.
func (f *files) request(ctx context.Context, method, remote string, body io.Reader) (*http.Request, error) {
	q := url.Values{"path": {remote}}
	if f.user != "" {
		q.Set("username", f.user)
	}
	return http.NewRequestWithContext(ctx, method, f.c.opts.BaseURL+"/files?"+q.Encode(), body)
}

// Open implements [backend.Filesystem]. The file is read as it is streamed;
// ctx bounds the reading too.
func (f *files) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	return f.OpenRange(ctx, name, 0, -1)
}

// OpenRange implements [backend.RangeOpener]. What lies past the file's end is
// empty.
func (f *files) OpenRange(ctx context.Context, name string, off, n int64) (io.ReadCloser, error) {
	w := where{op: "open", field: name, files: true}
	remote, err := f.remote(w, name)
	if err != nil {
		return nil, err
	}
	if off < 0 || n > 0 && off > math.MaxInt64-n {
		return nil, f.c.error(w, backend.ErrInvalid, errors.New("a range out of bounds"))
	}
	bctx, done, err := f.c.begin(ctx)
	if err != nil {
		return nil, f.c.fail(ctx, w, err)
	}
	body, err := f.open(bctx, remote, off, n)
	if err != nil {
		err = f.c.fail(bctx, w, err)
		done()
		return nil, err
	}
	return &download{
		body: body,
		fail: func(err error) error { return f.c.fail(bctx, w, err) },
		over: sync.OnceFunc(done),
	}, nil
}

func (f *files) open(ctx context.Context, remote string, off, n int64) (io.ReadCloser, error) {
	req, err := f.request(ctx, http.MethodGet, remote, nil)
	if err != nil {
		return nil, err
	}
	// Compressed, it could swell to anything on this side.
	req.Header.Set("Accept-Encoding", "identity")
	whole := off == 0 && n < 0
	if !whole {
		// One byte is asked for where none is wanted, to learn of errors.
		end := ""
		if n >= 0 {
			end = fmt.Sprint(off + max(n, 1) - 1)
		}
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%s", off, end))
	}
	res, err := f.c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if enc := res.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		_ = res.Body.Close()
		return nil, protocolf("a file in encoding %q", enc)
	}
	switch {
	case res.StatusCode == http.StatusOK && whole:
		return res.Body, nil
	case res.StatusCode == http.StatusOK:
		return part(res.Body, off, n)
	case res.StatusCode == http.StatusPartialContent && !whole:
		if !strings.HasPrefix(res.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", off)) {
			_ = res.Body.Close()
			return nil, protocolf("the range %q for one from %d", res.Header.Get("Content-Range"), off)
		}
		return part(res.Body, 0, n)
	case res.StatusCode == http.StatusRequestedRangeNotSatisfiable && !whole:
		_ = res.Body.Close()
		return http.NoBody, nil
	default:
		return nil, responseError(res)
	}
}

// part is n bytes of body from off, to the end when n is negative.
func part(body io.ReadCloser, off, n int64) (io.ReadCloser, error) {
	if _, err := io.CopyN(io.Discard, body, off); err != nil && !errors.Is(err, io.EOF) {
		_ = body.Close()
		return nil, err
	}
	if n < 0 {
		return body, nil
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(body, n), body}, nil
}

// download is a file that is being read.
type download struct {
	body io.ReadCloser
	fail func(error) error
	over func()
}

// Read implements [io.Reader].
func (d *download) Read(p []byte) (int, error) {
	n, err := d.body.Read(p)
	if err == nil || err == io.EOF {
		return n, err
	}
	return n, d.fail(err)
}

// Close ends the transfer, what has not been read included.
func (d *download) Close() error {
	d.over() // first: closing a body may read what is left of it
	_ = d.body.Close()
	return nil
}
