//go:build linux

package files

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

// Metadata lives in extended attributes below this prefix, where code in the
// sandbox may set it too.
const (
	metadataPrefix = "user.e2b."
	maxMetaKey     = 246
	maxMetadata    = 4096
)

// metadataHeaders reads the metadata that an upload's headers ask for.
func metadataHeaders(h http.Header) (map[string]string, error) {
	var meta map[string]string
	total := 0
	for name, values := range h {
		rest, ok := strings.CutPrefix(name, wire.HeaderMetadata)
		key := strings.ToLower(rest)
		if !ok || key == "" || len(values) == 0 {
			continue
		}
		value := values[0]
		switch {
		case len(key) > maxMetaKey:
			return nil, refuse(http.StatusBadRequest, "invalid metadata: key of %d bytes, the limit is %d", len(key), maxMetaKey)
		case !printable(key):
			return nil, refuse(http.StatusBadRequest, "invalid metadata: key %q is not printable ASCII", key)
		case !printable(value):
			return nil, refuse(http.StatusBadRequest, "invalid metadata: value of %q is not printable ASCII", key)
		}
		if total += len(key) + len(value); total > maxMetadata {
			return nil, refuse(http.StatusBadRequest, "invalid metadata: more than %d bytes together", maxMetadata)
		}
		if meta == nil {
			meta = map[string]string{}
		}
		meta[key] = value
	}
	return meta, nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// setMetadata makes meta the metadata of the file fd, dropping all it had.
// A file system without attributes is an error only if there is any to set.
func setMetadata(fd int, meta map[string]string) error {
	old, err := listAttrs(func(buf []byte) (int, error) { return unix.Flistxattr(fd, buf) })
	for _, attr := range old {
		if _, keep := meta[attr[len(metadataPrefix):]]; keep {
			continue
		}
		if err = unix.Fremovexattr(fd, attr); errors.Is(err, unix.ENODATA) {
			err = nil
		}
		if err != nil {
			break
		}
	}
	for key, value := range meta {
		if err != nil {
			break
		}
		err = unix.Fsetxattr(fd, metadataPrefix+key, []byte(value), 0)
	}
	switch {
	case errors.Is(err, unix.ENOTSUP) && len(meta) == 0:
		return nil
	case errors.Is(err, unix.ENOTSUP):
		return refuse(http.StatusNotImplemented, "the file system does not support file metadata (user extended attributes)")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.E2BIG):
		return refuse(http.StatusInsufficientStorage, "not enough space for file metadata: %w", err)
	case err != nil:
		return fmt.Errorf("error writing file metadata: %w", err)
	}
	return nil
}

// metadata reads what path carries, nil when nothing or not readable. Links
// are followed when follow says so. More than maxMetadata bytes, which only
// code inside can have set, are left out in the order of the keys.
func metadata(path string, follow bool) map[string]string {
	list, get := unix.Llistxattr, unix.Lgetxattr
	if follow {
		list, get = unix.Listxattr, unix.Getxattr
	}
	attrs, err := listAttrs(func(buf []byte) (int, error) { return list(path, buf) })
	if err != nil {
		return nil
	}
	return readAttrs(attrs, func(attr string, buf []byte) (int, error) { return get(path, attr, buf) })
}

func readAttrs(attrs []string, get func(string, []byte) (int, error)) map[string]string {
	var meta map[string]string
	room := maxMetadata
	var buf [maxMetadata]byte
	for _, attr := range attrs {
		n, err := get(attr, buf[:])
		key := attr[len(metadataPrefix):]
		if err != nil || n < 0 || n > len(buf) || len(key)+n > room {
			continue
		}
		room -= len(key) + n
		if meta == nil {
			meta = map[string]string{}
		}
		meta[valid(key)] = valid(string(buf[:n]))
	}
	return meta
}

// listAttrs names the metadata attributes that list finds, sorted.
func listAttrs(list func([]byte) (int, error)) ([]string, error) {
	var small [1024]byte
	buf := small[:]
	n, err := list(buf)
	if errors.Is(err, unix.ERANGE) {
		buf = make([]byte, 64<<10) // the kernel's XATTR_LIST_MAX
		n, err = list(buf)
	}
	if err != nil || n <= 0 || n > len(buf) {
		return nil, err
	}
	var attrs []string
	for attr := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if len(attr) > len(metadataPrefix) && strings.HasPrefix(attr, metadataPrefix) {
			attrs = append(attrs, attr)
		}
	}
	slices.Sort(attrs)
	return attrs, nil
}

// fileMetadata is metadata for an open file.
func fileMetadata(fd int) map[string]string {
	attrs, err := listAttrs(func(buf []byte) (int, error) { return unix.Flistxattr(fd, buf) })
	if err != nil {
		return nil
	}
	return readAttrs(attrs, func(attr string, buf []byte) (int, error) { return unix.Fgetxattr(fd, attr, buf) })
}
