package backend

import (
	"path"
	"strings"
	"time"
)

// The defaults and bounds of Startup.
const (
	DefaultReadyTimeout  = time.Minute
	MaxReadyTimeout      = time.Hour
	DefaultReadyInterval = 500 * time.Millisecond
	MinReadyInterval     = 10 * time.Millisecond
)

// The tags of what Startup runs, as ProcessFinder tells them.
const (
	StartupTag = "start"
	ReadyTag   = "ready"
)

// Startup is what a sandbox starts with. Create returns once it is ready, or
// fails and leaves nothing.
type Startup struct {
	// Args is a program with its arguments that runs until it ends or the sandbox
	// does, as Spec.User in Spec.Dir, without a timeout of its own. Nothing is
	// started when empty.
	Args []string `json:"args,omitempty"`
	// Ready is run again and again until it exits with 0, Port a port of the
	// sandbox's loopback that is connected to; at most one of them. Without them
	// Create does not wait. That Args ends by failing before then fails Create.
	Ready []string `json:"ready,omitempty"`
	Port  int      `json:"port,omitempty"`
	// Timeout is how long that may take in all, Interval how long is waited
	// between two attempts. 0 is their default.
	Timeout  time.Duration `json:"timeout,omitempty"`
	Interval time.Duration `json:"interval,omitempty"`
}

// withDefaults fills in what is waited for with.
func (s Startup) withDefaults() Startup {
	if !s.waits() {
		return s
	}
	if s.Timeout == 0 {
		s.Timeout = DefaultReadyTimeout
	}
	if s.Interval == 0 {
		s.Interval = DefaultReadyInterval
	}
	return s
}

// waits tells whether something says when the sandbox is ready.
func (s Startup) waits() bool { return len(s.Ready) > 0 || s.Port != 0 }

// validate tells what is wrong with s.
func (s Startup) validate() error {
	for field, args := range map[string][]string{"startup.args": s.Args, "startup.ready": s.Ready} {
		for i, a := range args {
			if strings.ContainsRune(a, 0) || i == 0 && a == "" {
				return invalid(field, "it names no program, or has a NUL byte")
			}
		}
	}
	switch {
	case s.waits() && len(s.Args) == 0:
		return invalid("startup.args", "nothing is started that could become ready")
	case len(s.Ready) > 0 && s.Port != 0:
		return invalid("startup.port", "a port and a program that tells exclude each other")
	case s.Port < 0 || s.Port > 65535:
		return invalid("startup.port", "%d is no port", s.Port)
	case s.Timeout < 0 || s.Timeout > MaxReadyTimeout:
		return invalid("startup.timeout", "%v is not between 0 and %v", s.Timeout, MaxReadyTimeout)
	case s.Interval != 0 && (s.Interval < MinReadyInterval || s.Interval > MaxReadyTimeout):
		return invalid("startup.interval", "%v is not between %v and %v", s.Interval, MinReadyInterval, MaxReadyTimeout)
	}
	return nil
}

// validateAccount tells what is wrong with what commands begin with.
func (s Spec) validateAccount() error {
	switch {
	case strings.ContainsRune(s.User, 0):
		return invalid("user", "a NUL byte in it")
	case s.Dir != "" && (!path.IsAbs(s.Dir) || strings.ContainsRune(s.Dir, 0)):
		return invalid("dir", "%q is not an absolute path", s.Dir)
	}
	return s.Startup.validate()
}

// admitStartup refuses what c lacks for how spec's sandbox starts.
func (c Capabilities) admitStartup(spec Spec, refuse func(field, why, fix string) error) error {
	const fix = "leave it out, or choose a backend with the feature startup"
	switch all := c.Has(FeatureStartup); {
	case spec.User != "" && spec.User != DefaultUser && !all:
		return refuse("user", "commands that name no account run as user here", fix)
	case spec.Dir != "" && !all:
		return refuse("dir", "commands that name no directory start in the home here", fix)
	case len(spec.Startup.Args) > 0 && !all:
		return refuse("startup.args", "nothing can be started with a sandbox here", fix)
	case spec.User == "root" && !c.Has(FeatureUsers):
		return refuse("user", "the only account here is user", "set it to user, or run glovebox as root")
	case spec.Startup.Port != 0 && !c.Has(FeatureDial):
		return refuse("startup.port", "ports inside cannot be reached here", "give a command that tells instead")
	}
	return nil
}
