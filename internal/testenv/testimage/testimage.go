// Package testimage finds the template base for tests of the backends that need
// one. scripts/setup builds it.
package testimage

import (
	"context"
	"os"
	"time"

	"github.com/glovebox-dev/glovebox/internal/engine"
	"github.com/glovebox-dev/glovebox/internal/image"
)

// name is the template's.
const name = "base"

// Rootfs is the root file system of base; unavailable says why there is none.
func Rootfs() (dir, unavailable string) {
	img, why := built()
	return img.Rootfs(), why
}

// Share lets a test's own state directory have the images of this host's.
func Share(stateDir string) (unavailable string) {
	store, err := image.Default(os.Getenv)
	if err != nil {
		return err.Error()
	}
	if _, why := built(); why != "" {
		return why
	}
	if err := os.Symlink(store.Dir(), image.Open(stateDir).Dir()); err != nil {
		return err.Error()
	}
	return ""
}

// Ref is what the engine knows base by, which gets it if it is missing;
// unavailable says why there is none.
func Ref(ctx context.Context) (ref, unavailable string) {
	img, why := built()
	if why != "" {
		return "", why
	}
	e, err := engine.Open("")
	if err != nil {
		return "", err.Error()
	}
	defer e.Close() //nolint:errcheck // idle connections
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := e.Ping(ctx); err != nil {
		return "", err.Error()
	}
	if _, err := e.Image(ctx, img.Ref()); err == nil {
		return img.Ref(), ""
	}
	archive, err := img.Archive()
	if err != nil {
		return "", err.Error()
	}
	defer archive.Close()
	if _, err := e.Import(ctx, img.Ref(), img.Labels(), archive); err != nil {
		return "", err.Error()
	}
	return img.Ref(), ""
}

func built() (img image.Image, unavailable string) {
	store, err := image.Default(os.Getenv)
	if err != nil {
		return img, err.Error()
	}
	if img, err = store.Get(name); err != nil {
		return img, err.Error()
	}
	return img, ""
}
