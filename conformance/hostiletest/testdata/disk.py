"""Files: where they may not be, too many, too large, and not to be removed."""
import ctypes
import os
import resource
import signal
import subprocess
import sys
import zipfile

import probe

WHAT = probe.ARGS[0]
NAME = "glovebox-hostile-" + probe.NONCE


def touch(directory):
    path = os.path.join(directory, NAME)
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.close(fd)
    try:
        os.unlink(path)
    except OSError:
        pass


def places():
    for d in ("/", "/etc", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/local/lib", "/usr/share", "/bin", "/lib", "/lib64",
              "/sbin", "/var", "/var/lib", "/var/cache", "/var/spool", "/home", "/root", "/opt", "/run", "/mnt", "/srv", "/boot", "/media",
              "/dev", "/proc", "/sys", "/sys/fs/cgroup", "/etc/profile.d", "/etc/ssl/certs", "/usr/lib/python3"):
        probe.attempt(d, lambda: touch(d))
    for path in ("/etc/passwd", "/etc/hosts", "/etc/ld.so.cache", "/usr/bin/python3", "/bin/sh", "/usr/lib/os-release", "/etc/resolv.conf"):
        probe.attempt("open " + path, lambda: os.close(os.open(path, os.O_WRONLY)))
        probe.attempt("chmod " + path, lambda: os.chmod(path, os.stat(path).st_mode & 0o7777))
        probe.attempt("utime " + path, lambda: os.utime(path, ns=(os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns)))
    probe.report()


def inodes():
    n, err, made = 0, "", []
    os.mkdir("many")
    for i in range(20000):
        try:
            os.close(os.open("many/%d" % i, os.O_CREAT | os.O_WRONLY))
            n += 1
        except OSError as e:
            err = probe.name_of(e.errno)
            break
    probe.report(n, err)


def entries():
    n, err = 0, ""
    os.mkdir("long")
    for i in range(int(probe.ARGS[1])):
        try:
            os.close(os.open("long/%d-%s" % (i, "n" * 200), os.O_CREAT | os.O_WRONLY))
            n += 1
        except OSError as e:
            err = probe.name_of(e.errno)
            break
    probe.report(n, err)


def sparse():
    fd = os.open("sparse", os.O_CREAT | os.O_RDWR)
    probe.attempt("truncate 1 TiB", lambda: os.ftruncate(fd, 1 << 40))
    probe.attempt("write at 1 TiB", lambda: os.pwrite(fd, b"x", 1 << 40))
    probe.attempt("fallocate 10 GiB", lambda: os.posix_fallocate(fd, 0, 10 << 30))
    probe.attempt("fallocate 10 GiB, size kept", lambda: probe.syscall(285, fd, 1, 0, 10 << 30))
    probe.report()
    os.unlink("sparse")


def undeletable():
    deep = "."
    for i in range(200):
        deep = os.path.join(deep, "d%d" % i)
        os.mkdir(deep)
    os.makedirs("locked/inner")
    open("locked/inner/file", "w").close()
    os.chmod("locked/inner/file", 0)
    os.chmod("locked/inner", 0)
    os.chmod("locked", 0)
    held = open("held", "w")
    os.unlink("held")
    if os.fork() == 0:
        os.setsid()
        os.chdir(deep)
        signal.pause()
    probe.report(1)
    print(held)
    sys.stdout.flush()
    os._exit(0)


def core():
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        probe.TRIES["setrlimit"] = "ok"
    except (OSError, ValueError):
        probe.TRIES["setrlimit"] = "EPERM"
    pid = os.fork()
    if pid == 0:
        os.abort()
    status = os.waitpid(pid, 0)[1]
    left = [f for f in os.listdir(".") if f == "core" or f.startswith("core.")]
    probe.TRIES["core file"] = "ok" if left or os.WCOREDUMP(status) else "no core"
    for f in left:
        os.unlink(f)
    probe.report(len(left))


def bomb():
    """A small archive of 300 MiB, expanded."""
    with zipfile.ZipFile("bomb.zip", "w", zipfile.ZIP_DEFLATED) as z:
        for i in range(6):
            z.writestr("f%d" % i, b"\0" * (50 << 20))
    n, err = 0, ""
    with zipfile.ZipFile("bomb.zip") as z:
        for name in z.namelist():
            try:
                with z.open(name) as src, open(name, "wb", 0) as dst:
                    while True:
                        block = src.read(1 << 20)
                        if not block:
                            break
                        n += dst.write(block)
            except OSError as e:
                err = err or probe.name_of(e.errno)
    probe.report(n >> 20, err)


def direct():
    """Writes past the page cache where that can be, and waits for the disk."""
    n = 0
    block = __import__("mmap").mmap(-1, 1 << 20)
    for flags in (os.O_DIRECT | os.O_SYNC, os.O_SYNC):
        try:
            fd = os.open("direct", os.O_CREAT | os.O_WRONLY | flags)
            for _ in range(16):
                n += os.write(fd, block)
            os.fsync(fd)
            os.close(fd)
        except OSError:
            pass
    try:
        with open("/proc/self/io") as f:
            told = [int(line.split()[1]) for line in f if line.startswith("write_bytes")][0]
    except OSError:
        told = 0
    probe.report(told if os.uname().nodename != "sandbox" else n >> 20)
    probe.ready()
    os.unlink("direct")


def storm():
    """Has every file system written out, again and again."""
    import threading
    import time
    n, over = 0, time.monotonic() + 1

    def again():
        nonlocal n
        while time.monotonic() < over:
            os.sync()
            n += 1
    for _ in range(2):
        threading.Thread(target=again).start()
    os.write(1, b"READY\n")
    while threading.active_count() > 1:
        time.sleep(0.05)
    probe.report(n)


def swap():
    os.chdir("/tmp")
    path = os.path.abspath("swapfile-" + probe.NONCE)
    with open(path, "wb") as f:
        f.write(b"\0" * (1 << 16))
    probe.attempt("swapon", lambda: probe.syscall(167, path.encode(), 0), ("EINVAL", "ENODEV"))
    probe.attempt("swapoff", lambda: probe.syscall(168, path.encode()), ("EINVAL",))
    probe.attempt("loop control", lambda: os.close(os.open("/dev/loop-control", os.O_RDWR)))
    probe.attempt("mknod of a loop device", lambda: os.mknod("loop", 0o60600, os.makedev(7, 0)) or os.unlink("loop"))
    probe.attempt("quotactl", lambda: probe.syscall(179, 0x800004 << 8, b"/dev/vda", 0, 0), ("ESRCH", "ENOSYS", "ENOENT", "EINVAL", "ENODEV", "ENOTBLK"))
    probe.attempt("acct", lambda: probe.syscall(163, b"/nonexistent/" + probe.NONCE.encode()), ("ENOENT",))
    os.unlink(path)
    probe.report()


def wipe():
    """rm of everything there is, by the program that people mistype."""
    target = probe.ARGS[1]
    if "glovebox-hostile-canary-" not in target:
        probe.only_inside()
    p = subprocess.run(["rm", "-rf", "--no-preserve-root", target], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    probe.report(p.returncode)


{f.__name__: f for f in (places, inodes, entries, sparse, undeletable, core, bomb, direct, storm, swap, wipe)}[WHAT]()
