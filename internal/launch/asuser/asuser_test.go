//go:build linux

package asuser_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch/asuser"
	"github.com/glovebox-dev/glovebox/internal/testenv"
)

// openDir is a directory that every user can reach and enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestDo_kernelRefusesWhatTheUserMayNotDo(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	dir := openDir(t)
	secret, private := filepath.Join(dir, "secret"), filepath.Join(dir, "private")
	group := filepath.Join(dir, "group")
	if err := errors.Join(os.WriteFile(secret, []byte("x"), 0o600), os.Mkdir(private, 0o700),
		os.WriteFile(group, []byte("x"), 0o640), os.Chown(group, 0, 4321)); err != nil {
		t.Fatal(err)
	}
	read := func(p string) func() error {
		return func() error { _, err := os.ReadFile(p); return err }
	}
	tests := []struct {
		name   string
		cred   asuser.Cred
		do     func() error
		refuse bool
	}{
		{"read 0600", asuser.Cred{UID: 1000, GID: 1000}, read(secret), true},
		{"read 0600 as nobody", asuser.Cred{UID: 65534, GID: 65534}, read(secret), true},
		{"write 0600", asuser.Cred{UID: 1000, GID: 1000}, func() error {
			f, err := os.OpenFile(secret, os.O_WRONLY, 0)
			if err == nil {
				err = f.Close()
			}
			return err
		}, true},
		{"enter 0700", asuser.Cred{UID: 1000, GID: 1000}, func() error { _, err := os.ReadDir(private); return err }, true},
		{"chown", asuser.Cred{UID: 1000, GID: 1000}, func() error { return os.Chown(secret, 0, 0) }, true},
		{"chmod", asuser.Cred{UID: 1000, GID: 1000}, func() error { return os.Chmod(secret, 0o600) }, true},
		{"make device", asuser.Cred{UID: 1000, GID: 1000}, func() error {
			p := filepath.Join(dir, "null")
			defer func() { _ = os.Remove(p) }()
			return unix.Mknod(p, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
		}, true},
		{"group not held", asuser.Cred{UID: 1000, GID: 1000, Groups: []uint32{5}}, read(group), true},
		{"group held", asuser.Cred{UID: 1000, GID: 1000, Groups: []uint32{5, 4321}}, read(group), false},
		{"primary group", asuser.Cred{UID: 1000, GID: 4321}, read(group), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.do(); err != nil {
				t.Fatalf("control: without the switch it fails too: %v", err)
			}
			if err := asuser.Do(tt.cred, tt.do); errors.Is(err, fs.ErrPermission) != tt.refuse {
				t.Errorf("as %v: %v, want refused %v", tt.cred, err, tt.refuse)
			}
			if err := tt.do(); err != nil {
				t.Errorf("afterwards the program lost its own rights: %v", err)
			}
		})
	}
}

func TestDo_filesBelongToTheUser(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	p := filepath.Join(openDir(t), "f")
	if err := asuser.Do(asuser.Cred{UID: 1000, GID: 1001}, func() error { return os.WriteFile(p, nil, 0o600) }); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(p, &st); err != nil || st.Uid != 1000 || st.Gid != 1001 {
		t.Errorf("owner %d:%d, %v, want 1000:1001", st.Uid, st.Gid, err)
	}
}

func fsIDs(t *testing.T) [2]uintptr {
	t.Helper()
	uid, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, ^uintptr(0), 0, 0)
	gid, _, _ := unix.RawSyscall(unix.SYS_SETFSGID, ^uintptr(0), 0, 0)
	return [2]uintptr{uid, gid}
}

func TestDo_restoresAfterErrorPanicAndNesting(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	runtime.LockOSThread() // so that the same thread is looked at
	defer runtime.UnlockOSThread()
	user, nobody := asuser.Cred{UID: 1000, GID: 1000}, asuser.Cred{UID: 65534, GID: 65534}
	want := fsIDs(t)
	boom := errors.New("boom")
	if err := asuser.Do(user, func() error { return boom }); !errors.Is(err, boom) {
		t.Errorf("got %v, want the function's error", err)
	}
	if err := asuser.Do(user, func() error { panic("boom") }); err == nil {
		t.Error("a panic was no error")
	}
	err := asuser.Do(user, func() error {
		outer := fsIDs(t)
		err := asuser.Do(nobody, func() error {
			if got := fsIDs(t); got != [2]uintptr{65534, 65534} {
				t.Errorf("nested: %v", got)
			}
			return nil
		})
		if got := fsIDs(t); got != outer {
			t.Errorf("after the nested call: %v, want %v", got, outer)
		}
		return err
	})
	if got := fsIDs(t); err != nil || got != want {
		t.Errorf("afterwards: %v, %v, want %v", got, err, want)
	}
}

