package image

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// Accounts of the standard user inside.
const (
	userUID   = 1000
	userLine  = "user:x:1000:1000::/home/user:/bin/bash\n"
	groupLine = "user:x:1000:\n"
	rootLine  = "root:x:0:0:root:/root:/bin/sh\n"

	maxAccounts = 1 << 20
)

// complete gives a root file system what sandboxes need in it, since nothing
// can be made in one that is shared: places to mount on, the files that are
// mounted over, and the account named user.
func complete(root *os.Root) error {
	for _, dir := range []string{"proc", "dev", "sys", "run", "tmp", "var/tmp", "home/user", ".glovebox", "etc"} {
		if st, err := root.Stat(dir); err == nil && st.IsDir() {
			continue
		}
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make /%s: %w", dir, err)
		}
		switch path.Base(dir) {
		case "tmp":
			if err := root.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
				return err
			}
		case "user":
			if os.Geteuid() == 0 {
				if err := root.Lchown(dir, userUID, userUID); err != nil {
					return err
				}
			}
		}
	}
	for name, text := range map[string]string{
		"etc/hosts": "127.0.0.1 localhost\n::1 localhost\n", "etc/hostname": "glovebox\n", "etc/resolv.conf": "",
	} {
		if st, err := root.Lstat(name); err == nil && st.Mode().IsRegular() {
			continue
		}
		if err := replace(root, name, text); err != nil {
			return err
		}
	}
	if err := account(root, "etc/passwd", rootLine, userLine); err != nil {
		return err
	}
	return account(root, "etc/group", "root:x:0:\n", groupLine)
}

// account adds the line of user to an account file that has none.
func account(root *os.Root, name, first, line string) error {
	text := first
	if st, err := root.Lstat(name); err == nil && st.Mode().IsRegular() {
		f, err := root.Open(name)
		if err != nil {
			return err
		}
		data, err := io.ReadAll(io.LimitReader(f, maxAccounts))
		f.Close() //nolint:errcheck // read side
		if err != nil {
			return err
		}
		text = string(data)
	}
	if strings.HasPrefix(text, "user:") || strings.Contains(text, "\nuser:") {
		return nil
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return replace(root, name, text+line)
}

// replace writes a file anew, in place of whatever had its name.
func replace(root *os.Root, name, text string) error {
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace /%s: %w", name, err)
	}
	if err := root.WriteFile(name, []byte(text), 0o644); err != nil {
		return err
	}
	return root.Chmod(name, 0o644) // whatever our umask is
}
