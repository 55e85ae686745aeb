"""System calls that are ways into the kernel, and privileges."""
import ctypes
import fcntl
import mmap
import os
import pty
import struct
import subprocess
import sys
import time

import probe
from probe import apart, syscall

WHAT = probe.ARGS[0]
LIBC = probe.LIBC


def status():
    out = {}
    with open("/proc/self/status") as f:
        for line in f:
            key, _, value = line.partition(":")
            out[key] = value.strip()
    return out


def privileges():
    s = status()
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        probe.TRIES[name] = "ok" if int(s.get(name, "0"), 16) else "ENONE"
    # Not every kernel has them in its status: then the calls that tell.
    probe.TRIES["new privileges"] = "ok" if s.get("NoNewPrivs", str(LIBC.prctl(39, 0, 0, 0, 0))) == "0" else "ENONE"
    probe.TRIES["every system call"] = "ok" if s.get("Seccomp", "0") != "2" and LIBC.prctl(21, 0, 0, 0, 0) != 2 else "ENONE"
    apart("turn no_new_privs off", lambda: check(LIBC.prctl(38, 0, 0, 0, 0)) and False)
    apart("setuid 0", lambda: os.setuid(0) if os.getuid() else False)
    apart("setgid 0", lambda: os.setgid(0) if os.getgid() else False)
    apart("setgroups", lambda: os.setgroups([0]))
    apart("setuid elsewhere", lambda: os.setuid(12345))
    apart("setfsuid elsewhere", lambda: None if (LIBC.setfsuid(12345), LIBC.setfsuid(-1))[1] == 12345 else False)
    apart("chown", lambda: (open("x", "w").close(), os.chown("x", 12345, 12345)))
    apart("file capabilities", lambda: (open("y", "w").close(), os.setxattr("y", "security.capability", struct.pack("<5I", 0x2000001, 0xff, 0, 0, 0))))
    apart("trusted xattr", lambda: (open("z", "w").close(), os.setxattr("z", "trusted.x", b"1")))
    apart("securebits", lambda: check(LIBC.prctl(28, 0x10, 0, 0, 0)))
    probe.report()


def check(value):
    if value != 0:
        raise OSError(ctypes.get_errno(), "")


def setuid():
    """Programs that give root: does the child's effective uid become 0?"""
    mine = os.geteuid()
    for path in ("/usr/bin/passwd", "/usr/bin/su", "/usr/bin/chsh", "/usr/bin/newgrp", "/usr/bin/mount", "/usr/bin/sudo"):
        if not os.path.exists(path):
            continue

        def run():
            r, w = os.pipe()
            p = subprocess.Popen([path, "--hostile"] if path.endswith("mount") else [path], stdin=r, stdout=w, stderr=w, start_new_session=True)
            os.close(r)
            euid, end = mine, time.monotonic() + 1
            while time.monotonic() < end and euid != 0:
                try:
                    with open("/proc/%d/status" % p.pid) as f:
                        euid = [int(line.split()[2]) for line in f if line.startswith("Uid:")][0]
                except (OSError, IndexError):
                    break
            p.kill()
            p.wait()
            os.close(w)
            return None if euid == 0 and mine != 0 else False
        probe.attempt(path, run)
    own = os.path.abspath("suid-" + probe.NONCE)
    with open("/bin/true", "rb") as f, open(own, "wb") as g:
        g.write(f.read())
    apart("own copy for root", lambda: (os.chown(own, 0, 0), os.chmod(own, 0o4755)) if mine else False)
    probe.report()


def surface():
    buf = ctypes.create_string_buffer(256)
    apart("bpf map", lambda: syscall(321, 0, struct.pack("<IIIII", 2, 4, 8, 1, 0) + b"\0" * 100, 120))
    apart("bpf program", lambda: syscall(321, 5, b"\0" * 120, 120), ("EINVAL", "EFAULT", "E2BIG"))
    apart("perf_event_open", lambda: syscall(298, struct.pack("<IIQ", 1, 112, 0) + b"\0" * 96, 0, -1, -1, 0))
    apart("perf_event_open of the user's own", lambda: syscall(298, struct.pack("<IIQ", 1, 112, 0) + b"\0" * 24 + struct.pack("<Q", 0x60) + b"\0" * 64, 0, -1, -1, 0))
    apart("userfaultfd", lambda: syscall(323, 0))
    apart("userfaultfd of user mode", lambda: syscall(323, 1))
    apart("io_uring_setup", lambda: syscall(425, 1, buf))
    apart("io_uring_enter", lambda: syscall(426, 99, 0, 0, 0, 0, 0), ("EBADF",))
    apart("io_uring_register", lambda: syscall(427, 99, 0, 0, 0), ("EBADF", "EINVAL"))
    apart("fanotify", lambda: syscall(300, 0, 0))
    apart("fanotify of the user's own", lambda: syscall(300, 0x200, 0))
    apart("kcmp", lambda: syscall(312, os.getpid(), os.getpid(), 2, 0, 0))
    apart("memfd_secret", lambda: syscall(447, 0), ("ENOSYS_HERE",))
    apart("move_pages", lambda: syscall(279, os.getpid(), 0, 0, 0, 0, 0))
    apart("lookup_dcookie", lambda: syscall(212, 0, buf, 0), ("EINVAL",))
    apart("modify_ldt", lambda: syscall(154, 0, buf, 16))
    apart("iopl", lambda: syscall(172, 3))
    apart("ioperm", lambda: syscall(173, 0x80, 1, 1))
    apart("no ASLR", lambda: syscall(135, 0x0040000))
    apart("READ_IMPLIES_EXEC", lambda: syscall(135, 0x0400000))
    apart("vhangup", lambda: syscall(153) and False)
    apart("statmount", lambda: syscall(457, struct.pack("<IIQQQ", 24, 0, 0, 0, 0), buf, 256, 0), ("EINVAL", "ENOENT"))
    apart("listmount", lambda: syscall(458, struct.pack("<IIQQQ", 24, 0, 0xffffffffffffffff, 0, 0), buf, 1, 0), ("EINVAL", "ENOENT"))
    apart("lsm_set_self_attr", lambda: syscall(460, 100, buf, 0, 0), ("EINVAL", "EOPNOTSUPP", "EFAULT", "E2BIG"))
    apart("a number that does not exist yet", lambda: syscall(999) and False)
    apart("/dev/userfaultfd", lambda: os.close(os.open("/dev/userfaultfd", os.O_RDWR)))
    probe.report()


