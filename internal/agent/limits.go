//go:build linux

package agent

import "time"

// What one sandbox can make the agent hold.
const (
	maxRunning     = 512       // commands at once, above it resource_exhausted
	maxEnded       = 128       // ended commands remembered, the oldest go first
	maxSubscribers = 64        // streams following one command
	maxDrains      = 256       // pipes read to nowhere after their command's end
	maxDials       = 256       // connections to ports inside
	maxMessage     = 16 << 20  // bytes of one request message
	maxPending     = 32 << 20  // bytes of input that commands have not read yet
	maxInit        = 1 << 20   // bytes of an /init body
	maxTag         = 4096      // bytes of a tag
	maxRemembered  = 16 << 10  // bytes of arguments and environment of an ended command
	ringSize       = 256 << 10 // bytes of output kept for one command
	ringsTotal     = 8 << 20   // bytes of output kept for all commands

	chunkSize    = 32 << 10 // bytes of one output event
	ptyChunkSize = 16 << 10

	// queued is how many events a stream may lag before it holds up the
	// command.
	queued = 4
	// stall is how long a stream other than the starter's may take nothing
	// before it is dropped. The starter's may take as long as it likes: its
	// back-pressure slows the command.
	stall = 10 * time.Second
	// connectable is how long an ended command can still be connected to.
	connectable = 30 * time.Second
	// heldGrace is how long after its end descendants may hold the output.
	heldGrace = time.Second
	// heldBudget bounds what is still read of a pipe then. It is the largest
	// pipe an unprivileged program can make.
	heldBudget = 1 << 20
	// unkillable is how long Close waits for a process to die.
	unkillable = 5 * time.Second
	// syntheticPID is where the numbers of programs that could not be executed
	// start; the kernel's end at 1<<22.
	syntheticPID = 1 << 30

	defaultKeepalive = 90 * time.Second
	defaultPath      = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)
