package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// etc is what the sandbox's /etc holds.
type etc struct {
	files map[string][]byte
	links map[string]string
	trees []tree
	whole *tree // an image's own /etc, over which files are mounted
}

// etcFrom gathers /etc: chosen entries of the host's, or an image's own.
func etcFrom(cfg *Config) (*etc, error) {
	e := &etc{files: map[string][]byte{}, links: map[string]string{}}
	if dir := cfg.Root.Dir; dir != "" {
		if st, err := os.Lstat(filepath.Join(dir, "etc")); err == nil && st.IsDir() {
			t, err := openTree(filepath.Join(dir, "etc"), "etc")
			if err != nil {
				return nil, err
			}
			e.whole = &t
		}
		e.accounts(filepath.Join(dir, "etc"), cfg)
		return e, nil
	}
	for _, name := range etcEntries {
		path := filepath.Join("/etc", name)
		st, err := os.Lstat(path)
		if err != nil {
			continue
		}
		switch {
		case st.Mode()&os.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err == nil {
				e.links[name] = to
			}
		case st.IsDir():
			t, err := openTree(path, filepath.Join("etc", name))
			if err != nil {
				return nil, err
			}
			e.trees = append(e.trees, t)
		default:
			if data, err := copySmall(path); err == nil {
				e.files[name] = data
			}
		}
	}
	e.accounts("/etc", cfg)
	return e, nil
}

// accounts writes the account data bases and the files that name the machine.
// The host's own accounts are no business of the sandbox's: those that Debian
// has everywhere stand in for them.
func (e *etc) accounts(from string, cfg *Config) {
	home := cfg.Root.Home
	passwd := fmt.Sprintf("root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"+
		"bin:x:2:2:bin:/bin:/usr/sbin/nologin\nmail:x:8:8:mail:/var/mail:/usr/sbin/nologin\n"+
		"www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"+
		"user:x:%d:%d:user:%s:/bin/bash\n", UserUID, UserUID, home)
	group := fmt.Sprintf("root:x:0:\ndaemon:x:1:\nbin:x:2:\ntty:x:5:\nmail:x:8:\nwww-data:x:33:\nstaff:x:50:\nusers:x:100:\nnogroup:x:65534:\nuser:x:%d:\n", UserUID)
	if cfg.Root.Dir != "" {
		// An image's own accounts stay when user is among them.
		if data, err := copySmall(filepath.Join(from, "passwd")); err == nil {
			passwd = withLine(string(data), "user:", fmt.Sprintf("user:x:%d:%d:user:%s:/bin/bash", UserUID, UserUID, home))
		}
		if data, err := copySmall(filepath.Join(from, "group")); err == nil {
			group = withLine(string(data), "user:", fmt.Sprintf("user:x:%d:", UserUID))
		}
	}
	e.files["passwd"], e.files["group"] = []byte(passwd), []byte(group)
	e.files["hosts"] = fmt.Appendf(nil, "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 %s\n", cfg.Hostname)
	e.files["hostname"] = []byte(cfg.Hostname + "\n")
	e.files["resolv.conf"] = []byte("# no network\n")
	if cfg.Root.Dir == "" {
		e.files["nsswitch.conf"] = []byte("passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n")
		e.files["gitconfig"] = []byte("[safe]\n\tdirectory = *\n")
	}
}

// withLine returns text with line added unless one starts with prefix.
func withLine(text, prefix, line string) string {
	for l := range strings.Lines(text) {
		if strings.HasPrefix(l, prefix) {
			return text
		}
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + line + "\n"
}

// write makes /etc below root.
func (e *etc) write(root string) error {
	if e.whole != nil {
		return e.cover(root)
	}
	for _, t := range e.trees {
		if err := t.attach(root); err != nil {
			return err
		}
	}
	for name, data := range e.files {
		path := filepath.Join(root, "etc", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // public
			return err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil { //nolint:gosec // public
			return err
		}
	}
	for name, to := range e.links {
		path := filepath.Join(root, "etc", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // public
			return err
		}
		if err := os.Symlink(to, path); err != nil {
			return err
		}
	}
	// Some programs look for mounts here.
	return os.Symlink("../proc/self/mounts", filepath.Join(root, "etc/mtab"))
}

// cover mounts the files over an image's own, where it has them.
func (e *etc) cover(root string) error {
	if err := e.whole.attach(root); err != nil {
		return err
	}
	store := filepath.Join(root, ".scratch", "..", ".etc")
	if err := os.Mkdir(store, 0o755); err != nil { //nolint:gosec // public
		return err
	}
	for name, data := range e.files {
		target := filepath.Join("etc", name)
		st, err := os.Lstat(filepath.Join(root, target))
		if err != nil || !st.Mode().IsRegular() {
			continue
		}
		path := filepath.Join(store, name)
		if err := os.WriteFile(path, data, 0o644); err != nil { //nolint:gosec // public
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
