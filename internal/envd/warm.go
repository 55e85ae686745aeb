package envd

import "github.com/glovebox-dev/glovebox/internal/envd/wire"

// Warm readies what the first command of this process would otherwise wait for.
// It is meant for a goroutine beside other work, such as making the sandbox.
func Warm() { wire.Warm() }
