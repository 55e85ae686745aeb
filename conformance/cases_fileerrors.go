package conformance

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
)

func fileErrorCases() []Case {
	sh := needs(shell())
	return []Case{
		{ID: "FS-30", Area: Files, Title: "a FIFO is refused, and nobody waits for its other end", Needs: sh, Run: openFIFO},
		{ID: "FS-31", Area: Files, Title: "directories and sockets are refused", Needs: append(sh, python()), Run: openSpecial},
		{ID: "FS-32", Area: Files, Title: "devices are refused", Needs: append(sh, feature(backend.FeaturePrivateRoot)), Run: openDevice},
		{ID: "FS-33", Area: Files, Title: "a dangling link does not exist, and a loop of links is an error", Needs: sh, Run: badLinks},
		{ID: "FS-34", Area: Files, Title: "a file where a directory is needed, and the reverse, is invalid", Needs: sh, Run: wrongKind},
		{ID: "FS-35", Area: Files, Title: "the home and the root cannot be removed", Needs: sh, Run: removeHome},
		{ID: "FS-36", Area: Files, Title: "a name that is too long is an error", Needs: sh, Run: longNames},
		{ID: "FS-37", Area: Files, Title: "no name reads what the host keeps from sandboxes", Needs: append(sh, claimed(backend.ControlHostFiles)), Run: readHost},
		{ID: "FS-38", Area: Files, Title: "no name writes outside the scratch", Needs: append(sh, claimed(backend.ControlReadOnly)), Run: writeOutside},
		{ID: "FS-39", Area: Files, Title: "what the user may not, the files of the user may not: fs.ErrPermission", Needs: append(sh, claimed(backend.ControlReadOnly)), Run: noPermission},
		{ID: "FS-40", Area: Files, Title: "a reader that is closed early does no harm", Needs: sh, Run: closedEarly},
		{ID: "FS-41", Area: Files, Title: "the context of Open bounds the reading", Needs: sh, Run: readCancelled},
		{ID: "FS-42", Area: Files, Title: "a write whose context ends says so", Needs: sh, Run: writeCancelled},
		{ID: "FS-43", Area: Files, Title: "a full disk is too_large, and room again is room", Needs: append(sh, enforced(backend.ControlDisk)), Run: fullDisk},
	}
}

// readAll reads a file, as a caller that bounds what it takes.
func readAll(ctx context.Context, files backend.Filesystem, name string) error {
	_, err := backend.ReadFile(ctx, files, name, 1<<20)
	return err
}

func openFIFO(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.good(t.sh(ctx, sb, "mkfifo fifo; ln -s fifo link"))
	short, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for _, name := range []string{"fifo", "link"} {
		t.kind("open "+name, readAll(short, sb.Files(), name), backend.ErrInvalid)
	}
}

func openSpecial(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.good(t.sh(ctx, sb, "mkdir dir"))
	t.kind("a directory", readAll(ctx, sb.Files(), "dir"), backend.ErrInvalid)
	made := t.python(ctx, sb, "import socket; socket.socket(socket.AF_UNIX).bind('socket')")
	if made.Success() { // where sockets can be made at all
		t.kind("a socket", readAll(ctx, sb.Files(), "socket"), backend.ErrInvalid)
	}
}

func openDevice(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	for _, name := range []string{"/dev/null", "/dev/zero", "/dev/urandom"} {
		t.kind(name, readAll(ctx, sb.Files(), name), backend.ErrInvalid, backend.ErrDenied)
	}
}

func badLinks(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.good(t.sh(ctx, sb, "ln -s missing dangling; ln -s loop2 loop; ln -s loop loop2"))
	if err := readAll(ctx, sb.Files(), "dangling"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("dangling: %v", err)
	}
	err := readAll(ctx, sb.Files(), "loop")
	if err == nil || backend.KindOf(err) == backend.ErrInternal || backend.KindOf(err) == backend.ErrLost {
		t.Errorf("loop: %q of %v", backend.KindOf(err), err)
	}
}

func wrongKind(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	files := sb.Files()
	t.good(t.sh(ctx, sb, "mkdir dir; touch dir/x file"))
	_, lerr := files.List(ctx, "file")
	for what, err := range map[string]error{
		"list a file": lerr, "write over a directory": backend.WriteFile(ctx, files, "dir", []byte("x"), 0),
		"write below a file": backend.WriteFile(ctx, files, "file/x", []byte("x"), 0), "mkdir over a file": files.Mkdir(ctx, "file", 0),
		"mkdir below a file": files.Mkdir(ctx, "file/d", 0),
	} {
		t.kind(what, err, backend.ErrInvalid, backend.ErrConflict)
	}
	t.good(t.sh(ctx, sb, "test -d dir && test -e dir/x && test -f file"))
}

func removeHome(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.write(ctx, sb, "file", "x")
	for _, name := range []string{".", "/", "./", "x/..", "..", "../.."} {
		if err := sb.Files().Remove(ctx, name); err == nil {
			t.Errorf("%q was removed", name)
		}
	}
	if t.read(ctx, sb, "file") != "x" {
		t.Errorf("the file is gone")
	}
}

