//go:build linux

// Package treecopy keeps the files of a directory that nobody changes
// meanwhile in two plain files, an index and their contents, and makes them
// again elsewhere: holes, hard links, times and owners included. Names and
// links are a sandbox's and never followed. Sockets and devices are left out.
package treecopy

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// entry is a line of the index. Entries come in the order of a walk that goes
// into each directory at once.
type entry struct {
	Depth int    `json:"d"` // directories between it and the top
	Kind  kind   `json:"k"`
	Name  []byte `json:"n"` // any bytes but a slash
	Mode  uint32 `json:"m,omitempty"`
	UID   uint32 `json:"u,omitempty"`
	GID   uint32 `json:"g,omitempty"`
	Time  int64  `json:"t,omitempty"` // of the last change, in nanoseconds
	Size  int64  `json:"s,omitempty"`
	// Runs are where the contents lie that are not holes; they follow one
	// another in the file of contents.
	Runs []run `json:"r,omitempty"`
	// Target is what a symbolic link says.
	Target []byte `json:"l,omitempty"`
	// Link is, from 1 on, the number of a file with several names. The first
	// entry of a number has the contents.
	Link int `json:"i,omitempty"`
}

type run struct {
	Off int64 `json:"o"`
	Len int64 `json:"n"`
}

type kind string

const (
	directory kind = "dir"
	regular   kind = "file"
	symlink   kind = "link"
	fifo      kind = "fifo"
	again     kind = "again" // another name of the regular file Link
)

// maxLine bounds an entry as JSON: a file with a hole at every other page of
// 256 MiB fits.
const maxLine = 8 << 20

// check refuses what no walk would write.
//
// Security: a name is one step down and nothing else.
func (e *entry) check() error {
	switch {
	case len(e.Name) == 0 || len(e.Name) > unix.NAME_MAX || bytes.ContainsAny(e.Name, "/\x00") ||
		string(e.Name) == "." || string(e.Name) == "..":
		return fmt.Errorf("the name %.40q", e.Name)
	case e.Depth < 0 || e.Mode&^0o7777 != 0 || e.Size < 0 || e.Link < 0:
		return errors.New("a number out of range")
	case e.Kind != symlink && len(e.Target) > 0, e.Kind == symlink && (len(e.Target) == 0 || bytes.ContainsRune(e.Target, 0)):
		return errors.New("the target of a link")
	}
	last := int64(0)
	for _, r := range e.Runs {
		if r.Off < last || r.Len <= 0 || r.Len > e.Size || r.Off > e.Size-r.Len {
			return errors.New("contents out of order")
		}
		last = r.Off + r.Len
	}
	return nil
}

// Totals are what was copied.
type Totals struct {
	Entries int
	Bytes   int64 // of contents
	Left    int   // entries that were left out
}

// ErrTooLarge says that there is more than the caller allowed.
var ErrTooLarge = errors.New("the files are larger than their limit")