def admin():
    apart("reboot with wrong numbers", lambda: syscall(169, 1, 2, 3, 0), ("EINVAL",))
    apart("sethostname to what it is", lambda: host(170, os.uname().nodename))
    apart("setdomainname to what it is", lambda: host(171, domain()))
    apart("init_module", lambda: syscall(175, b"", 0, b""), ("ENOEXEC", "ENOSYS"))
    apart("finit_module", lambda: syscall(313, os.open("/dev/null", os.O_RDONLY), b"", 0), ("ENOEXEC", "EINVAL"))
    apart("delete_module", lambda: syscall(176, b"hostile_none", 0o4000), ("ENOENT",))
    apart("kexec_load", lambda: syscall(246, 0, 99, 0, 0), ("EINVAL",))
    apart("kexec_file_load", lambda: syscall(320, -1, -1, 0, 0, 0xff), ("EINVAL", "EBADF"))
    apart("swapon", lambda: syscall(167, b"/nonexistent", 0), ("ENOENT",))
    apart("acct", lambda: syscall(163, b"/nonexistent/x"), ("ENOENT",))
    apart("nfsservctl", lambda: syscall(180) and False)
    apart("sysfs", lambda: syscall(139, 3))
    apart("ustat", lambda: syscall(136, 0, ctypes.create_string_buffer(64)), ("EINVAL",))
    apart("uselib", lambda: syscall(134, b"/bin/true"), ("ENOEXEC", "EACCES_HERE"))
    probe.report()


def host(number, text):
    return syscall(number, text.encode(), len(text))


def domain():
    with open("/proc/sys/kernel/domainname") as f:
        return f.read().strip()


def terminal():
    """A terminal of its own, into which input is pushed."""
    def on(request, arg):
        def call():
            main, side = pty.openpty()
            os.setsid()
            fcntl.ioctl(side, 0x540e, 0)
            return LIBC.ioctl(side, ctypes.c_ulong(request), arg)
        return lambda: check(call())
    apart("TIOCSTI", on(0x5412, ctypes.c_char_p(b"x")))
    apart("TIOCSTI, high bits set", on((1 << 32) | 0x5412, ctypes.c_char_p(b"x")))
    apart("TIOCLINUX", on(0x541c, ctypes.c_char_p(b"\x03")), ("ENOTTY",))
    apart("TIOCSETD", on(0x5423, ctypes.byref(ctypes.c_int(2))))
    apart("/dev/tty of somebody", lambda: os.close(os.open("/dev/tty", os.O_RDWR)))
    apart("/dev/console", lambda: os.close(os.open("/dev/console", os.O_WRONLY | os.O_NOCTTY)))
    for name in ("0", "1", "2"):
        apart("/dev/pts/" + name, lambda: os.close(os.open("/dev/pts/" + name, os.O_RDWR | os.O_NOCTTY)))
    probe.report()


def machine(code):
    """Runs machine code; its result is what eax holds."""
    mem = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    mem[0:len(code)] = code
    result = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(mem)))()
    if result < 0:
        raise OSError(-result, "")


def abis():
    gate = b"\x53\xb8%s\x31\xdb\x31\xc9\x31\xd2\xcd\x80\x5b\xc3"
    for name, number in (("getpid", 20), ("geteuid", 201), ("unshare", 310), ("setns", 346), ("ptrace", 26), ("keyctl", 288)):
        apart("int 0x80 " + name, lambda: machine(gate % struct.pack("<I", number)), ("EINVAL", "EBADF", "EOPNOTSUPP"))
    apart("x32 getpid", lambda: syscall(0x40000000 | 39))
    apart("x32 execve number", lambda: syscall(0x40000000 | 520, 0, 0, 0))
    apart("a negative number", lambda: syscall(-100))
    apart("sysenter", lambda: machine(b"\xb8\x14\0\0\0\x0f\x34\xc3"))
    probe.report()


def runtime():
    """The binary that sandboxes start with, and the program's own."""
    for path in ("/proc/1/exe", "/proc/self/exe"):
        probe.attempt(path + " for writing", lambda: os.close(os.open(path, os.O_WRONLY)))
        probe.attempt(path + " for appending", lambda: os.close(os.open(path, os.O_WRONLY | os.O_APPEND)))
    probe.attempt("truncate /proc/1/exe", lambda: os.truncate("/proc/1/exe", 0))
    with open("run.sh", "w") as f:
        f.write("#!/proc/1/exe\n")
    os.chmod("run.sh", 0o755)
    probe.attempt("#!/proc/1/exe", lambda: subprocess.run(["./run.sh"], check=False, capture_output=True) and False)
    probe.report()


{f.__name__: f for f in (privileges, setuid, surface, admin, terminal, abis, runtime)}[WHAT]()
sys.stdout.flush()