func longNames(ctx context.Context, t *T) {
	files := t.Create(ctx, backend.Spec{}).Files()
	for _, name := range []string{strings.Repeat("n", 300), strings.Repeat("d/", 5000) + "x"} {
		t.kind("write", backend.WriteFile(ctx, files, name, []byte("x"), 0), backend.ErrInvalid, backend.ErrTooLarge)
	}
}

func readHost(ctx context.Context, t *T) {
	secret := filepath.Join(t.hostDir(), "beside")
	if data, err := os.ReadFile(secret); err != nil || len(data) == 0 {
		t.Inconclusivef("the host itself cannot read it: %v", err)
	}
	sb := t.Create(ctx, backend.Spec{})
	t.good(t.sh(ctx, sb, "ln -s / root; ln -s ../../../../../../../../.. up; ln -s "+secret+" direct; ln -s /proc/1/root proc"))
	for _, name := range []string{
		secret, "../../../../../../../.." + secret, "root" + secret, "up" + secret, "direct", "proc" + secret, "/proc/1/root" + secret,
		"/proc/1/environ", "/etc/shadow", "root/etc/shadow",
	} {
		if data, err := backend.ReadFile(ctx, sb.Files(), name, 1<<20); err == nil {
			t.Errorf("%s can be read: %.100q", name, data)
		}
		if got := t.command(ctx, sb, backend.Command{Args: []string{"cat", "--", name}}); got.Success() {
			t.Errorf("a command can read %s: %.100q", name, got.out)
		}
	}
}

func writeOutside(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	dir := t.hostDir()
	t.good(t.sh(ctx, sb, "ln -s / root; ln -s ../../../../../../../../.. up"))
	for _, name := range []string{"../../../../../../etc/x", "/etc/x", "root/etc/x", "up/etc/x", "/usr/bin/x", "/proc/sys/kernel/hostname", "/dev/x"} {
		if err := backend.WriteFile(ctx, sb.Files(), name, []byte("x"), 0); err == nil {
			t.Errorf("%s was written", name)
		}
		if err := sb.Files().Mkdir(ctx, name+"dir", 0); err == nil {
			t.Errorf("%sdir was made", name)
		}
	}
	for _, name := range []string{filepath.Join(dir, "beside"), "root" + dir + "/beside"} {
		_ = backend.WriteFile(ctx, sb.Files(), name, []byte("overwritten"), 0) // where it has a root of its own this may even work
		_ = sb.Files().Remove(ctx, name)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "beside")); err != nil || string(data) != "beside of the host\n" {
		t.Errorf("on the host: %q, %v", data, err)
	}
}

func noPermission(ctx context.Context, t *T) {
	files := t.Create(ctx, backend.Spec{}).Files()
	for what, err := range map[string]error{
		"write": backend.WriteFile(ctx, files, "/usr/bin/x", []byte("x"), 0), "mkdir": files.Mkdir(ctx, "/usr/x", 0), "remove": files.Remove(ctx, "/usr/bin/env"),
	} {
		t.kind(what, err, backend.ErrDenied)
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s: not fs.ErrPermission: %v", what, err)
		}
	}
}

func closedEarly(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.write(ctx, sb, "big", string(pattern(8<<20)))
	for range 20 {
		rc, err := sb.Files().Open(ctx, "big")
		if err != nil {
			t.Fatalf("%v", err)
		}
		if _, err := io.ReadFull(rc, make([]byte, 10)); err != nil {
			t.Errorf("%v", err)
		}
		if err := rc.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if got := t.read(ctx, sb, "big"); len(got) != 8<<20 {
		t.Errorf("%d bytes", len(got))
	}
}

func readCancelled(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	t.write(ctx, sb, "big", string(pattern(24<<20)))
	rctx, cancel := context.WithCancel(ctx)
	rc, err := sb.Files().Open(rctx, "big")
	if err != nil {
		cancel()
		t.Fatalf("%v", err)
	}
	defer rc.Close()
	_, err = io.ReadFull(rc, make([]byte, 1000))
	cancel()
	if err != nil {
		t.Fatalf("%v", err)
	}
	if n, err := io.Copy(io.Discard, rc); !errors.Is(err, context.Canceled) {
		t.Errorf("%d bytes more, %v", n, err)
	}
}

func writeCancelled(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{})
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	r, w := io.Pipe()
	go func() { _, _ = w.Write([]byte("some")) }() // and then nothing more
	err := sb.Files().Write(short, "f", r, 0)
	_ = r.Close()
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	t.write(ctx, sb, "g", "fine")
}

func fullDisk(ctx context.Context, t *T) {
	sb := t.Create(ctx, backend.Spec{Limits: backend.Limits{Disk: 8 << 20}})
	err := sb.Files().Write(ctx, "too big", io.LimitReader(endless('x'), 20<<20), 0)
	t.kind("write", err, backend.ErrTooLarge)
	if err := sb.Files().Remove(ctx, "too big"); err != nil {
		t.Errorf("%v", err)
	}
	t.write(ctx, sb, "small", string(pattern(1<<20)))
}
