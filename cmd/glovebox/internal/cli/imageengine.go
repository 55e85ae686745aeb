package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/image"
)

// maxExport bounds the root file system that an engine gives.
const maxExport = 32 << 30

// engineImages are an engine's images, for the store.
type engineImages struct{ *engine.Engine }

// openEngine is the container engine, nil when there is none that answers. The
// caller closes it.
func openEngine(ctx context.Context) *engineImages {
	e, err := engine.Open("")
	if err != nil {
		return nil
	}
	// Without a socket there is nothing to wait for.
	if path, ok := strings.CutPrefix(e.Host(), "unix://"); ok {
		if _, err := os.Stat(path); err != nil {
			_ = e.Close() // nothing is open
			return nil
		}
	}
	if e.Ping(ctx) != nil {
		_ = e.Close() // nothing is open
		return nil
	}
	return &engineImages{e}
}

// Exists implements image.Importer.
func (e *engineImages) Exists(ctx context.Context, ref string) (bool, error) {
	_, err := e.Image(ctx, ref)
	if errors.Is(err, backend.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Import implements image.Importer.
func (e *engineImages) Import(ctx context.Context, tar io.Reader, ref string, labels map[string]string) (string, error) {
	return e.Engine.Import(ctx, ref, labels, tar)
}

// Remove implements image.Importer.
func (e *engineImages) Remove(ctx context.Context, ref string) error { return e.RemoveImage(ctx, ref) }

// Export implements image.Exporter.
func (e *engineImages) Export(ctx context.Context, ref string) (io.ReadCloser, image.Config, error) {
	img, err := e.Image(ctx, ref)
	if errors.Is(err, backend.ErrNotFound) {
		if err = e.Pull(ctx, ref, nil); err == nil {
			img, err = e.Image(ctx, ref)
		}
	}
	if err != nil {
		return nil, image.Config{}, err
	}
	cfg := image.Config{Env: map[string]string{}, WorkDir: img.Dir, User: img.User, Start: append(append([]string{}, img.Entrypoint...), img.Cmd...)}
	for _, kv := range img.Env {
		if k, v, ok := strings.Cut(kv, "="); ok {
			cfg.Env[k] = v
		}
	}
	tar, err := e.Engine.Export(ctx, ref, "glovebox-export-"+strings.ToLower(rand.Text()), map[string]string{"dev.glovebox.export": ref}, maxExport)
	return tar, cfg, err
}

var (
	_ image.Importer = (*engineImages)(nil)
	_ image.Exporter = (*engineImages)(nil)
)
