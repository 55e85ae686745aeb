//go:build !unix

package cli

import "os"

// sizeChanges never tells anything: there is no signal for it here.
func sizeChanges() (<-chan os.Signal, func()) { return nil, func() {} }
