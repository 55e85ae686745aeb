//go:build linux

package subprocess_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/glovebox-dev/glovebox/backend"
	"github.com/glovebox-dev/glovebox/subprocess"
)

// notHere are tests of CPython's that cannot pass here, with the reason.
func notHere(p subprocess.Privilege) []string {
	out := []string{
		"test_fsize_ismax",                 // the size of a file is always limited
		"test_large_file_ops",              // a file of 2 GiB, which the disk has no room for
		"testInterfaceNameIndex",           // lists interfaces over netlink, which is closed
		"test_get*info_ipv6_scopeid_symb*", // the same
	}
	if p == subprocess.PrivilegeUserns { // where only one uid exists
		out = append(out,
			"test_chown_without_permission", // EINVAL for another uid, not EPERM
			"test_user", "test_group",       // the same
			"test_prlimit", "test_set_get_priority", // other processes' limits and priorities may be the agent's
		)
	}
	return out
}

// pythonTests runs files of CPython's own regression tests. args may narrow
// them down.
func pythonTests(t *testing.T, h *harness, args ...string) {
	t.Helper()
	sb := h.create(t, backend.Spec{Lifetime: time.Hour, Limits: backend.Limits{Memory: 2 << 30}})
	command := []string{"/usr/bin/python3", "-m", "test", "-w"}
	for _, pattern := range notHere(h.privilege) {
		command = append(command, "-i", pattern)
	}
	got := run(t, sb, backend.Command{Args: append(command, args...), Timeout: 10 * time.Minute})
	if strings.Contains(got.err, "No module named test") {
		t.Skip("CPython's tests are not installed (libpython3-testsuite)")
	}
	if !got.Success() {
		t.Errorf("%q: %v\n%s\n%s", args, got.Exit, got.out, got.err)
	}
}

func TestCPython(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		for _, args := range [][]string{
			strings.Fields("test_os test_posix test_tempfile test_shutil test_pathlib test_mmap test_select test_fcntl test_pty test_openpty " +
				"test_ctypes test_pwd test_grp test_popen test_resource test_time test_json test_zlib"),
			strings.Fields("-m *POSIXProcessTestCase.* -m *ContextManagerTests* test_subprocess"),
			strings.Fields("-m *.ThreadTests.* -m *BarrierTests* test_threading"),
			strings.Fields("-m *WithProcessesTestPool.test_m* -m *WithProcessesTestQueue* -m *WithProcessesTestSharedMemory* test_multiprocessing_fork"),
			strings.Fields("-m *SubprocessThreadedWatcherTests* -m *test_locks* -m *test_queues* test_asyncio"),
			strings.Fields("-m *BasicTCPTest* -m *BasicUDPTest* -m *UnixTest* -m *SendmsgStreamTest* -m *RecvmsgSCMRights* test_socket"),
			strings.Fields("-m *PosixTests* -m *WakeupSignalTests* -m *PendingSignalsTests* test_signal"),
		} {
			pythonTests(t, h, args...)
		}
	})
}

// TestSoak_cpython runs whole files, in minutes.
func TestSoak_cpython(t *testing.T) {
	if os.Getenv(envSoak) == "" {
		t.Skip("takes minutes; " + envSoak + " is not set")
	}
	inModes(t, namespaced, func(t *testing.T, h *harness) {
		for file := range strings.FieldsSeq("test_subprocess test_threading test_signal test_socket test_selectors test_multiprocessing_fork test_asyncio " +
			"test_io test_zipfile test_tarfile test_ssl test_faulthandler test_concurrent_futures test_venv test_queue test_datetime test_decimal test_fork1 test_wait4") {
			pythonTests(t, h, file)
		}
	})
}
