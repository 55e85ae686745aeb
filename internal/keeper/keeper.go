//go:build linux

// Package keeper is the small process that holds, for a store, what its kept
// sandboxes need from their host while nobody is connected: the one byte stream
// to an agent that has no socket, and the proxy of a sandbox with network mode
// allowlist. It is started by whoever first needs it, other processes go
// through it, and it ends by itself when it holds nothing.
//
// Killed, its streams end, and so do the sandboxes behind them. Sandboxes that
// are reached otherwise live on without a network, until a process that finds
// them has it held anew. Secrets are resolved again then, so that env:
// references are those of the finding process.
package keeper

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/internal/state"
)

const (
	// Idle is how long a keeper stays that holds nothing.
	Idle = 10 * time.Second
	// agentSocket is where agents are reached, in a sandbox's directory.
	agentSocket = "agent.sock"

	lockFile   = "keeper.lock"
	socketFile = "keeper.sock"
	logFile    = "keeper.log"
)

// Held is a sandbox that a keeper holds something for. It does so until Proc
// has ended.
type Held struct {
	ID   string     `json:"id"`
	Proc state.Proc `json:"proc"`
	// Stream is how the agent is reached that has no socket of its own: the
	// keeper then serves Socket. Without one it finds the agent there.
	Stream *Stream `json:"stream,omitempty"`
	// Socket is a name below the sandbox's directory; "" is agent.sock.
	Socket string `json:"socket,omitempty"`
	// Token is what the agent asks of callers.
	Token string `json:"token,omitempty"`
	// Network has its proxy run by the keeper when its mode is allowlist.
	// Secrets are those that it names.
	Network backend.Network              `json:"network,omitzero"`
	Secrets map[backend.SecretRef]string `json:"secrets,omitempty"`
}

// Stream is the one byte stream to an agent.
type Stream struct {
	// Files are one socket, or the end to read and the end to write of two
	// pipes. The keeper gets descriptors of its own: the caller closes these
	// once the sandbox is held, and must not use the stream any more.
	Files   []*os.File `json:"-"`
	Framing Framing    `json:"framing,omitempty"`
	// Ahead is what has been read of the stream already, as it came.
	Ahead []byte `json:"ahead,omitempty"`
	// Left is how much is missing of the frame that was being read, before
	// Ahead, and LeftError that it is one of the error output.
	Left      uint32 `json:"left,omitempty"`
	LeftError bool   `json:"left_error,omitempty"`
}

// Framing is how a stream's bytes are wrapped.
type Framing string

// The framings.
const (
	// Raw is not at all.
	Raw Framing = ""
	// DockerAttach has what is read in the frames of an attached container
	// without a terminal; what is written is raw. Its error output is dropped.
	DockerAttach Framing = "docker_attach"
)

// maxAhead bounds Stream.Ahead.
const maxAhead = 64 << 10

// check refuses what no keeper can hold.
func (h *Held) check(files int) error {
	want := 0
	if s := h.Stream; s != nil {
		want = files
		if files != 1 && files != 2 {
			return invalid("a stream of %d descriptors", files)
		}
		if s.Framing != Raw && s.Framing != DockerAttach || s.Framing == Raw && (s.Left != 0 || s.LeftError) {
			return invalid("the framing %q", s.Framing)
		}
		if len(s.Ahead) > maxAhead {
			return invalid("%d bytes that were read ahead", len(s.Ahead))
		}
	}
	switch {
	case files != want:
		return invalid("%d descriptors", files)
	case !backend.ValidID(h.ID):
		return invalid("the ID %.60q", h.ID)
	case h.Socket != "" && !filepath.IsLocal(h.Socket):
		return invalid("the socket %.60q", h.Socket)
	case h.Stream == nil && h.Network.Mode != backend.NetworkAllowlist && h.Network.Mode != backend.NetworkFull:
		return invalid("nothing to hold")
	}
	return h.Network.Validate()
}

func invalid(format string, args ...any) error {
	return &backend.Error{Op: "keeper", Kind: backend.ErrInvalid, Err: fmt.Errorf(format, args...)}
}

// runDir is a sandbox's own directory.
func runDir(store, id string) string { return filepath.Join(store, "run", id) }

// socket is the path of the agent's socket.
func (h *Held) socket(store string) string {
	return filepath.Join(runDir(store, h.ID), cmp.Or(h.Socket, agentSocket))
}

// watchProcess has a descriptor that is readable once the process has ended,
// whatever has its number by then.
func watchProcess(p state.Proc) (*os.File, error) {
	gone := &backend.Error{Op: "keeper", Kind: backend.ErrNotFound, Err: fmt.Errorf("process %d has ended", p.PID)}
	if p.PID <= 0 || p.Start == 0 {
		return nil, gone
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, gone
	}
	if now, err := state.StartTime(p.PID); err != nil || now != p.Start {
		unix.Close(fd) //nolint:errcheck // another process
		return nil, gone
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// awaitEnd returns when the process has ended or fd is closed.
func awaitEnd(fd *os.File) {
	raw, err := fd.SyscallConn()
	if err != nil {
		return
	}
	raw.Read(func(fd uintptr) bool { //nolint:errcheck // closed is an end too
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
}