func TestDo_concurrentCallsDoNotMix(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			uid := uint32(1000 + i)
			for range 200 {
				err := asuser.Do(asuser.Cred{UID: uid, GID: uid}, func() error {
					runtime.Gosched()
					if got := fsIDs(t); got != [2]uintptr{uintptr(uid), uintptr(uid)} {
						return errors.New("another's identity")
					}
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestDo_refusesIDsThatMeanNoChange(t *testing.T) {
	t.Parallel()
	for _, cred := range []asuser.Cred{{UID: ^uint32(0), GID: 1}, {UID: 1, GID: ^uint32(0)}} {
		ran := false
		if err := asuser.Do(cred, func() error { ran = true; return nil }); err == nil || ran {
			t.Errorf("%v: ran %v, %v", cred, ran, err)
		}
	}
}

// TestAgentIdentity runs again as the agent does in a sandbox: under a uid of
// its own with few capabilities. The environment names the step.
func TestAgentIdentity(t *testing.T) {
	const step = "GLOVEBOX_TEST_ASUSER_STEP"
	dir := os.Getenv("GLOVEBOX_TEST_ASUSER_DIR")
	switch os.Getenv(step) {
	case "":
		t.Parallel()
		testenv.NeedRoot(t)
	case "few":
		checkFew(t, dir)
		return
	case "none":
		ran := false
		if err := asuser.Do(asuser.Cred{UID: 1000, GID: 1000}, func() error { ran = true; return nil }); err == nil || ran {
			t.Errorf("without CAP_SETUID: ran %v, %v", ran, err)
		}
		return
	}
	open := openDir(t)
	exe := filepath.Join(open, "test")
	data, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = errors.Join(os.WriteFile(exe, data, 0o755), os.WriteFile(filepath.Join(open, "rootonly"), nil, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, caps := range map[string][]uintptr{
		"none": nil,
		"few":  {unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_DAC_OVERRIDE},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestAgentIdentity$", "-test.count=1")
			cmd.Env = append(os.Environ(), step+"="+name, "GLOVEBOX_TEST_ASUSER_DIR="+open)
			cmd.Dir = open
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Credential:  &syscall.Credential{Uid: 7777, Gid: 7777},
				AmbientCaps: caps, Pdeathsig: syscall.SIGKILL,
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func checkFew(t *testing.T, dir string) {
	t.Helper()
	rootonly := filepath.Join(dir, "rootonly")
	read := func() error { _, err := os.ReadFile(rootonly); return err }
	if err := read(); err != nil {
		t.Fatalf("control: CAP_DAC_OVERRIDE does not help: %v", err)
	}
	for _, uid := range []uint32{1000, 7777 + 1} {
		if err := asuser.Do(asuser.Cred{UID: uid, GID: uid}, read); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("uid %d used the agent's capability: %v", uid, err)
		}
	}
	if err := asuser.Do(asuser.Cred{}, read); err != nil {
		t.Errorf("uid 0 cannot read its own file: %v", err)
	}
	owner := filepath.Join(dir, "by1000-"+strconv.Itoa(os.Getpid()))
	if err := asuser.Do(asuser.Cred{UID: 1000, GID: 1000}, func() error { return os.WriteFile(owner, nil, 0o600) }); err != nil {
		t.Error(err)
	}
	if err := asuser.Do(asuser.Cred{}, func() error { return os.Chown(owner, 5, 5) }); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("uid 0 without capabilities changed an owner: %v", err)
	}
	if err := read(); err != nil {
		t.Errorf("the agent lost its capability: %v", err)
	}
	// All calls together must have spared the main thread's signal.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Gettid() == unix.Getpid() {
		var sig int32
		_ = unix.Prctl(unix.PR_GET_PDEATHSIG, uintptrOf(&sig), 0, 0, 0)
		if sig != int32(syscall.SIGKILL) {
			t.Errorf("parent-death signal of the main thread is %d", sig)
		}
	}
}

func BenchmarkDo(b *testing.B) {
	testenv.NeedRoot(b)
	runtime.LockOSThread() // a benchmark that moves between threads measures the scheduler
	defer runtime.UnlockOSThread()
	for b.Loop() {
		_ = asuser.Do(asuser.Cred{UID: 1000, GID: 1000, Groups: []uint32{1000, 27}}, func() error { return nil })
	}
}

// BenchmarkWorker is the alternative to Do: a thread that keeps the identity
// and is handed functions.
func BenchmarkWorker(b *testing.B) {
	testenv.NeedRoot(b)
	work, done := make(chan func() error), make(chan error)
	go func() {
		_ = asuser.Do(asuser.Cred{UID: 1000, GID: 1000}, func() error {
			for fn := range work {
				done <- fn()
			}
			return nil
		})
		close(done)
	}()
	for b.Loop() {
		work <- func() error { return nil }
		<-done
	}
	close(work)
	<-done
}

func uintptrOf(p *int32) uintptr { return uintptr(unsafe.Pointer(p)) }
