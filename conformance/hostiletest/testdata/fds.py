"""Descriptors, and kernel objects that are counted for each user."""
import ctypes
import os

import probe

WHAT = probe.ARGS[0]


def opens():
    n, err, held = 0, "", []
    for _ in range(5000):
        try:
            held.append(os.open("/dev/null", os.O_RDONLY))
            n += 1
        except OSError as e:
            err = probe.name_of(e.errno)
            break
    for fd in held[:64]:
        os.close(fd)
    probe.report(n, err)


def leaked():
    secret = ""

    def read(fd):
        nonlocal secret
        secret = os.pread(fd, 100, 0).decode()

    probe.attempt("pread of 77", lambda: read(77))
    probe.attempt("openat of 78", lambda: os.open("etc/shadow", os.O_RDONLY, dir_fd=78))
    probe.attempt("openat of 78 and up", lambda: os.listdir(os.open("../tmp", os.O_RDONLY, dir_fd=78)) and None)
    probe.attempt("fchdir to 78", lambda: os.fchdir(78))
    probe.attempt("more than 0 to 2", lambda: extra())
    probe.attempt("/proc/self/fd/78", lambda: os.listdir("/proc/self/fd/78/") and None)
    probe.report(text=secret)


def extra():
    found = []
    for fd in range(3, 1024):
        try:
            os.fstat(fd)
            found.append(fd)
        except OSError:
            pass
    if not found:
        return False


def inotify():
    want = int(probe.ARGS[1])
    n, err = 0, ""
    for _ in range(want):
        try:
            probe.syscall(294, 0)
            n += 1
        except OSError as e:
            err = probe.name_of(e.errno)
            break
    probe.report(n, err)
    probe.ready()


def ptys():
    n, err, held = 0, "", []
    for _ in range(200):
        try:
            held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
            n += 1
        except OSError as e:
            err = probe.name_of(e.errno)
            break
    probe.report(n, err)
    probe.ready()


def cache():
    """Which pages of a file that others use are in memory?"""
    import mmap
    path = "/usr/bin/python3"
    fd = os.open(path, os.O_RDONLY)
    m = mmap.mmap(fd, 1 << 20, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(m))
    seen = ctypes.create_string_buffer(256)
    probe.attempt("mincore", lambda: probe.syscall(27, ctypes.c_void_p(at), 1 << 20, seen))
    buf = bytearray(4096)
    probe.attempt("preadv2 without waiting", lambda: os.preadv(fd, [buf], 0, os.RWF_NOWAIT))
    probe.report(sum(1 for b in seen.raw if b & 1))


def keys():
    def add(name, ring):
        key = probe.syscall(248, b"user", name.encode(), b"x", 1, ring)
        probe.syscall(250, 9, key, ring)
    probe.attempt("join a session", lambda: probe.syscall(250, 1, 0))
    for ring in (-1, -2, -3, -4, -5):
        probe.attempt("add_key to %d" % ring, lambda: add("hostile" + probe.NONCE, ring))
    probe.attempt("keyctl of the session", lambda: probe.syscall(250, 0, -3, 0))
    probe.attempt("keyctl search", lambda: probe.syscall(250, 10, -4, b"user", b"none", 0), ("ENOKEY",))
    probe.attempt("request_key", lambda: probe.syscall(249, b"user", b"none", 0, 0), ("ENOKEY",))
    probe.report()


def queues():
    n, err = 0, ""
    for i in range(1000):
        try:
            probe.syscall(240, ("hostile-%s-%d" % (probe.NONCE, i)).encode(), os.O_CREAT | os.O_RDWR, 0o666, 0)
            n += 1
        except OSError as e:
            err = probe.name_of(e.errno)
            break
    probe.report(n, err)
    probe.ready()
    for i in range(n):
        probe.syscall(241, ("hostile-%s-%d" % (probe.NONCE, i)).encode())


{f.__name__: f for f in (opens, leaked, inotify, ptys, cache, keys, queues)}[WHAT]()
