//go:build linux

package keeper

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/unixsock"
)

// protocol counts the changes of request and answer.
const protocol = 1

const (
	// maxMessage bounds a request: rules, and secrets of 64 KiB each.
	maxMessage = 4 << 20
	// maxFiles is how many descriptors are taken in at all.
	maxFiles = 8
)

// op is what a keeper is asked for.
type op string

const (
	opHold    op = "hold"    // until committed, as long as the connection lasts
	opCommit  op = "commit"  // on the connection of opHold
	opHolds   op = "holds"   // is ID held?
	opRelease op = "release" // whatever is held for ID
	opNetwork op = "network" // replace the rules of Held.ID
)

// request is a message to a keeper: its length in four bytes (big-endian), then
// JSON. Descriptors come with the first byte.
type request struct {
	Protocol int    `json:"protocol"`
	Op       op     `json:"op"`
	ID       string `json:"id,omitempty"`
	Held     *Held  `json:"held,omitempty"`
}

// answer is what a keeper says, in the same form.
type answer struct {
	Held  bool         `json:"held,omitempty"`
	Kind  backend.Kind `json:"kind,omitempty"`
	Why   string       `json:"why,omitempty"`
	Field string       `json:"field,omitempty"`
	Fix   string       `json:"fix,omitempty"`
}

func failed(err error) answer {
	a := answer{Kind: backend.ErrInternal, Why: err.Error()}
	if be, ok := errors.AsType[*backend.Error](err); ok {
		a.Kind, a.Field, a.Fix, a.Why = be.Kind, be.Field, be.Fix, "refused"
		if be.Err != nil {
			a.Why = be.Err.Error()
		}
	}
	return a
}

func (a answer) err(id string) error {
	if a.Kind == "" {
		return nil
	}
	return &backend.Error{Op: "keeper", Kind: a.Kind, Sandbox: id, Field: a.Field, Fix: a.Fix, Err: errors.New(a.Why)}
}

// send writes a message, with descriptors.
func send(c *net.UnixConn, message any, files []*os.File) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return invalid("%d bytes are more than a keeper takes", len(body))
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			raw, err := f.SyscallConn()
			if err != nil {
				return err
			}
			// Not Fd, which would make it a blocking one. The caller keeps it open.
			if err := raw.Control(func(fd uintptr) { fds[i] = int(fd) }); err != nil {
				return err
			}
		}
		oob = unix.UnixRights(fds...)
	}
	var head [4]byte
	binary.BigEndian.PutUint32(head[:], uint32(len(body)))
	n, _, err := c.WriteMsgUnix(head[:], oob, nil)
	if err != nil {
		return err
	}
	_, err = c.Write(append(head[n:], body...))
	return err
}

// receive reads a message and the descriptors that came with it, which the
// caller closes. Descriptors that come later are dropped by the kernel.
func receive(c *net.UnixConn, message any) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	var head [4]byte
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := c.ReadMsgUnix(head[:], oob)
	if err != nil {
		return nil, err
	}
	if files, err = descriptors(oob[:oobn]); err != nil {
		return files, err
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return files, invalid("more than %d descriptors", maxFiles)
	}
	if n == 0 {
		return files, io.EOF
	}
	if _, err := io.ReadFull(c, head[n:]); err != nil {
		return files, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxMessage {
		return files, invalid("a message of %d bytes", size)
	}
	// As it comes, and not as it was announced.
	body, err := io.ReadAll(io.LimitReader(c, int64(size)))
	if err == nil && len(body) < int(size) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return files, err
	}
	if err := json.Unmarshal(body, message); err != nil {
		return files, invalid("a message that is no request")
	}
	return files, nil
}

func descriptors(oob []byte) (files []*os.File, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("descriptors: %w", err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // of another kind
		}
		for _, fd := range fds {
			unix.SetNonblock(fd, true) //nolint:errcheck // what cannot is refused by its type
			files = append(files, os.NewFile(uintptr(fd), "handed over"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close() //nolint:errcheck // ours of several
	}
}

// sameUser refuses a peer that runs as somebody else.
func sameUser(c *net.UnixConn) error {
	cred, err := unixsock.Peer(c)
	if err != nil {
		return err
	}
	if int64(cred.Uid) != int64(os.Geteuid()) {
		return &backend.Error{Op: "keeper", Kind: backend.ErrDenied, Err: fmt.Errorf("the peer runs as uid %d", cred.Uid)}
	}
	return nil
}
