//go:build linux && race

package hostiletest_test

// raceFactor is how much more memory the race detector takes.
const raceFactor = 6
