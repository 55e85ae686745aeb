//go:build !linux

package state

import "errors"

// BootID names this boot of the host; "" where the system does not tell.
func BootID() string { return "" }

// StartTime is when the process started, in the kernel's ticks since the boot:
// with the boot's ID it tells a process from a later one with its number.
func StartTime(int) (uint64, error) { return 0, errors.ErrUnsupported }

func ended(int) bool { return false }
