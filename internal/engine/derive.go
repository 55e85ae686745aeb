package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/docker/docker/client"

	"github.com/glovebox-dev/glovebox/backend"
)

// Derive makes an image of parent's layers and one more, a plain tar archive,
// and gives it the name tag and the labels. Nothing else of what parent declares
// is in it. It returns the image's ID. Only the new layer is sent: engines that
// want the others again, as those that keep images in containerd do, are
// unsupported.
func (e *Engine) Derive(ctx context.Context, parent Image, tag string, labels map[string]string, layer []byte) (string, error) {
	if err := checkTag("derive", tag); err != nil {
		return "", err
	}
	if len(labels) == 0 {
		return "", invalid("derive", "labels", errNoLabels)
	}
	if err := checkLabels("derive", labels); err != nil {
		return "", err
	}
	if len(parent.Layers) == 0 {
		return "", invalid("derive", "image", errors.New("the image's layers are not known"))
	}
	archive, err := derived(parent, tag, labels, layer)
	if err != nil {
		return "", err
	}
	// Loading twice gives the same image, so a lost answer is no lost outcome.
	err = e.transfer(ctx, call{op: "derive"}, func(ctx context.Context, moved func()) error {
		answer, err := e.api.ImageLoad(ctx, moving{archive, moved}, client.ImageLoadWithQuiet(true))
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		return messages(moving{answer.Body, moved}, func(message) {})
	})
	if err != nil {
		return "", err
	}
	img, err := e.Image(ctx, tag)
	switch {
	case backend.KindOf(err) == backend.ErrNotFound || err == nil && len(img.Layers) != len(parent.Layers)+1:
		return "", &backend.Error{Op: "derive", Kind: backend.ErrUnsupported, Err: errors.New("the engine did not make the image")}
	case err != nil:
		return "", err
	}
	return img.ID, nil
}

// derived is an image as engines save them, without the layers that parent has.
func derived(parent Image, tag string, labels map[string]string, layer []byte) (io.Reader, error) {
	sum := sha256.Sum256(layer)
	ids := append(append([]string{}, parent.Layers...), "sha256:"+hex.EncodeToString(sum[:]))
	type rootfs struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	}
	config, err := json.Marshal(map[string]any{
		"architecture": orDefault(parent.Arch, "amd64"), "os": orDefault(parent.OS, "linux"), "created": parent.Created.UTC(),
		"config": map[string]any{"Labels": labels}, "rootfs": rootfs{"layers", ids},
	})
	if err != nil {
		return nil, err
	}
	const last = "layer.tar"
	paths := make([]string, len(ids))
	for i := range parent.Layers {
		paths[i] = fmt.Sprintf("parent%d.tar", i) // not there: the engine has it
	}
	paths[len(ids)-1] = last
	manifest, err := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{tag}, "Layers": paths}})
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range []struct {
		name string
		data []byte
	}{{"config.json", config}, {"manifest.json", manifest}, {last, layer}} {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.data)), Typeflag: tar.TypeReg}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	return &out, w.Close()
}
