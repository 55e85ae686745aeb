//go:build linux

package files

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"mime"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxRanges bounds the parts of one ranged answer, each of which costs more
// than the bytes it holds.
const maxRanges = 16

// download is GET /files.
func (s *Service) download(w http.ResponseWriter, r *http.Request) {
	if err := s.serveFile(w, r); err != nil {
		writeError(w, err)
	}
}

// serveFile answers with the file; an error means nothing was answered yet.
func (s *Service) serveFile(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	acct, err := s.lookup(q.Get("username"))
	if err != nil {
		return err
	}
	path, err := s.resolve(q.Get("path"), acct)
	if err != nil {
		return refuse(http.StatusBadRequest, "error expanding and resolving path '%.200s': %w", q.Get("path"), err)
	}
	var f *file
	if err := s.as(acct, func() (err error) { f, err = openFile(path, unix.O_RDONLY, 0); return err }); err != nil {
		return readError(path, err)
	}
	defer func() { _ = f.Close() }()
	gz, err := acceptGzip(r.Header)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Vary", "Accept-Encoding")
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": valid(filepath.Base(path))}))
	if strings.Count(r.Header.Get("Range"), ",") >= maxRanges {
		r.Header.Del("Range")
	}
	modified := time.Unix(f.stat.Mtim.Unix())
	if gz && !conditional(r.Header) {
		return s.serveGzip(w, r, f, modified)
	}
	if t := contentType(path); t != "" {
		h.Set("Content-Type", t)
	} else if err := sniff(h, f); err != nil {
		return err
	}
	http.ServeContent(w, r, "", modified, f)
	return nil
}

// lookup is the account of a /files request.
func (s *Service) lookup(name string) (Account, error) {
	acct, err := s.opts.Lookup(name)
	if err != nil {
		return acct, refuse(http.StatusUnauthorized, "error looking up user '%s': %w", name, err)
	}
	return acct, nil
}

func readError(path string, err error) error {
	switch {
	case errors.Is(err, unix.EISDIR):
		return refuse(http.StatusBadRequest, "path '%s' is a directory", path)
	case errors.Is(err, errNotRegular):
		return refuse(http.StatusBadRequest, "path '%s' is not a regular file", path)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return refuse(http.StatusNotFound, "path '%s' does not exist", path)
	}
	return fmt.Errorf("error opening file '%s': %w", path, err)
}

// conditional reports whether the answer depends on the file's bytes or time,
// which those of a compressed body are not.
func conditional(h http.Header) bool {
	for _, name := range []string{"Range", "If-Modified-Since", "If-Unmodified-Since", "If-None-Match", "If-Match", "If-Range"} {
		if h.Get(name) != "" {
			return true
		}
	}
	return false
}

// sniff tells the type from the first bytes. Done here, so that a file that
// cannot be read is an error and not a broken answer.
func sniff(h http.Header, f *file) error {
	var head [512]byte
	n, err := io.ReadFull(f, head[:])
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("error reading file: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("error reading file: %w", err)
	}
	h.Set("Content-Type", http.DetectContentType(head[:n]))
	return nil
}

// serveGzip streams the file compressed. Files of no known size, as in /proc,
// are read to their end. After a failure half-way the stream lacks its end, so
// that no client takes it for the whole file.
func (s *Service) serveGzip(w http.ResponseWriter, r *http.Request, f *file, modified time.Time) error {
	h := w.Header()
	h.Set("Content-Encoding", "gzip")
	h.Set("Accept-Ranges", "bytes")
	h.Set("Last-Modified", modified.UTC().Format(http.TimeFormat))
	h.Set("Content-Type", "application/octet-stream")
	if t := contentType(f.path); t != "" {
		h.Set("Content-Type", t)
	}
	if r.Method == http.MethodHead {
		return nil
	}
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if _, err = s.copyTo(r.Context(), z, f, math.MaxInt64); err != nil {
		return nil //nolint:nilerr // the answer has begun
	}
	_ = z.Close() // the client is gone if this fails
	return nil
}
