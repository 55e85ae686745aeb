//go:build !linux

package testenv

import "testing"

// AsNobody skips the test: only Linux has it.
func AsNobody(t *testing.T) (done bool) {
	t.Helper()
	t.Skip("only on Linux")
	return true
}
