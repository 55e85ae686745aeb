// Package images holds the definitions of the standard images.
package images

import "embed"

// Files are the definitions, NAME.json, and finish.sh, which runs at the end of
// every build with the new root file system's directory as its argument.
//
//go:embed *.json finish.sh
var Files embed.FS
