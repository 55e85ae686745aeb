//go:build linux

package unixsock_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/internal/unixsock"
)

// A directory's path may be longer than a socket's, and the peer is ourselves.
func TestListen_longPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	if _, err := net.Listen("unix", path); err == nil {
		t.Error("control: the path is not too long")
	}
	l, err := unixsock.Listen(dir, "s", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if fi, err := os.Lstat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	c, err := unixsock.Dialer(path)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cred, err := unixsock.Peer(c)
	if err != nil || int(cred.Pid) != os.Getpid() || int(cred.Uid) != os.Geteuid() {
		t.Errorf("%+v, %v", cred, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the file of a closed listener: %v", err)
	}
	if c, err := unixsock.Dialer(path)(t.Context()); err == nil || c != nil {
		t.Errorf("nobody listens: %v, %v", c, err)
	}
}

// A connection is handed out once, and not one of another kind has a peer.
func TestOnce(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	dial := unixsock.Once(a)
	if c, err := dial(t.Context()); c != a || err != nil {
		t.Errorf("first: %v, %v", c, err)
	}
	if c, err := dial(t.Context()); c != nil || err == nil {
		t.Errorf("second: %v, %v", c, err)
	}
	if cred, err := unixsock.Peer(a); err == nil {
		t.Errorf("a pipe's peer: %v", cred)
	}
}
