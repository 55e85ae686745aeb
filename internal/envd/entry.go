package envd

import (
	"io/fs"
	"math"
	"path"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/glovebox-dev/glovebox/backend"
	wirefs "github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem"
)

const (
	maxName = 255  // bytes of one name, the kernel's own end
	maxPath = 8192 // bytes of a path; the kernel takes 4096 at a time
	maxMeta = 4096 // bytes of a file's metadata, keys and values
)

// info is a file as the sandbox describes it, checked.
type info struct {
	name    string
	size    int64
	mode    fs.FileMode
	modTime time.Time
	attr    backend.FileAttr
}

func (i *info) Name() string       { return i.name }
func (i *info) Size() int64        { return i.size }
func (i *info) Mode() fs.FileMode  { return i.mode }
func (i *info) ModTime() time.Time { return i.modTime }
func (i *info) IsDir() bool        { return i.mode.IsDir() }
func (i *info) Sys() any           { return &i.attr }

// infoOfEntry checks what could mislead a caller who joins names, adds sizes
// or prints times.
func infoOfEntry(e *wirefs.EntryInfo) (*info, error) {
	switch {
	case e == nil:
		return nil, protocolf("no entry")
	case !validEntryName(e.GetName()):
		return nil, protocolf("the name %q", e.GetName())
	case len(e.GetPath()) > maxPath || !path.IsAbs(e.GetPath()) || strings.ContainsRune(e.GetPath(), 0):
		return nil, protocolf("the path %q", e.GetPath())
	case e.GetSize() < 0 || e.GetSize() == math.MaxInt64:
		return nil, protocolf("a size of %d", e.GetSize())
	case e.GetMode() > 0o177777:
		return nil, protocolf("a mode of %o", e.GetMode())
	case len(e.GetSymlinkTarget()) > maxPath || len(e.GetOwner()) > maxName || len(e.GetGroup()) > maxName:
		return nil, protocolf("an attribute of %q is too long", e.GetName())
	}
	meta := 0
	for k, v := range e.GetMetadata() {
		meta += len(k) + len(v)
	}
	if meta > maxMeta {
		return nil, protocolf("%d bytes of metadata", meta)
	}
	return &info{
		name: e.GetName(), size: e.GetSize(), mode: modeOf(e), modTime: timeOf(e.GetModifiedTime()),
		attr: backend.FileAttr{
			Owner: e.GetOwner(), Group: e.GetGroup(), Path: e.GetPath(),
			LinkTarget: e.GetSymlinkTarget(), Symlink: e.GetIsSymlink() || e.SymlinkTarget != nil,
			Metadata: e.GetMetadata(),
		},
	}, nil
}

// validEntryName accepts one element of a path, and "/" for the root itself.
func validEntryName(name string) bool {
	switch name {
	case "", ".", "..":
		return false
	case "/":
		return true
	}
	return len(name) <= 4*maxName && !strings.ContainsAny(name, "/\x00")
}

func modeOf(e *wirefs.EntryInfo) fs.FileMode {
	m := fs.FileMode(e.GetMode()) & fs.ModePerm
	for bit, flag := range map[uint32]fs.FileMode{
		0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky,
	} {
		if e.GetMode()&bit != 0 {
			m |= flag
		}
	}
	switch e.GetType() {
	case wirefs.FileType_FILE_TYPE_FILE:
	case wirefs.FileType_FILE_TYPE_DIRECTORY:
		m |= fs.ModeDir
	case wirefs.FileType_FILE_TYPE_SYMLINK:
		m |= fs.ModeSymlink
	case wirefs.FileType_FILE_TYPE_UNSPECIFIED:
		m |= fs.ModeIrregular
	default:
		m |= fs.ModeIrregular
	}
	return m
}

// timeOf is the zero time for what no calendar holds, which a program inside
// can give a file.
func timeOf(ts *timestamppb.Timestamp) time.Time {
	if ts == nil || ts.CheckValid() != nil {
		return time.Time{}
	}
	return ts.AsTime()
}

var _ fs.FileInfo = (*info)(nil)
