package backend_test

import (
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/backend/backendtest"
)

func TestStartup_isChecked(t *testing.T) {
	t.Parallel()
	caps := backendtest.Capabilities()
	caps.Features = append(caps.Features, backend.FeatureStartup, backend.FeatureUsers)
	args := []string{"server"}
	for _, test := range []struct {
		name    string
		without backend.Feature
		spec    backend.Spec
		kind    backend.Kind
		field   string
	}{
		{"all of it", "", backend.Spec{User: "root", Dir: "/srv", Startup: backend.Startup{Args: args, Port: 80, Timeout: time.Second, Interval: time.Second}}, "", ""},
		{"a relative directory", "", backend.Spec{Dir: "srv"}, backend.ErrInvalid, "dir"},
		{"a NUL in the account", "", backend.Spec{User: "a\x00"}, backend.ErrInvalid, "user"},
		{"nothing to wait for", "", backend.Spec{Startup: backend.Startup{Port: 80}}, backend.ErrInvalid, "startup.args"},
		{"two things to wait for", "", backend.Spec{Startup: backend.Startup{Args: args, Port: 80, Ready: args}}, backend.ErrInvalid, "startup.port"},
		{"a NUL", "", backend.Spec{Startup: backend.Startup{Args: []string{"a", "\x00"}}}, backend.ErrInvalid, "startup.args"},
		{"no program", "", backend.Spec{Startup: backend.Startup{Args: []string{"", "a"}}}, backend.ErrInvalid, "startup.args"},
		{"too long", "", backend.Spec{Startup: backend.Startup{Args: args, Timeout: 2 * backend.MaxReadyTimeout}}, backend.ErrInvalid, "startup.timeout"},
		{"too often", "", backend.Spec{Startup: backend.Startup{Args: args, Interval: time.Nanosecond}}, backend.ErrInvalid, "startup.interval"},
		{"an account, not claimed", backend.FeatureStartup, backend.Spec{User: "root"}, backend.ErrUnsupported, "user"},
		{"the usual account, not claimed", backend.FeatureStartup, backend.Spec{User: "user"}, "", ""},
		{"a directory, not claimed", backend.FeatureStartup, backend.Spec{Dir: "/srv"}, backend.ErrUnsupported, "dir"},
		{"a start, not claimed", backend.FeatureStartup, backend.Spec{Startup: backend.Startup{Args: args}}, backend.ErrUnsupported, "startup.args"},
		{"root where there is one account", backend.FeatureUsers, backend.Spec{User: "root"}, backend.ErrUnsupported, "user"},
		{"a port that cannot be reached", backend.FeatureDial, backend.Spec{Startup: backend.Startup{Args: args, Port: 80}}, backend.ErrUnsupported, "startup.port"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := caps
			c.Features = nil
			for _, f := range caps.Features {
				if f != test.without {
					c.Features = append(c.Features, f)
				}
			}
			_, _, err := c.Admit("b", test.spec)
			if test.kind == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantField(t, err, test.kind, test.field)
		})
	}
	full, _, err := caps.Admit("b", backend.Spec{Startup: backend.Startup{Args: args, Port: 80}})
	if err != nil || full.Startup.Timeout != backend.DefaultReadyTimeout || full.Startup.Interval != backend.DefaultReadyInterval {
		t.Errorf("%+v, %v", full.Startup, err)
	}
}
