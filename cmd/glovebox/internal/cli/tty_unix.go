//go:build unix

package cli

import (
	"os"
	"os/signal"
	"syscall"
)

// sizeChanges tells when our terminal's size has changed.
func sizeChanges() (<-chan os.Signal, func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGWINCH)
	return c, func() { signal.Stop(c) }
}
