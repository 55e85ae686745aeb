//go:build !amd64 && !arm64

package seccomp

const (
	profileArch = ""
	callNames   = ""
)
