//go:build linux

package runsc_test

const (
	envCreator = "GLOVEBOX_TEST_CREATOR"
	envMaker   = "GLOVEBOX_TEST_MAKER"
)

func creator(string) {}
func maker(string)   {}
