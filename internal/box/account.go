//go:build linux

package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
)

// Account is the account that a USER line means, without its group: "" for
// none, else one that commands of a sandbox can run as. field names what is
// refused.
func Account(driver, field, user string) (string, error) {
	name, _, _ := strings.Cut(user, ":")
	switch name {
	case "", backend.DefaultUser, "root":
		return name, nil
	case "0":
		return "root", nil
	}
	return "", &backend.Error{
		Op: "create", Kind: backend.ErrUnsupported, Backend: driver, Field: field,
		Err: fmt.Errorf("commands cannot run as %s, only as user and root", clean(name, 64)),
		Fix: "set user, in the template or the spec, to user or root",
	}
}

// WorkDir is the directory that an image's WORKDIR means. Tools that build
// images write the root where nobody chose one: that is none.
func WorkDir(dir string) string {
	if dir == "/" {
		return ""
	}
	return dir
}

// settle decides what commands begin with, the spec's before the image's, and
// makes the directory.
func (b *Birth) settle(ctx context.Context, sb *Sandbox, made *Made) error {
	asked, err := Account(b.ex.name, "user", b.Spec.User)
	if err != nil {
		return err
	}
	sb.user, sb.workdir = cmp.Or(asked, made.User), cmp.Or(b.Spec.Dir, WorkDir(made.Dir))
	if sb.user == backend.DefaultUser {
		sb.user = ""
	}
	if sb.user != "" && !b.ex.caps.Has(backend.FeatureUsers) {
		return &backend.Error{
			Op: "create", Kind: backend.ErrUnsupported, Backend: b.ex.name, Field: "user",
			Err: errors.New("the only account here is user, the image asks for " + sb.user), Fix: "set user to user, or run glovebox as root",
		}
	}
	if sb.workdir == "" {
		return nil
	}
	// Security: as the account whose commands will use it, so that an image's
	// links lead to nothing that it could not make itself.
	files := sb.client.Files()
	if uf, ok := backend.As[backend.UserFiles](files); ok && sb.user != "" {
		files = uf.FilesAs(sb.user)
	}
	info, err := files.Stat(ctx, sb.workdir)
	if errors.Is(err, fs.ErrNotExist) {
		err = files.Mkdir(ctx, sb.workdir, 0)
		if uf, ok := backend.As[backend.UserFiles](files); ok && errors.Is(err, fs.ErrPermission) {
			err = uf.FilesAs("root").Mkdir(ctx, sb.workdir, 0) // as engines do it
		}
		if err == nil {
			return nil
		}
	}
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		err = errors.New("it is no directory")
	case backend.KindOf(err) == backend.ErrLost || backend.KindOf(err) == "":
		return err
	}
	if be, ok := errors.AsType[*backend.Error](err); ok && be.Err != nil {
		err = be.Err
	}
	return &backend.Error{
		Op: "create", Kind: backend.ErrInvalid, Backend: b.ex.name, Field: "dir",
		Err: fmt.Errorf("%s: %s", clean(sb.workdir, 200), clean(err.Error(), 300)),
		Fix: "make it in the image, or choose one below " + backend.DefaultHome + " or /tmp",
	}
}

// begin fills in what commands begin with that name none.
func (sb *Sandbox) begin(cmd *backend.Command) {
	cmd.User = cmp.Or(cmd.User, sb.user)
	cmd.Dir = cmp.Or(cmd.Dir, sb.workdir)
}
