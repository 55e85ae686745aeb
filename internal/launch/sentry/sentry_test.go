//go:build linux

package sentry_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch/sentry"
)

// The other half, that gVisor is recognised, is shown inside it by the tests of
// gvisor/internal/runsc.
func TestObserve_thisKernelIsLinux(t *testing.T) {
	t.Parallel()
	e := sentry.Observe()
	if e.Securebits != nil || e.FileIDs != nil {
		t.Skip("these tests run inside gVisor")
	}
	if ok, why := e.GVisor(); ok || why == "" {
		t.Errorf("%t %q %+v", ok, why, e)
	}
	if e.Version == "" {
		t.Error("no version")
	}
}

func TestEvidence_takesAllOfIt(t *testing.T) {
	t.Parallel()
	gvisor := sentry.Evidence{Log: "<6>[   0.000000] Starting gVisor...\n<6>[   0.3] Ready!\n", Securebits: unix.EINVAL, FileIDs: unix.ENOSYS}
	if ok, why := gvisor.GVisor(); !ok {
		t.Error(why)
	}
	for name, change := range map[string]func(*sentry.Evidence){
		"no log":                  func(e *sentry.Evidence) { e.Log = "" },
		"said later":              func(e *sentry.Evidence) { e.Log = "<6>[ 0.0] Linux version 6\n<4>[ 1.0] Starting gVisor...\n" },
		"said by a program":       func(e *sentry.Evidence) { e.Log = "<6>[ 0.0] docker: Starting gVisor... now\n" },
		"securebits":              func(e *sentry.Evidence) { e.Securebits = nil },
		"securebits by a filter":  func(e *sentry.Evidence) { e.Securebits = unix.EPERM },
		"file ids":                func(e *sentry.Evidence) { e.FileIDs = nil },
		"nothing but the version": func(e *sentry.Evidence) { *e = sentry.Evidence{Version: "Linux version 4.4.0"} },
	} {
		e := gvisor
		change(&e)
		if ok, why := e.GVisor(); ok || why == "" {
			t.Errorf("%s: taken for gVisor (%q)", name, why)
		}
	}
}
