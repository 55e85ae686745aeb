"""Memory in every form that can be had."""
import ctypes
import mmap
import os
import signal
import sys
import threading

import probe

WHAT = probe.ARGS[0]
MIB = 1 << 20
BLOCK = b"x" * MIB


def anonymous():
    held, n = [], 0
    for _ in range(400):
        try:
            held.append(bytearray(BLOCK))
            n += 1
        except MemoryError:
            break
    probe.report(n)


def spread():
    kids = []
    for _ in range(5):
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            held = [bytearray(BLOCK) for _ in range(100)]
            os.write(w, b"1")
            os.close(r)
            signal.pause()
            print(len(held))
        os.close(w)
        kids.append((pid, r))
    full = sum(1 for _, r in kids if os.read(r, 1) == b"1")
    for pid, _ in kids:
        os.kill(pid, signal.SIGKILL)
    for pid, _ in kids:
        os.waitpid(pid, 0)
    probe.report(full)


def fill(directory):
    n, err = 0, ""
    paths = [os.path.join(directory, "glovebox-hostile-fill-%s-%d" % (probe.NONCE, i)) for i in range(6)]
    for path in paths:
        try:
            with open(path, "wb", 0) as f:
                for _ in range(50):
                    n += f.write(BLOCK)
        except OSError as e:
            err = err or probe.name_of(e.errno)
    probe.report(n // MIB, err)
    probe.ready()
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            pass


def tmp():
    fill("/tmp")


def shm():
    fill("/dev/shm")


def memfd():
    n, fds = 0, []
    for i in range(8):
        fd = os.memfd_create("m%d" % i)
        fds.append(fd)
        for _ in range(50):
            n += os.write(fd, BLOCK)
    probe.report(n // MIB)


def shared():
    n, held = 0, []
    for _ in range(400):
        m = mmap.mmap(-1, MIB, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        m.write(BLOCK)
        held.append(m)
        n += 1
    probe.report(n)


def sysv():
    key = int(probe.ARGS[1])
    probe.attempt("shmget", lambda: probe.syscall(29, key, 4096, 0o1000 | 0o666))
    probe.attempt("semget", lambda: probe.syscall(64, key, 1, 0o1000 | 0o666))
    probe.attempt("msgget", lambda: probe.syscall(68, key, 0o1000 | 0o666))
    probe.report()
    probe.ready()
    for get, ctl, args in ((29, 31, (0, 0)), (64, 66, (0, 0)), (68, 71, (0,))):
        try:
            probe.syscall(ctl, probe.syscall(get, key, *args), *((0, 0, 0) if ctl == 66 else (0, 0)))
        except OSError:
            pass


def stack():
    sys.setrecursionlimit(1 << 30)
    probe.report(1)

    class Deep:
        def __getattr__(self, name):
            return getattr(self, name + "x")

    def down(n):
        return max([n], key=lambda v: down(v + 1))
    threading.stack_size(64 * MIB)
    t = threading.Thread(target=down, args=(0,))
    t.start()
    t.join()


def giant():
    for name, make in (("bytearray", lambda: bytearray(10 ** 13)), ("string", lambda: "x" * 10 ** 12),
                       ("list", lambda: [0] * 10 ** 12), ("mmap", lambda: mmap.mmap(-1, 1 << 46))):
        try:
            make()
            probe.TRIES[name] = "ok"
        except (MemoryError, OSError, OverflowError):
            probe.TRIES[name] = "ENOMEM"
    probe.report()


def adjust():
    def write(value):
        with open("/proc/self/oom_score_adj", "w") as f:
            f.write(value)
    # A command may be made the kernel's first choice, and may give that up; what
    # matters is that it comes no later than others.
    now = min(int(open("/proc/self/oom_score_adj").read()), 0)
    probe.apart("below what others have", lambda: write(str(max(now - 1, -1000))))
    probe.apart("-1000", lambda: write("-1000"))
    probe.report()


def lock():
    libc = ctypes.CDLL(None, use_errno=True)

    def call(value):
        if value:
            raise OSError(ctypes.get_errno(), "")

    def hugetlb():
        mmap.mmap(-1, 2 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)

    def much():
        m = mmap.mmap(-1, 64 * MIB)
        call(libc.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(m))), ctypes.c_size_t(64 * MIB)))
    probe.apart("mlock of 64 MiB", much)
    probe.apart("MAP_HUGETLB", hugetlb)
    probe.report()


def child():
    """A child meets the limit; its parent ends well."""
    pid = os.fork()
    if pid == 0:
        held = [bytearray(BLOCK) for _ in range(400)]
        os._exit(len(held) & 1)
    status = os.waitpid(pid, 0)[1]
    probe.report(1 if os.WIFSIGNALED(status) else 0)


{f.__name__: f for f in (anonymous, spread, tmp, shm, memfd, shared, sysv, stack, giant, adjust, lock, child)}[WHAT]()
