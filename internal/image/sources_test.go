package image_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/glovebox-dev/glovebox/internal/image"
)

func TestSources(t *testing.T) {
	debian := []string{
		"deb http://deb.debian.org/debian bookworm main", "deb http://deb.debian.org/debian bookworm-updates main",
		"deb http://deb.debian.org/debian-security bookworm-security main",
	}
	for _, test := range []struct {
		name, targets string
		want          []string
	}{
		{"nothing configured", "", debian},
		{
			"this release", "http://m/debian/ bookworm main\nhttp://m/debian/ bookworm contrib\nhttp://n/x/ nodistro main\nhttp://s/sec/ bookworm-security main\n",
			[]string{"deb http://m/debian bookworm main", "deb http://s/sec bookworm-security main"},
		},
		{
			"another release", "https://m/debian/ trixie main\nhttps://m/debian-security/ trixie-security main\n",
			[]string{"deb https://m/debian bookworm main", "deb https://m/debian bookworm-updates main", "deb https://m/debian-security bookworm-security main"},
		},
		{"a disc and another system", "cdrom:/x/ bookworm main\nhttp://archive.ubuntu.com/ubuntu/ noble main\n", debian},
	} {
		t.Run(test.name, func(t *testing.T) {
			if d := cmp.Diff(test.want, image.Choose(test.targets, "bookworm")); d != "" {
				t.Error(d)
			}
		})
	}
}
