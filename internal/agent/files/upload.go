//go:build linux

package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"mime/multipart"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

// uploaded is one file in the answer to an upload.
type uploaded struct {
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func newUploaded(path string) uploaded {
	return uploaded{Name: valid(filepath.Base(path)), Path: valid(path), Type: "file"}
}

// put is what the headers of an upload ask of each of its files.
type put struct {
	s      *Service
	acct   Account
	meta   map[string]string
	mode   *uint32 // permission bits to set; nil leaves them
	length int64   // of the request, for the error on a full disk
}

// upload is POST /files.
func (s *Service) upload(w http.ResponseWriter, r *http.Request) {
	done, err := s.receive(r)
	if err != nil {
		writeError(w, err)
		return
	}
	// The type is E2B's, though the body is JSON.
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_ = json.NewEncoder(w).Encode(done) // the client is gone if this fails
}

func (s *Service) receive(r *http.Request) ([]uploaded, error) {
	q := r.URL.Query()
	content, err := body(r)
	if err != nil {
		return nil, err
	}
	p := put{s: s, length: r.ContentLength}
	if p.acct, err = s.lookup(q.Get("username")); err != nil {
		return nil, err
	}
	if p.meta, err = metadataHeaders(r.Header); err != nil {
		return nil, err
	}
	if p.mode, err = modeHeader(r.Header); err != nil {
		return nil, err
	}
	var target *string
	if q.Has("path") {
		path := q.Get("path")
		target = &path
	}
	header := r.Header.Get("Content-Type")
	media, params, _ := mime.ParseMediaType(header) // what it made of a malformed one is refused below
	switch {
	case media == "application/octet-stream" && target == nil:
		return nil, refuse(http.StatusBadRequest, "path query parameter is required for raw body upload")
	case media == "application/octet-stream":
		path, err := s.resolve(*target, p.acct)
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "error resolving path: %w", err)
		}
		done, err := p.store(r.Context(), path, content)
		return []uploaded{done}, err
	case strings.HasPrefix(media, "multipart/") && params["boundary"] != "":
		return p.multipart(r.Context(), multipart.NewReader(content, params["boundary"]), target)
	}
	return nil, refuse(http.StatusBadRequest,
		"unsupported content type: %.200s, expected multipart/form-data or application/octet-stream", header)
}

// modeHeader reads the permission bits that an upload asks for.
func modeHeader(h http.Header) (*uint32, error) {
	value := h.Get(wire.HeaderMode)
	if value == "" {
		return nil, nil //nolint:nilnil // absent is not an error
	}
	n, err := strconv.ParseUint(value, 8, 32)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%s: %.50q is not an octal number", wire.HeaderMode, value)
	}
	mode := uint32(n) & 0o777
	return &mode, nil
}

// multipart stores the parts named file, each at target or else at the path
// its file name tells.
func (p *put) multipart(ctx context.Context, parts *multipart.Reader, target *string) ([]uploaded, error) {
	done, seen := []uploaded{}, map[string]bool{}
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return done, nil
		}
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "error reading form: %w", err)
		}
		if part.FormName() != "file" {
			continue
		}
		path, err := p.target(part, target)
		if err != nil {
			return nil, err
		}
		if seen[path] {
			return nil, duplicate(path, done)
		}
		if len(done) >= p.s.opts.MaxParts {
			return nil, refuse(http.StatusBadRequest, "more than %d files in one upload; send the rest in another", p.s.opts.MaxParts)
		}
		file, err := p.store(ctx, path, part)
		if err != nil {
			return nil, err
		}
		done = append(done, file)
		seen[path] = true
	}
}

// target is where a part goes. Part.FileName would cut directories off.
func (p *put) target(part *multipart.Part, target *string) (string, error) {
	var name string
	if target != nil {
		name = *target
	} else {
		_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		var ok bool
		if name, ok = params["filename"]; err == nil && !ok {
			err = errors.New("filename not found in Content-Disposition header")
		}
		if err != nil {
			return "", refuse(http.StatusBadRequest, "error getting multipart custom part file name: %w", err)
		}
	}
	path, err := p.s.resolve(name, p.acct)
	if err != nil {
		return "", refuse(http.StatusBadRequest, "error resolving path: %w", err)
	}
	return path, nil
}

