//go:build !linux

package image

func syncDisk(string) error { return nil }
