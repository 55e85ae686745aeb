package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/docker/docker/api/types/image"

	"github.com/glovebox-dev/glovebox/backend"
)

// Image is an image that the engine has.
type Image struct {
	ID      string // sha256:…
	Tags    []string
	Labels  map[string]string
	Size    int64
	Created time.Time
	Arch    string // as Go names it
	OS      string

	// What the image declares; Inspect alone knows it, lists do not.
	User       string
	Env        []string
	Entrypoint []string
	Cmd        []string
	Dir        string
	Volumes    []string
	Layers     []string // digests of what the layers hold, the lowest first
}

// Image tells about an image, by name or ID. One that is not there is
// not_found and names the field image.
func (e *Engine) Image(ctx context.Context, name string) (Image, error) {
	if err := checkImage("image", name); err != nil {
		return Image{}, err
	}
	var got image.InspectResponse
	err := e.do(ctx, imageCall("image", name, e.limits.quick), func(ctx context.Context) (err error) {
		got, err = e.api.ImageInspect(ctx, name)
		return err
	})
	if err != nil {
		return Image{}, err
	}
	out := Image{ID: got.ID, Tags: got.RepoTags, Size: got.Size, Created: parseTime(got.Created), Arch: got.Architecture, OS: got.Os}
	if c := got.Config; c != nil {
		out.Labels, out.User, out.Env, out.Entrypoint, out.Cmd, out.Dir = c.Labels, c.User, c.Env, c.Entrypoint, c.Cmd, c.WorkingDir
		out.Volumes = slices.Sorted(maps.Keys(c.Volumes))
	}
	out.Layers = got.RootFS.Layers
	return out, nil
}

func imageCall(op, name string, within time.Duration) call {
	return call{op: op, within: within, field: "image", fix: "pull or import " + name + " first"}
}

// Images lists images that have the label key, with value unless that is "".
func (e *Engine) Images(ctx context.Context, key, value string) ([]Image, error) {
	var got []image.Summary
	err := e.do(ctx, call{op: "images", within: e.limits.normal}, func(ctx context.Context) (err error) {
		got, err = e.api.ImageList(ctx, image.ListOptions{Filters: byLabel(key, value)})
		return err
	})
	if err != nil {
		return nil, err
	}
	var out []Image
	for _, i := range got {
		out = append(out, Image{ID: i.ID, Tags: i.RepoTags, Labels: i.Labels, Size: i.Size, Created: time.Unix(i.Created, 0)})
	}
	return out, nil
}

// Tag gives an image another name.
func (e *Engine) Tag(ctx context.Context, name, tag string) error {
	for _, n := range []string{name, tag} {
		if err := checkImage("tag", n); err != nil {
			return err
		}
	}
	c := imageCall("tag", name, e.limits.quick)
	c.changes = true
	return e.do(ctx, c, func(ctx context.Context) error { return e.api.ImageTag(ctx, name, tag) })
}

// RemoveImage takes a name from an image, and removes it with its last one. One
// that a container uses is conflict, one that is not there no error.
func (e *Engine) RemoveImage(ctx context.Context, name string) error {
	if err := checkImage("remove image", name); err != nil {
		return err
	}
	c := imageCall("remove image", name, e.limits.normal)
	c.changes = true
	err := e.do(ctx, c, func(ctx context.Context) error {
		_, err := e.api.ImageRemove(ctx, name, image.RemoveOptions{PruneChildren: true})
		return err
	})
	if backend.KindOf(err) == backend.ErrNotFound {
		return nil
	}
	return err
}
