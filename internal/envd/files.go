package envd

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/glovebox-dev/glovebox/backend"
	wirefs "github.com/glovebox-dev/glovebox/internal/envd/wire/filesystem"
)

// files are the sandbox's files as one account sees them.
type files struct {
	c    *Client
	user string // "" for the client's
}

// Files is the sandbox's file system as the default account sees it. It offers
// UserFiles, RangeOpener, MetadataWriter and Watcher. Permission bits reach
// the agent only; E2B's envd gives files its own.
func (c *Client) Files() backend.Filesystem { return &files{c: c, user: c.opts.User} }

// FilesAs implements [backend.UserFiles].
func (f *files) FilesAs(user string) backend.Filesystem { return &files{c: f.c, user: user} }

// remote checks name and gives the form it has on the wire, where a leading
// tilde would be expanded.
func (f *files) remote(w where, name string) (string, error) {
	switch {
	case name == "":
		return "", f.c.error(w, backend.ErrInvalid, errors.New("an empty file name"))
	case strings.ContainsRune(name, 0):
		return "", f.c.error(w, backend.ErrInvalid, errors.New("a NUL byte in a file name"))
	case !utf8.ValidString(name):
		return "", f.c.error(w, backend.ErrInvalid, errors.New("a file name that is not valid UTF-8"))
	case len(name) > maxPath:
		return "", f.c.error(w, backend.ErrInvalid, errors.New("a file name that is too long"))
	case strings.HasPrefix(name, "~"):
		return "./" + name, nil
	}
	return name, nil
}

// removable refuses what would take the home directory or everything away.
func (f *files) removable(w where, name string) error {
	if c := path.Clean(name); c == "." || c == "/" {
		return f.c.error(w, backend.ErrInvalid, errors.New("the home or root directory itself cannot be removed or renamed"))
	}
	return nil
}

// Stat implements [backend.Filesystem].
func (f *files) Stat(ctx context.Context, name string) (fs.FileInfo, error) {
	w := where{op: "stat", field: name, files: true}
	remote, err := f.remote(w, name)
	if err != nil {
		return nil, err
	}
	i, err := f.stat(ctx, w, remote)
	if err != nil || !i.attr.Symlink || !path.IsAbs(i.attr.LinkTarget) {
		return orNil(i), err
	}
	// The wire tells a link's own size and times. Where it leads is resolved,
	// so that there is one more question at most.
	to, err := f.stat(ctx, w, i.attr.LinkTarget)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return i, nil // it leads nowhere
	case err != nil:
		return nil, err
	case to.attr.Symlink:
		return i, nil
	}
	i.size, i.mode, i.modTime = to.size, to.mode, to.modTime
	return i, nil
}

// orNil keeps a nil *info from being a FileInfo.
func orNil(i *info) fs.FileInfo {
	if i == nil {
		return nil
	}
	return i
}

func (f *files) stat(ctx context.Context, w where, remote string) (*info, error) {
	res, err := unary(ctx, f.c, w, f.user, &wirefs.StatRequest{Path: remote}, f.c.fs.Stat)
	if err != nil {
		return nil, err
	}
	i, err := infoOfEntry(res.GetEntry())
	if err != nil {
		return nil, f.c.fail(ctx, w, err)
	}
	return i, nil
}

// List implements [backend.Filesystem]. A directory of more than 16 MiB on the
// wire is ErrTooLarge.
func (f *files) List(ctx context.Context, name string) ([]fs.FileInfo, error) {
	w := where{op: "list", field: name, files: true}
	remote, err := f.remote(w, name)
	if err != nil {
		return nil, err
	}
	res, err := unary(ctx, f.c, w, f.user, &wirefs.ListDirRequest{Path: remote, Depth: 1}, f.c.fs.ListDir)
	if err != nil {
		return nil, err
	}
	list := make([]fs.FileInfo, 0, len(res.GetEntries()))
	for _, e := range res.GetEntries() {
		i, err := infoOfEntry(e)
		if err == nil && i.name == "/" {
			err = protocolf("the root as an entry")
		}
		if err != nil {
			return nil, f.c.fail(ctx, w, err)
		}
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b fs.FileInfo) int { return cmp.Compare(a.Name(), b.Name()) })
	return list, nil
}

// Mkdir implements [backend.Filesystem].
func (f *files) Mkdir(ctx context.Context, name string, perm fs.FileMode) error {
	w := where{op: "mkdir", field: name, files: true, mode: perm.Perm()}
	remote, err := f.remote(w, name)
	if err != nil {
		return err
	}
	_, err = unary(ctx, f.c, w, f.user, &wirefs.MakeDirRequest{Path: remote}, f.c.fs.MakeDir)
	if errors.Is(err, fs.ErrExist) {
		return nil // a file in its place is ErrInvalid
	}
	return err
}

// Rename implements [backend.Filesystem].
func (f *files) Rename(ctx context.Context, from, to string) error {
	w := where{op: "rename", field: from, files: true}
	source, err := f.remote(w, from)
	if err != nil {
		return err
	}
	if err := f.removable(w, from); err != nil {
		return err
	}
	wt := where{op: "rename", field: to, files: true}
	target, err := f.remote(wt, to)
	if err != nil {
		return err
	}
	if err := f.removable(wt, to); err != nil {
		return err
	}
	_, err = unary(ctx, f.c, w, f.user, &wirefs.MoveRequest{Source: source, Destination: target}, f.c.fs.Move)
	return err
}

// Remove implements [backend.Filesystem].
func (f *files) Remove(ctx context.Context, name string) error {
	w := where{op: "remove", field: name, files: true}
	remote, err := f.remote(w, name)
	if err != nil {
		return err
	}
	if err := f.removable(w, name); err != nil {
		return err
	}
	_, err = unary(ctx, f.c, w, f.user, &wirefs.RemoveRequest{Path: remote}, f.c.fs.Remove)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

var (
	_ backend.Filesystem     = (*files)(nil)
	_ backend.UserFiles      = (*files)(nil)
	_ backend.RangeOpener    = (*files)(nil)
	_ backend.MetadataWriter = (*files)(nil)
	_ backend.Watcher        = (*files)(nil)
)
