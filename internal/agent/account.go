//go:build linux

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Account is who a command runs as.
type Account struct {
	Name   string
	UID    uint32
	GID    uint32
	Home   string
	Groups []uint32 // supplementary groups, without GID
}

const (
	maxAccountFile = 1 << 20
	maxAccounts    = 16384
	maxGroups      = 1024 // of one account
)

// group is one line of a group file.
type group struct {
	name    string
	gid     uint32
	members []string
}

// parsePasswd reads the accounts of a passwd file. Lines that are not
// accounts are skipped, as the C library does.
func parsePasswd(b []byte) []Account {
	var out []Account
	for line := range bytes.Lines(b) {
		f := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
		if len(f) < 7 || f[0] == "" || strings.ContainsAny(f[0], "\x00#") || len(out) == maxAccounts {
			continue
		}
		uid, err1 := parseID(f[2])
		gid, err2 := parseID(f[3])
		if err1 != nil || err2 != nil || strings.ContainsRune(f[5], 0) {
			continue
		}
		out = append(out, Account{Name: f[0], UID: uid, GID: gid, Home: f[5]})
	}
	return out
}

// parseGroup reads the groups of a group file.
func parseGroup(b []byte) []group {
	var out []group
	for line := range bytes.Lines(b) {
		f := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
		if len(f) < 4 || f[0] == "" || f[0][0] == '#' || len(out) == maxAccounts {
			continue
		}
		gid, err := parseID(f[2])
		if err != nil {
			continue
		}
		out = append(out, group{name: f[0], gid: gid, members: strings.Split(f[3], ",")})
	}
	return out
}

// parseID reads a uid or gid. The last one means "unchanged" to the kernel
// and is no account's.
func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err == nil && n == 1<<32-1 {
		return 0, strconv.ErrRange
	}
	return uint32(n), err
}

// accounts looks accounts up in files that may change while the sandbox runs.
type accounts struct {
	passwd, group string
	only          *Account
	self          uint32

	mu     sync.Mutex
	stamps [2]stamp
	users  []Account
	groups []group
}

// stamp tells whether a file has changed.
type stamp struct {
	ino, size int64
	mod       time.Time
}

// lookup finds an account by name, or by the decimal uid of one that exists.
// The error's text is the client's.
func (a *accounts) lookup(name string) (Account, error) {
	if a.only != nil {
		if name == a.only.Name || name == strconv.FormatUint(uint64(a.only.UID), 10) {
			return *a.only, nil
		}
		return Account{}, fmt.Errorf("invalid username: '%s': only the account '%s' exists in this sandbox", clip(name), a.only.Name)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.refresh(); err != nil {
		return Account{}, fmt.Errorf("invalid username: '%s': accounts cannot be read", clip(name))
	}
	i := slices.IndexFunc(a.users, func(u Account) bool { return u.Name == name })
	if uid, err := parseID(name); i < 0 && err == nil {
		i = slices.IndexFunc(a.users, func(u Account) bool { return u.UID == uid })
	}
	if i < 0 {
		return Account{}, fmt.Errorf("invalid username: '%s'", clip(name))
	}
	u := a.users[i]
	// Security: a command of the agent's own uid could signal and trace it.
	// Where the agent is uid 0 its starter has decided so.
	if u.UID == a.self && a.self != 0 {
		return Account{}, fmt.Errorf("invalid username: '%s': the account is the agent's own", clip(name))
	}
	for _, g := range a.groups {
		if g.gid != u.GID && len(u.Groups) < maxGroups && slices.Contains(g.members, u.Name) && !slices.Contains(u.Groups, g.gid) {
			u.Groups = append(u.Groups, g.gid)
		}
	}
	if u.Home == "" {
		u.Home = "/"
	}
	return u, nil
}

// refresh reads the files again when they have changed. The caller holds a.mu.
func (a *accounts) refresh() error {
	p, err := stampOf(a.passwd)
	if err != nil {
		return err
	}
	g, err := stampOf(a.group)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	now := [2]stamp{p, g}
	if a.users != nil && now == a.stamps {
		return nil
	}
	pb, err := readBounded(a.passwd, maxAccountFile)
	if err != nil {
		return err
	}
	gb, err := readBounded(a.group, maxAccountFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	a.users, a.groups, a.stamps = parsePasswd(pb), parseGroup(gb), now
	return nil
}

func stampOf(name string) (stamp, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return stamp{}, err
	}
	st := stamp{size: fi.Size(), mod: fi.ModTime()}
	if sys, ok := fi.Sys().(*syscall.Stat_t); ok {
		st.ino = int64(sys.Ino)
	}
	return st, nil
}

// readBounded reads a regular file of at most limit bytes.
func readBounded(name string, limit int64) ([]byte, error) {
	// Security: without O_NONBLOCK a fifo in the file's place would hold the
	// caller for ever.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read side
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s: larger than %d bytes", name, limit)
	}
	return b, err
}

// clip bounds what an error repeats of a client's string.
func clip(s string) string {
	if len(s) > 256 {
		return s[:256] + "..."
	}
	return s
}
