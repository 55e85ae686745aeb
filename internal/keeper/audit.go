//go:build linux

package keeper

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/egress"
)

// AuditFile is where, in a sandbox's directory, the decisions on its network
// are written, a line of JSON each.
const AuditFile = "audit.jsonl"

// maxAudit bounds that file.
const maxAudit = 8 << 20

// auditLog writes decisions. A nil one drops them.
type auditLog struct {
	mu   sync.Mutex
	f    *os.File
	size int64
}

// openAudit goes on with the file in dir; nil when there can be none.
func openAudit(dir string) *auditLog {
	if dir == "" {
		return nil
	}
	// Security: what a sandbox may have put there in its place is not written to.
	f, err := os.OpenFile(filepath.Join(dir, AuditFile), os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil
	}
	var st unix.Stat_t
	if err := fstat(f, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 || int64(st.Uid) != int64(os.Geteuid()) {
		f.Close() //nolint:errcheck // not ours
		return nil
	}
	return &auditLog{f: f, size: st.Size}
}

func (a *auditLog) write(d egress.Decision) {
	if a == nil {
		return
	}
	line, err := json.Marshal(d)
	if err != nil {
		return
	}
	line = append(line, '\n')
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.f == nil || a.size+int64(len(line)) > maxAudit {
		return
	}
	n, _ := a.f.Write(line) // a full disk drops it
	a.size += int64(n)
}

func (a *auditLog) close() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.f.Close() //nolint:errcheck // each line was written as it came
	a.f = nil
}
