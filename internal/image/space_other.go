//go:build !unix

package image

func isNoSpace(error) bool { return false }

func freeBytes(string) (int64, bool) { return 0, false }

func isNotEmpty(error) bool { return false }
