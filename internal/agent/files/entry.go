//go:build linux

package files

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem"
)

// entry describes what is at path, shown to the client under that name. A link
// has its target's type and mode, as E2B reports it. The error is from lstat.
// It runs with the user's rights.
func (n *names) entry(path, shown string) (*filesystem.EntryInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	e := &filesystem.EntryInfo{
		Name:         valid(filepath.Base(shown)),
		Type:         fileType(info.Mode()),
		Path:         valid(shown),
		Size:         info.Size(),
		Mode:         uint32(info.Mode().Perm()),
		Permissions:  info.Mode().String(),
		ModifiedTime: timestamppb.New(info.ModTime()),
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		e.Owner, e.Group = n.owner(st.Uid), n.group(st.Gid)
	}
	link := info.Mode()&fs.ModeSymlink != 0
	if link {
		describeLink(e, path)
	}
	// Other kinds of files cannot carry user attributes.
	if e.Type == filesystem.FileType_FILE_TYPE_FILE || e.Type == filesystem.FileType_FILE_TYPE_DIRECTORY {
		e.Metadata = metadata(path, link)
	}
	return e, nil
}

// describeLink adds where the link at path leads. One that leads nowhere keeps
// the text of the link and has no type.
func describeLink(e *filesystem.EntryInfo, path string) {
	e.IsSymlink = true
	e.Type, e.Mode = filesystem.FileType_FILE_TYPE_UNSPECIFIED, 0
	target, err := filepath.EvalSymlinks(path)
	if err == nil {
		var info fs.FileInfo
		if info, err = os.Stat(target); err == nil {
			e.Type, e.Mode = fileType(info.Mode()), uint32(info.Mode().Perm())
		}
	} else {
		target, err = os.Readlink(path)
		if err != nil {
			return
		}
	}
	target = valid(target)
	e.SymlinkTarget = &target
}

func fileType(m fs.FileMode) filesystem.FileType {
	switch {
	case m.IsRegular():
		return filesystem.FileType_FILE_TYPE_FILE
	case m.IsDir():
		return filesystem.FileType_FILE_TYPE_DIRECTORY
	default:
		return filesystem.FileType_FILE_TYPE_UNSPECIFIED
	}
}

// errIsFile says that a directory was wanted where a file is.
type errIsFile string

func (e errIsFile) Error() string { return "path is a file: " + string(e) }
func (e errIsFile) Unwrap() error { return unix.ENOTDIR }

// ensureDir makes path and its missing parents directories. It runs with the
// user's rights, so they belong to that user.
func ensureDir(path string) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return errIsFile(path)
	case errors.Is(err, unix.ENOTDIR):
		return errIsFile(filepath.Dir(path))
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if parent := filepath.Dir(path); parent != path {
		if err := ensureDir(parent); err != nil {
			return err
		}
	}
	err = os.Mkdir(path, 0o777)
	if errors.Is(err, fs.ErrExist) {
		// Someone else made it meanwhile, or a link that leads nowhere.
		if info, serr := os.Stat(path); serr == nil && info.IsDir() {
			return nil
		}
	}
	return err
}
