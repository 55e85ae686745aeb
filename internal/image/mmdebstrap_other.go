//go:build !linux

package image

import (
	"context"
	"errors"
	"io"

	"github.com/glovebox-dev/glovebox/backend"
)

type debstrap struct {
	program string
	sources []string
	report  func(Progress)
	scratch string
}

func (*debstrap) run(context.Context, Definition, func(io.Reader) error) error {
	return &backend.Error{
		Op: "image", Kind: backend.ErrUnsupported, Err: errors.New("images are built on Linux only"),
		Fix: "build it there, in a virtual machine for example",
	}
}
