//go:build linux

package gvisor_test

const envCreator = "GLOVEBOX_TEST_GVISOR_CREATOR"

func creator(string) {}
