//go:build linux

package dockerbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch"
)

// maxSlots is how many sandboxes of a store have uids of their own on engines
// elsewhere; each costs the engine a small image. The others share theirs.
const maxSlots = 256

// farUIDs is where the uids of a slot begin on an engine that maps none. Slot 0
// is for those without one.
func farUIDs(store string, slot int) int {
	sum := sha256.Sum256([]byte(store))
	first := int(binary.BigEndian.Uint32(sum[:]) % (1 << 12))
	return 1<<28 + (first+slot)%(1<<12)<<16
}

// takeSlot is the lowest slot of the store's that no sandbox has, with the lock
// that holds it; 0 where all are taken.
func (d *Driver) takeSlot() (int, *os.File, error) {
	dir := filepath.Join(d.store.Dir(), "uids")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, nil, err
	}
	for slot := 1; slot <= maxSlots; slot++ {
		f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(slot)), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return 0, nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return slot, f, nil
		}
		f.Close() //nolint:errcheck // nothing was written
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return 0, nil, err
		}
	}
	return 0, nil, nil
}

// derive is the ID of an image with the agent in it and, where the engine maps
// no uids and takes single layers, with uids that only this sandbox has.
func (m *maker) derive(ctx context.Context) (string, error) {
	id, whole, err := m.withAgent(ctx)
	if err != nil || whole || m.info.UsernsRemap || m.info.Rootless {
		return id, err
	}
	if m.slot == nil {
		n, lock, err := m.d.takeSlot()
		if err != nil || lock == nil {
			return id, err
		}
		m.slot = lock
		m.Undo(func() { lock.Close() }) //nolint:errcheck // with it the lock ends
		base := farUIDs(m.Store.ID(), n)
		m.user, m.agent = base+launch.UserUID, base+launch.AgentUID
	}
	return m.withUser(ctx, id)
}
