package launch

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// The host's own accounts are no business of the sandbox's: those that Debian
// has everywhere stand in for them.
const (
	systemPasswd = "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n" +
		"bin:x:2:2:bin:/bin:/usr/sbin/nologin\nmail:x:8:8:mail:/var/mail:/usr/sbin/nologin\n" +
		"www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
	systemGroup = "root:x:0:\ndaemon:x:1:\nbin:x:2:\ntty:x:5:\nmail:x:8:\nwww-data:x:33:\nstaff:x:50:\nusers:x:100:\nnogroup:x:65534:\n"
)

// accountFiles are the account data bases and the files that name the machine.
func accountFiles(home, hostname string) map[string][]byte {
	files := machineFiles(hostname)
	files["passwd"], files["group"] = Accounts(home, UserUID)
	files["nsswitch.conf"] = []byte("passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n")
	return files
}

// machineFiles name the machine and its network.
func machineFiles(hostname string) map[string][]byte {
	return map[string][]byte{
		"hosts":       fmt.Appendf(nil, "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 %s\n", hostname),
		"hostname":    []byte(hostname + "\n"),
		"resolv.conf": []byte("# no network\n"),
	}
}

// imageFiles are the files that are mounted over an image's own: its accounts
// with user among them, and those that name the machine.
func imageFiles(image *fileTree, cfg *Config) map[string][]byte {
	files := machineFiles(cfg.Hostname)
	maps.Copy(files, egressFiles(cfg))
	passwd, perr := image.read("etc/passwd")
	group, gerr := image.read("etc/group")
	if perr == nil && gerr == nil {
		files["passwd"], files["group"] = WithUser(passwd, group, cfg.Root.Home, UserUID)
	}
	return files
}

// setLine returns text with line in the place of the first that starts with
// prefix, or at its end.
func setLine(text, prefix, line string) string {
	var out strings.Builder
	done := false
	for l := range strings.Lines(text) {
		switch {
		case !strings.HasPrefix(l, prefix):
			out.WriteString(strings.TrimSuffix(l, "\n") + "\n")
		case !done:
			out.WriteString(line + "\n")
			done = true
		}
	}
	if !done {
		out.WriteString(line + "\n")
	}
	return out.String()
}

// etcTree copies the mount of the sandbox's /etc: the prepared one, or the
// image's own with files to be mounted over it.
func etcTree(cfg *Config, image *fileTree) (*tree, map[string][]byte, error) {
	if cfg.Root.Dir == "" {
		t, err := openTree(cfg.Root.Etc, "etc")
		if err != nil {
			return nil, nil, errno(err)
		}
		// The prepared one is shared with sandboxes that have no network.
		return &t, egressFiles(cfg), nil
	}
	t, _, err := image.mount("etc")
	if err != nil || t.fd == 0 {
		return nil, nil, errors.New("root file system: no etc in it")
	}
	return &t, imageFiles(image, cfg), nil
}

// coverEtc mounts files over an image's own, where it has them.
func coverEtc(root string, files map[string][]byte) error {
	if len(files) == 0 {
		return nil
	}
	store := filepath.Join(root, etcName)
	if err := os.Mkdir(store, 0o755); err != nil {
		return err
	}
	for name, data := range files {
		target := filepath.Join("etc", name)
		st, err := os.Lstat(filepath.Join(root, target))
		if err != nil || !st.Mode().IsRegular() {
			continue
		}
		path := filepath.Join(store, name)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
		t, err := openTree(path, target)
		if err != nil {
			return err
		}
		if err := t.attach(root); err != nil {
			return err
		}
	}
	return nil
}
