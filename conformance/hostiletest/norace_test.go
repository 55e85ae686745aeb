//go:build linux && !race

package hostiletest_test

const raceFactor = 1
