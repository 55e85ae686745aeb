//go:build linux

package egress

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/envd/wire"
)

const (
	// packetBatch is how much of what programs sent is passed on in one go.
	packetBatch = 128 << 10
	maxPacket   = 1<<16 - 1
)

// servePackets carries the device's packets while the session decides and the
// host listens. While nobody does, the kernel drops what there is no room for.
func (s *Service) servePackets(w http.ResponseWriter, r *http.Request) {
	own := s.owned(r.Header.Get(wire.HeaderNetSession))
	if own == nil {
		http.Error(w, "packets: another session decides", http.StatusConflict)
		return
	}
	s.carrying.Lock() // a device has one reader
	defer s.carrying.Unlock()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(own, cancel)() //nolint:contextcheck // the owner's end is every request's
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex() // HTTP/2 is already and says so with an error
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	if rc.Flush() != nil {
		return
	}
	dev := s.opts.Device
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		toDevice(dev, r.Body)
	})
	wg.Go(func() {
		<-ctx.Done()
		_ = r.Body.Close()
		_ = dev.SetReadDeadline(time.Unix(1, 0)) // wakes the reader
	})
	fromDevice(ctx, dev, flushing{w, rc})
	cancel()
	wg.Wait()
	_ = dev.SetReadDeadline(time.Time{})
}

// toDevice gives the sandbox its packets. Those that its kernel does not take
// are lost, as on any network.
func toDevice(dev *os.File, body io.Reader) {
	br := bufio.NewReaderSize(body, packetBatch)
	var head [wire.NetPacketHead]byte
	buf := make([]byte, maxPacket)
	for {
		if _, err := io.ReadFull(br, head[:]); err != nil {
			return
		}
		p := buf[:binary.BigEndian.Uint16(head[:])]
		if _, err := io.ReadFull(br, p); err != nil {
			return
		}
		if len(p) == 0 {
			continue
		}
		if _, err := dev.Write(p); errors.Is(err, os.ErrClosed) {
			return
		}
	}
}

// fromDevice sends what programs sent.
func fromDevice(ctx context.Context, dev *os.File, w io.Writer) {
	raw, err := dev.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, packetBatch+wire.NetPacketHead+maxPacket)
	for ctx.Err() == nil {
		n := 0
		var rerr error
		err := raw.Read(func(fd uintptr) bool {
			n, rerr = readPackets(int(fd), buf)
			return n > 0 || rerr != nil
		})
		if err != nil || rerr != nil {
			return
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return
		}
	}
}

// readPackets fills buf with frames of the packets that wait.
func readPackets(fd int, buf []byte) (int, error) {
	n := 0
	for n < packetBatch {
		size, err := unix.Read(fd, buf[n+wire.NetPacketHead:n+wire.NetPacketHead+maxPacket])
		switch {
		case errors.Is(err, syscall.EAGAIN):
			return n, nil
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return n, err
		case size <= 0:
			return n, io.EOF
		}
		binary.BigEndian.PutUint16(buf[n:], uint16(size))
		n += wire.NetPacketHead + size
	}
	return n, nil
}