func duplicate(path string, done []uploaded) error {
	var others []string
	for _, u := range done {
		if u.Path != valid(path) && len(others) < 100 {
			others = append(others, u.Path)
		}
	}
	err := fmt.Errorf("you cannot upload multiple files to the same path '%s' in one upload request, only the first specified file was uploaded", path)
	if len(others) > 0 {
		err = fmt.Errorf("%w, also the following files were uploaded: %s", err, strings.Join(others, ", "))
	}
	return refuse(http.StatusBadRequest, "%w", err)
}

// store writes content to path, replacing what the file there held.
func (p *put) store(ctx context.Context, path string, content io.Reader) (uploaded, error) {
	done := newUploaded(path)
	var f *file
	err := p.s.as(p.acct, func() (err error) {
		if err := ensureDir(filepath.Dir(path)); err != nil {
			return fmt.Errorf("error ensuring directories: %w", err)
		}
		if f, err = p.open(path); err != nil {
			return err
		}
		done.Metadata = fileMetadata(f.fd)
		return nil
	})
	if err != nil {
		return done, err
	}
	// The bytes are written with the agent's rights: the descriptor has been
	// granted, and a slow client must not hold a thread.
	err = p.write(ctx, f, content)
	if cerr := f.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("error writing file: %w", cerr)
	}
	return done, err
}

// open prepares the file at path: empty, with the mode and metadata asked for.
func (p *put) open(path string) (*file, error) {
	perm := uint32(0o666)
	if p.mode != nil {
		perm = *p.mode
	}
	const flags = unix.O_WRONLY | unix.O_CREAT
	mode := p.mode
	f, err := openFile(path, flags, perm)
	if old, ok := makeWritable(path, err); ok {
		if mode == nil {
			mode = &old
		}
		f, err = openFile(path, flags, perm)
	}
	switch {
	case errors.Is(err, unix.EISDIR):
		return nil, refuse(http.StatusBadRequest, "path is a directory: %s", path)
	case errors.Is(err, errNotRegular):
		return nil, refuse(http.StatusBadRequest, "path is not a regular file: %s", path)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return nil, refuse(http.StatusInsufficientStorage, "not enough inodes available: %w", err)
	case err != nil:
		return nil, fmt.Errorf("error opening file: %w", err)
	}
	if err = setMetadata(f.fd, p.meta); err == nil && mode != nil {
		err = unix.Fchmod(f.fd, *mode)
	}
	if err == nil {
		err = unix.Ftruncate(f.fd, 0)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("error preparing file: %w", err)
	}
	return f, nil
}

// makeWritable lets the user write to a file of its own that is read-only, if
// that is why opening it failed: E2B writes with root's rights. It gives the
// permission bits to set again.
func makeWritable(path string, failed error) (uint32, bool) {
	var st unix.Stat_t
	if !errors.Is(failed, unix.EACCES) || unix.Stat(path, &st) != nil ||
		st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o200 != 0 {
		return 0, false
	}
	old := st.Mode & 0o777
	return old, unix.Fchmodat(unix.AT_FDCWD, path, old|0o200, 0) == nil
}

func (p *put) write(ctx context.Context, f *file, content io.Reader) error {
	limit := int64(math.MaxInt64 - 1)
	if p.s.opts.MaxUpload > 0 {
		limit = p.s.opts.MaxUpload
	}
	in := &inputError{r: content}
	n, err := p.s.copyTo(ctx, f, in, limit+1)
	switch {
	case err == nil && n > limit:
		return refuse(http.StatusRequestEntityTooLarge, "error writing file: more than the %d bytes that one file may have", limit)
	case err == nil:
		return nil
	case in.err != nil:
		return refuse(http.StatusBadRequest, "error reading request body: %w", in.err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return noSpace(p.length)
	}
	return fmt.Errorf("error writing file: %w", err)
}

func noSpace(length int64) error {
	err := errors.New("not enough disk space available")
	if length > 0 {
		err = fmt.Errorf("attempted to write %d bytes: %w", length, err)
	}
	return refuse(http.StatusInsufficientStorage, "%w", err)
}

// inputError remembers that reading failed, which is the client's doing.
type inputError struct {
	r   io.Reader
	err error
}

func (r *inputError) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}
