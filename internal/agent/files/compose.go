//go:build linux

package files

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Bounds of one compose request.
const (
	maxComposeBody    = 4 << 20
	maxComposeSources = 10_000
)

// compose is POST /files/compose: it joins files into one and deletes them.
func (s *Service) compose(w http.ResponseWriter, r *http.Request) {
	path, err := s.join(r) //nolint:contextcheck // it has the request
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(newUploaded(path)) // the client is gone if this fails
}

func (s *Service) join(r *http.Request) (string, error) {
	var req struct {
		Sources     []string `json:"source_paths"`
		Destination string   `json:"destination"`
		Username    string   `json:"username"`
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, maxComposeBody)).Decode(&req); err != nil {
		return "", refuse(http.StatusBadRequest, "invalid request body: %w", err)
	}
	switch {
	case len(req.Sources) == 0:
		return "", refuse(http.StatusBadRequest, "source_paths must not be empty")
	case len(req.Sources) > maxComposeSources:
		return "", refuse(http.StatusBadRequest, "source_paths has %d entries, the limit is %d", len(req.Sources), maxComposeSources)
	case req.Destination == "":
		return "", refuse(http.StatusBadRequest, "destination is required")
	}
	acct, err := s.lookup(req.Username)
	if err != nil {
		return "", err
	}
	to, err := s.resolve(req.Destination, acct)
	if err != nil {
		return "", refuse(http.StatusBadRequest, "error resolving destination path: %w", err)
	}
	for i, src := range req.Sources {
		path, err := s.resolve(src, acct)
		if err != nil {
			return "", refuse(http.StatusBadRequest, "error resolving source path %.200q: %w", src, err)
		}
		if path == to {
			return "", refuse(http.StatusBadRequest, "source path %q cannot be the same as destination", src)
		}
		req.Sources[i] = path
	}
	return to, s.as(acct, func() error {
		if err := checkSources(req.Sources); err != nil {
			return err
		}
		if err := ensureDir(filepath.Dir(to)); err != nil {
			return fmt.Errorf("error ensuring directories: %w", err)
		}
		if err := s.assemble(r.Context(), req.Sources, to, 0o666, nil); err != nil {
			return err
		}
		for _, src := range req.Sources {
			_ = unix.Unlink(src) // the file is composed; what stays behind does no harm
		}
		return nil
	})
}

// checkSources refuses early what cannot be joined, before anything is made.
func checkSources(sources []string) error {
	for _, src := range sources {
		info, err := os.Stat(src)
		switch {
		case errors.Is(err, os.ErrPermission):
			return fmt.Errorf("error opening source file: %w", err)
		case err != nil:
			return refuse(http.StatusNotFound, "source file not found: %s", src)
		case !info.Mode().IsRegular():
			return refuse(http.StatusBadRequest, "source path is not a regular file: %s", src)
		}
	}
	return nil
}

// assemble joins sources in a new file beside to and puts it in to's place; on
// failure to is as it was. It runs with the user's rights.
func (s *Service) assemble(ctx context.Context, sources []string, to string, perm uint32, prepare func(fd int) error) error {
	temp := filepath.Join(filepath.Dir(to), ".compose-"+rand.Text())
	out, err := openFile(temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, perm)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return noSpace(0)
	}
	if err != nil {
		return fmt.Errorf("error creating destination file: %w", err)
	}
	for _, src := range sources {
		if err == nil {
			err = s.appendFile(ctx, out, src)
		}
	}
	if err == nil && prepare != nil {
		err = prepare(out.fd)
	}
	if cerr := out.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("error closing destination file: %w", cerr)
	}
	if err == nil {
		if err = os.Rename(temp, to); err != nil {
			err = fmt.Errorf("error finalizing: %w", err)
		}
	}
	if err != nil {
		_ = unix.Unlink(temp) // the first error counts
	}
	return err
}

// appendFile copies what src holds now; what is appended meanwhile stays out,
// so a file that grows cannot keep it busy for ever.
func (s *Service) appendFile(ctx context.Context, out *file, src string) error {
	in, err := openFile(src, unix.O_RDONLY, 0)
	if errors.Is(err, errNotRegular) || errors.Is(err, unix.EISDIR) {
		return refuse(http.StatusBadRequest, "source path is not a regular file: %s", src)
	}
	if err != nil {
		return fmt.Errorf("error opening source file: %w", err)
	}
	defer func() { _ = in.Close() }()
	limit := in.stat.Size
	if limit == 0 {
		limit = math.MaxInt64 // files in /proc have no size
	}
	_, err = s.copyTo(ctx, out, in, limit)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return noSpace(0)
	}
	if err != nil {
		return fmt.Errorf("error composing source %s: %w", src, err)
	}
	return nil
}

// moveAcross moves a regular file to another file system, with its mode, time
// and metadata.
func (s *Service) moveAcross(ctx context.Context, from, to string) error {
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: from, Err: err}
	}
	meta := metadata(from, false)
	err := s.assemble(ctx, []string{from}, to, st.Mode&0o777, func(fd int) error {
		if err := setMetadata(fd, meta); err != nil {
			return err
		}
		return unix.Fchmod(fd, st.Mode&0o777)
	})
	if err != nil {
		return err
	}
	_ = unix.UtimesNanoAt(unix.AT_FDCWD, to, []unix.Timespec{st.Atim, st.Mtim}, 0) // a time is not worth failing for
	return os.Remove(from)
}
