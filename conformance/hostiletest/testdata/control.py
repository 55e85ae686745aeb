"""Looks for the stream over which the agent is spoken to."""
import ctypes
import os
import socket

import probe

PID = int([a for a in probe.ARGS if a.isdigit()][-1])

for fd in range(3, 64):
    probe.attempt("own %d" % fd, lambda: os.fstat(fd))
for fd in range(0, 32):
    probe.attempt("pidfd_getfd %d" % fd, lambda: probe.syscall(438, probe.syscall(434, PID, 0), fd, 0))
    probe.attempt("open of its %d" % fd, lambda: os.open("/proc/%d/fd/%d" % (PID, fd), os.O_RDWR))
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        probe.attempt("descriptors of %s" % name, lambda: os.listdir("/proc/%s/fd" % name) and None)
try:
    with open("/proc/net/unix") as f:
        names = [line.split()[7] for line in f.readlines()[1:] if len(line.split()) > 7]
except OSError:
    names = []
for name in names[:50] if PID == 1 else []:
    s = socket.socket(socket.AF_UNIX)
    probe.attempt("unix socket " + name, lambda: s.connect("\0" + name[1:] if name[0] == "@" else name))
if PID == 1:
    for port in list(range(1, 1024)) + [3000, 8080, 49982, 49983, 49999, 50051]:
        s = socket.socket()
        s.settimeout(1)
        probe.attempt("port %d" % port, lambda: s.connect(("127.0.0.1", port)))
        s.close()
    # A ring of its own may not reach it either.
    buf = ctypes.create_string_buffer(120)
    probe.attempt("io_uring", lambda: probe.syscall(425, 1, buf))
probe.report()
