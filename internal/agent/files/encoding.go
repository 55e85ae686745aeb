//go:build linux

package files

import (
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// acceptGzip reports whether a GET is to be answered compressed: gzip must be
// named, be acceptable and not come after identity. No acceptable encoding at
// all is 406. "*" stands for identity where that is acceptable.
func acceptGzip(h http.Header) (bool, error) {
	gz, identity, any := -1.0, -1.0, -1.0
	gzFirst := false
	for item := range strings.SplitSeq(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		name, params, _ := strings.Cut(item, ";")
		q := quality(params)
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "gzip":
			gzFirst = gzFirst || identity < 0
			gz = q
		case "identity":
			identity = q
		case "*":
			any = q
		}
	}
	refused := identity == 0 || identity < 0 && any == 0
	switch {
	case gz > 0 && (gz > identity || gz == identity && gzFirst):
		return true, nil
	case !refused:
		return false, nil
	case any > 0 && gz < 0:
		return true, nil
	}
	return false, refuse(http.StatusNotAcceptable, "error parsing Accept-Encoding: no acceptable encoding found, supported: [gzip identity]")
}

// quality is the q parameter of an encoding, 1 when absent or malformed.
func quality(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(p), "=")
		if !strings.EqualFold(name, "q") {
			continue
		}
		if q, err := strconv.ParseFloat(value, 64); err == nil && q >= 0 && q <= 1 {
			return q
		}
	}
	return 1
}

// body is a request's content, decompressed as its Content-Encoding says. The
// server closes what is below it.
func body(r *http.Request) (io.Reader, error) {
	header := r.Header.Get("Content-Encoding")
	name, _, _ := strings.Cut(header, ";")
	switch strings.ToLower(strings.TrimSpace(name)) {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "error decompressing request body: failed to create gzip reader: %w", err)
		}
		return z, nil
	}
	return nil, refuse(http.StatusBadRequest, "error decompressing request body: unsupported Content-Encoding: %s, supported: [gzip]", header)
}

// contentType is the type that a file's extension tells, "" when unknown. The
// table is ours: the mime package would read files of the sandbox to build its
// own.
func contentType(path string) string {
	dot := strings.LastIndexByte(path, '.')
	if dot < 0 || strings.IndexByte(path[dot:], '/') >= 0 {
		return ""
	}
	switch strings.ToLower(path[dot:]) {
	case ".txt", ".log", ".py", ".sh", ".go", ".c", ".h", ".ts", ".toml", ".ini":
		return "text/plain; charset=utf-8"
	case ".md":
		return "text/markdown; charset=utf-8"
	case ".csv":
		return "text/csv; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".htm", ".html":
		return "text/html; charset=utf-8"
	case ".js", ".mjs":
		return "text/javascript; charset=utf-8"
	case ".xml":
		return "text/xml; charset=utf-8"
	case ".json":
		return "application/json"
	case ".pdf":
		return "application/pdf"
	case ".wasm":
		return "application/wasm"
	case ".zip":
		return "application/zip"
	case ".gz", ".tgz":
		return "application/gzip"
	case ".gif":
		return "image/gif"
	case ".jpg", ".jpeg":
		return "image/jpeg"
	case ".png":
		return "image/png"
	case ".svg":
		return "image/svg+xml"
	case ".webp":
		return "image/webp"
	}
	return ""
}
