// Package version says what this binary was built from.
package version

import (
	"runtime"
	"runtime/debug"
)

// Info describes a build.
type Info struct {
	Version  string `json:"version"`            // a release's tag, or "dev"
	Commit   string `json:"commit,omitempty"`   // of the source tree
	Modified bool   `json:"modified,omitempty"` // the tree had changes that are in no commit
	Time     string `json:"time,omitempty"`     // of the commit, RFC 3339
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	Cgo      bool   `json:"cgo"` // a binary with cgo cannot be the agent of its sandboxes
}

// Get is this binary's build.
func Get() Info {
	info := Info{Version: "dev", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if bi, ok := debug.ReadBuildInfo(); ok {
		if v := bi.Main.Version; v != "" && v != "(devel)" {
			info.Version = v
		}
		for _, s := range bi.Settings {
			switch s.Key {
			case "vcs.revision":
				info.Commit = s.Value
			case "vcs.modified":
				info.Modified = s.Value == "true"
			case "vcs.time":
				info.Time = s.Value
			case "CGO_ENABLED":
				info.Cgo = s.Value == "1"
			}
		}
	}
	return info
}
