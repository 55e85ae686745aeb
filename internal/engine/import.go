package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"

	"github.com/glovebox-dev/glovebox/backend"
)

// tagForm is the name of an image that can be given to one: small letters, and
// perhaps a tag.
var tagForm = regexp.MustCompile(`^[a-z0-9]+(?:[._/:-]+[a-z0-9]+)*(?::[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127})?$`)

// tarBlock is the size of a tar archive's blocks.
const tarBlock = 512

// Start is how containers of an image start that were told nothing else.
type Start struct {
	Entrypoint []string
	User       string
	Dir        string
}

// changes are s as instructions for the engine.
func (s Start) changes() ([]string, error) {
	var out []string
	if len(s.Entrypoint) > 0 {
		args, err := json.Marshal(s.Entrypoint)
		if err != nil {
			return nil, err
		}
		out = append(out, "ENTRYPOINT "+string(args))
	}
	for instruction, v := range map[string]string{"USER": s.User, "WORKDIR": s.Dir} {
		switch {
		case v == "":
		case !startForm.MatchString(v):
			return nil, invalid("import", "start", fmt.Errorf("%q cannot be an image's %s", oneLine(v), instruction))
		default:
			out = append(out, instruction+" "+v)
		}
	}
	return out, nil
}

// startForm is what instructions take without quotes.
var startForm = regexp.MustCompile(`^[a-zA-Z0-9_/.:-]+$`)

// Import makes an image of a root file system's plain tar archive, and gives it
// the name tag and the labels. It returns the image's ID.
func (e *Engine) Import(ctx context.Context, tag string, labels map[string]string, archive io.Reader) (string, error) {
	return e.ImportStart(ctx, tag, labels, Start{}, archive)
}

// ImportStart is Import of an image that says how its containers start.
func (e *Engine) ImportStart(
	ctx context.Context, tag string, labels map[string]string, start Start, archive io.Reader,
) (string, error) {
	if err := checkTag("import", tag); err != nil {
		return "", err
	}
	if len(labels) == 0 {
		return "", invalid("import", "labels", errNoLabels)
	}
	if err := checkLabels("import", labels); err != nil {
		return "", err
	}
	changes, err := start.changes()
	if err != nil {
		return "", err
	}
	if archive, err = plainTar(archive); err != nil {
		return "", err
	}
	for k, v := range labels {
		changes = append(changes, fmt.Sprintf(`LABEL "%s"="%s"`, k, v)) //nolint:gocritic // the parser's quotes are not Go's
	}
	slices.Sort(changes)
	var id string
	err = e.transfer(ctx, call{op: "import", changes: true}, func(ctx context.Context, moved func()) error {
		src := image.ImportSource{Source: moving{archive, moved}, SourceName: "-"}
		answer, err := e.api.ImageImport(ctx, src, tag, image.ImportOptions{Changes: changes})
		if err != nil {
			return err
		}
		defer answer.Close()
		return messages(moving{answer, moved}, func(m message) {
			if strings.HasPrefix(m.Status, "sha256:") {
				id = m.Status
			}
		})
	})
	if err == nil && id == "" {
		err = &backend.Error{Op: "import", Kind: backend.ErrLost, Err: errors.New("the daemon did not say which image it made")}
	}
	return id, err
}

// plainTar refuses what is no plain tar archive. Security: engines unpack
// compressed ones with programs that they look up, some in the wrong place.
func plainTar(r io.Reader) (io.Reader, error) {
	var first [tarBlock]byte
	n, err := io.ReadFull(r, first[:])
	switch {
	case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return nil, &backend.Error{Op: "import", Kind: backend.ErrInvalid, Field: "archive", Err: err}
	case n < tarBlock || string(first[257:262]) != "ustar":
		return nil, invalid("import", "archive", errors.New("a plain, uncompressed tar archive is needed"))
	}
	return io.MultiReader(bytes.NewReader(first[:]), r), nil
}

