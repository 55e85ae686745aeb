//go:build linux

package subprocess_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/glovebox-dev/glovebox/backend"
)

// fill writes until the disk is full, and says what stopped it.
const fill = `
import errno, os, sys
where = sys.argv[1]
try:
    with open(os.path.join(where, "full"), "wb", buffering=0) as f:
        while True:
            f.write(b"x" * 65536)
except OSError as e:
    print(errno.errorcode[e.errno])
if len(sys.argv) > 2:
    os.unlink(os.path.join(where, "full"))
`

func TestHits_fullDiskIsENOSPC(t *testing.T) {
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		for _, where := range []string{"/home/user", "/tmp", "/var/tmp", "/dev/shm"} {
			sb := h.create(t, backend.Spec{Limits: backend.Limits{Memory: 64 << 20, Disk: 8 << 20}})
			got := run(t, sb, backend.Command{Args: []string{"/usr/bin/python3", "-c", fill, where}}).succeed(t)
			if got.out != "ENOSPC\n" || !slices.Contains(got.Hits, backend.HitDisk) || slices.Contains(got.Hits, backend.HitMemory) {
				t.Errorf("%s: %q, hits %v", where, got.out, got.Hits)
			}
			err := backend.WriteFile(t.Context(), sb.Files(), "one more", []byte("x"), 0)
			wantKind(t, err, backend.ErrTooLarge)
			sh(t, sb, "rm "+where+"/full").succeed(t)
			if got := sh(t, sb, "echo room >room && cat room").succeed(t); got.out != "room\n" || len(got.Hits) != 0 {
				t.Errorf("after a removal: %q, hits %v", got.out, got.Hits)
			}
		}
	})
}

func TestHits_inodes(t *testing.T) {
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Limits: backend.Limits{Inodes: 100}})
		got := python(t, sb, `
n = 0
try:
    while True:
        open("file%d" % n, "w").close()
        n += 1
except OSError as e:
    print(n)
`).succeed(t)
		if n := strings.TrimSpace(got.out); len(n) != 2 || !slices.Contains(got.Hits, backend.HitFiles) {
			t.Errorf("%s files were made, hits %v", n, got.Hits)
		}
	})
}

func TestHits_limitsOfProcesses(t *testing.T) {
	inModes(t, contained, func(t *testing.T, h *harness) {
		sb := h.create(t, backend.Spec{Limits: backend.Limits{OpenFiles: 50, FileSize: 100_000}})
		got := python(t, sb, `
import os, resource
fds = []
try:
    while True:
        fds.append(os.open("/dev/null", os.O_RDONLY))
except OSError as e:
    print(e.strerror)
print(fds[-1], resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_NOFILE))
for fd in fds: os.close(fd)
try:
    n = 0
    with open("big", "wb", buffering=0) as f:
        for i in range(30):
            n += f.write(b"x" * 10000)
except OSError as e:
    print(n, e.strerror)
for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
    try:
        resource.setrlimit(what, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (ValueError, PermissionError, OSError) as e:
        print("cannot raise")
`).succeed(t)
		want := "Too many open files\n49 (0, 0) (50, 50)\n100000 File too large\ncannot raise\ncannot raise\n"
		if got.out != want {
			t.Errorf("%q, want %q", got.out, want)
		}
	})
}
