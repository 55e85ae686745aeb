// Package conformance is the behaviour that every backend must have, as cases
// that run against any [backend.Executor], from `go test` and from
// `glovebox conformance` alike.
//
// A case knows no driver. What it may expect follows from the executor's
// [backend.Capabilities]: a case whose needs are claimed must pass, and one
// whose needs are not claimed is unsupported only when asking for them was
// refused as the contract says. A case cannot skip.
package conformance