func checkTag(op, tag string) error {
	if err := checkImage(op, tag); err != nil {
		return err
	}
	if !tagForm.MatchString(tag) {
		return invalid(op, "image", fmt.Errorf("%q cannot be the name of an image", tag))
	}
	return nil
}

// PullProgress is how far a part of an image is.
type PullProgress struct {
	Part           string // a layer, or the tag
	Status         string
	Current, Total int64 // bytes; 0 where it is not known
}

// Pull fetches an image from its registry. progress may be nil; it is called on
// the caller's goroutine.
func (e *Engine) Pull(ctx context.Context, name string, progress func(PullProgress)) error {
	if err := checkImage("pull", name); err != nil {
		return err
	}
	if !strings.Contains(name, "@") {
		if err := checkTag("pull", name); err != nil {
			return err
		}
	}
	// Pulling twice does no harm, so a lost answer is no lost outcome.
	return e.transfer(ctx, call{op: "pull", field: "image", fix: "see whether the name is right and may be pulled"},
		func(ctx context.Context, moved func()) error {
			answer, err := e.api.ImagePull(ctx, name, image.PullOptions{})
			if err != nil {
				return err
			}
			defer answer.Close()
			return messages(moving{answer, moved}, func(m message) {
				if progress != nil {
					progress(PullProgress{Part: oneLine(m.ID), Status: oneLine(m.Status), Current: m.Progress.Current, Total: m.Progress.Total})
				}
			})
		})
}

// Export is an image's root file system as a tar archive of at most maxBytes;
// reading more is too_large. The engine needs a container for that, which is
// never started: it is called name, has the labels, and Close removes it. ctx
// governs the reading too. Security: the archive is as hostile as the image.
func (e *Engine) Export(ctx context.Context, imageName, name string, labels map[string]string, maxBytes int64) (io.ReadCloser, error) {
	if err := checkName("export", "name", name); err != nil {
		return nil, err
	}
	if len(labels) == 0 {
		return nil, invalid("export", "labels", errNoLabels)
	}
	img, err := e.Image(ctx, imageName)
	if err != nil {
		return nil, err
	}
	remove := func() error { return e.Remove(context.WithoutCancel(ctx), name) }
	c := imageCall("export", imageName, e.limits.long)
	c.changes = true
	err = e.do(ctx, c, func(ctx context.Context) error {
		_, err := e.api.ContainerCreate(ctx,
			&container.Config{Image: img.ID, Entrypoint: []string{"/never-started"}, Labels: labels},
			&container.HostConfig{NetworkMode: "none", LogConfig: container.LogConfig{Type: "none"}}, nil, nil, name)
		return err
	})
	switch {
	case backend.KindOf(err) == backend.ErrConflict:
		return nil, err // another's
	case err != nil:
		return nil, undone(err, remove())
	}
	stream, cancel := context.WithCancel(ctx)
	var body io.ReadCloser
	err = e.do(ctx, call{op: "export", within: e.limits.normal}, func(ctx context.Context) (err error) {
		// The answer's headers are this call's, its body outlives it.
		stop := context.AfterFunc(ctx, cancel)
		body, err = e.api.ContainerExport(stream, name)
		if !stop() && err == nil {
			body.Close()
			err = ctx.Err()
		}
		if err != nil && ctx.Err() != nil {
			err = ctx.Err()
		}
		return err
	})
	if err != nil {
		cancel()
		return nil, undone(err, remove())
	}
	timer := newIdle(e.limits.idle, cancel)
	return &exported{
		Reader: &capped{r: moving{body, timer.moved}, left: maxBytes, op: "export"},
		close: func() error {
			cancel()
			timer.stop()
			body.Close()
			return remove()
		},
	}, nil
}

// exported is Export's stream.
type exported struct {
	io.Reader
	close func() error
}

// Close ends the reading and removes the container, also when called again.
func (x *exported) Close() error { return x.close() }
