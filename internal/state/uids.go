package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/glovebox-dev/glovebox/backend"
)

const (
	// UIDLeaseDir is where the leases of a host lie, whatever the store.
	UIDLeaseDir = "/run/glovebox/uids"
	// UIDLeaseSize is how many uids, and gids, one lease has.
	UIDLeaseSize = 1 << 16
	// UIDLeases is how many ranges there are.
	UIDLeases = 8192

	firstUID = 0x20000000
)

// UIDLease is a range of host uids, and the same gids, that no other sandbox
// of this host has while the lease's lock is held.
type UIDLease struct {
	slot int
	path string
	lock *os.File
	once sync.Once
}

// LeaseUIDs leases a range in dir, UIDLeaseDir when empty. All ranges being in
// use is ErrCapacity. Whoever got it calls Release.
func LeaseUIDs(dir string) (*UIDLease, error) {
	if dir == "" {
		dir = UIDLeaseDir
		if err := secureDir(filepath.Dir(dir), 0o755); err != nil {
			return nil, err
		}
	}
	if err := secureDir(dir, 0o755); err != nil {
		return nil, err
	}
	start := rand.IntN(UIDLeases)
	for i := range UIDLeases {
		l, err := lease(dir, (start+i)%UIDLeases)
		if err != nil {
			return nil, err
		}
		if l != nil {
			return l, nil
		}
	}
	return nil, &backend.Error{
		Op: "state", Kind: backend.ErrCapacity, Err: fmt.Errorf("all %d uid ranges in %s are in use", UIDLeases, dir),
		Fix: "destroy some sandboxes",
	}
}

// lease takes a slot, nil when it is taken.
func lease(dir string, slot int) (*UIDLease, error) {
	path := filepath.Join(dir, strconv.Itoa(slot))
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|noFollow, 0o600)
	if err != nil {
		return nil, diskError("lease uids", path, err)
	}
	ok, err := tryLock(f)
	if err == nil && ok && stillThere(f, path) && !handed(f) {
		return &UIDLease{slot: slot, path: path, lock: f}, nil
	}
	f.Close() //nolint:errcheck // read side
	if err != nil {
		return nil, diskError("lease uids", path, err)
	}
	return nil, nil //nolint:nilnil // taken
}

// TidyUIDs removes the files of leases in dir, UIDLeaseDir when empty, that
// nobody holds: those of processes that were killed, or whose sandbox somebody
// else ended. They could be leased again all the same.
func TidyUIDs(dir string) error {
	if dir == "" {
		dir = UIDLeaseDir
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return diskError("list the uids", dir, err)
	}
	for _, e := range entries {
		slot, err := strconv.Atoi(e.Name())
		if err != nil || slot < 0 || slot >= UIDLeases {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, e.Name()), os.O_RDONLY|noFollow, 0)
		if err != nil {
			continue // gone meanwhile
		}
		// Whoever is about to lease it looks, once it has the lock, whether the
		// file is still there.
		if ok, err := tryLock(f); err == nil && ok && stillThere(f, f.Name()) && !handed(f) {
			os.Remove(f.Name()) //nolint:errcheck // the next time
		}
		f.Close() //nolint:errcheck // read side
	}
	return nil
}

// Base is the first uid and gid of the range.
func (l *UIDLease) Base() uint32 {
	return firstUID + uint32(l.slot)*UIDLeaseSize
}

// LeasedUID tells whether uid, or gid, is one that leases give out.
func LeasedUID(uid uint32) bool {
	return uid >= firstUID && uid-firstUID < UIDLeases*UIDLeaseSize
}

// File carries the lock. A process that inherits it holds the lease until it
// ends, though the lease be closed here. The UIDLease keeps owning it.
func (l *UIDLease) File() *os.File { return l.lock }

// Hand gives the lease to a process that cannot hold its lock: the range is
// taken as long as p runs, whoever closes the lease.
func (l *UIDLease) Hand(p Proc) error {
	data, err := json.Marshal(holder{Proc: p, BootID: BootID()})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_TRUNC|noFollow, 0)
	if err != nil {
		return diskError("hand on the uids", l.path, err)
	}
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// holder is who a lease was handed to.
type holder struct {
	Proc
	BootID string `json:"boot_id"`
}

// handed tells whether a lease belongs to a process that still runs.
func handed(f *os.File) bool {
	var h holder
	if json.NewDecoder(io.LimitReader(f, 1<<10)).Decode(&h) != nil {
		return false
	}
	return h.BootID == BootID() && h.runs()
}

// Release ends the lease, no process having the range's uids any more. It may
// be called repeatedly.
func (l *UIDLease) Release() (err error) {
	l.once.Do(func() {
		err = os.Remove(l.path)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		l.lock.Close() //nolint:errcheck // read side
	})
	return err
}

// Close gives up this process's hold and leaves the lease to those that
// inherited File. It may be called repeatedly; Release then does nothing.
func (l *UIDLease) Close() (err error) {
	l.once.Do(func() { err = l.lock.Close() })
	return err
}
