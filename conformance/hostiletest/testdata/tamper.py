"""Changing the host: settings, mounts, privileges, namespaces."""
import ctypes
import os
import shutil
import struct
import subprocess
import sys
import tempfile

import probe
from probe import apart, attempt, syscall

WHAT = probe.ARGS[0]


def same(path):
    """Writes what is there already."""
    def write():
        with open(path, "rb") as f:
            now = f.read()
        fd = os.open(path, os.O_WRONLY)
        try:
            os.write(fd, now)
        finally:
            os.close(fd)
    return write


def settings():
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname",
                 "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/swappiness", "/proc/sys/kernel/pid_max", "/proc/sys/kernel/randomize_va_space",
                 "/proc/sys/fs/file-max", "/proc/sys/fs/protected_symlinks", "/proc/sys/kernel/sysrq", "/proc/sys/kernel/hung_task_timeout_secs",
                 "/proc/sys/kernel/printk", "/proc/sys/kernel/core_uses_pid", "/proc/sys/kernel/panic", "/proc/sys/user/max_user_namespaces",
                 "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/core/somaxconn", "/proc/sys/kernel/shmmax", "/proc/sys/fs/mqueue/queues_max",
                 "/proc/sys/kernel/ns_last_pid", "/proc/sys/net/ipv4/ping_group_range", "/sys/kernel/uevent_helper", "/sys/kernel/mm/ksm/run",
                 "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/module/printk/parameters/time", "/sys/fs/cgroup/cgroup.procs",
                 "/sys/fs/cgroup/memory/memory.swappiness", "/sys/fs/cgroup/pids/notify_on_release", "/proc/irq/default_smp_affinity"):
        attempt("write " + path, same(path), ("EINVAL",))
    for path in ("/proc/sysrq-trigger", "/proc/sys/fs/binfmt_misc/register", "/proc/mtrr", "/proc/acpi/wakeup", "/proc/bus/pci", "/sys/power/state"):
        def opened():
            fd = os.open(path, os.O_WRONLY)
            covered = os.fstat(fd).st_rdev == os.makedev(1, 3)
            os.close(fd)
            return False if covered else None
        attempt("open " + path, opened)
    for d in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"):
        def group():
            path = os.path.join(d, "glovebox-hostile-" + probe.NONCE)
            os.mkdir(path)
            os.rmdir(path)
        attempt("mkdir in " + d, group)
    probe.report()


def mount(*args):
    def call():
        syscall(165, *[a.encode() if isinstance(a, str) else a for a in args])
    return call


def mounts():
    os.umask(0)
    target = tempfile.mkdtemp(prefix="target-" + probe.NONCE, dir="/tmp")
    parent = os.open("/tmp", os.O_RDONLY | os.O_DIRECTORY)
    for d in ("at", "lower", "upper", "work", "merged"):
        os.makedirs(os.path.join(target, d))
    base, target = target, target + "/at"
    apart("in memory", mount("none", base + "/upper", "tmpfs", 0, 0))
    os.makedirs(base + "/upper/up", exist_ok=True)
    os.makedirs(base + "/upper/work", exist_ok=True)
    apart("tmpfs", mount("none", target, "tmpfs", 0, 0))
    apart("bind", mount("/", target, 0, 0x1000, 0))
    apart("remount", mount("none", "/", 0, 0x20 | 0x1000, 0))
    apart("private", mount("none", "/", 0, 0x40000 | 0x4000, 0))
    apart("proc", mount("proc", target, "proc", 0, 0))
    apart("sysfs", mount("sysfs", target, "sysfs", 0, 0))
    apart("devpts", mount("devpts", target, "devpts", 0, "newinstance"))
    apart("mqueue", mount("mqueue", target, "mqueue", 0, 0))
    apart("cgroup v1", mount("cgroup", target, "cgroup", 0, "memory"), ("EBUSY",))
    apart("cgroup v1, a new one", mount("none", target, "cgroup", 0, "none,name=hostile" + probe.NONCE))
    apart("cgroup2", mount("none", target, "cgroup2", 0, 0), ("EBUSY",))
    apart("overlay", mount("none", base + "/merged", "overlay", 0,
                           "lowerdir=%s/lower,upperdir=%s/upper/up,workdir=%s/upper/work,userxattr" % (base, base, base)))
    apart("fuse", mount("none", target, "fuse", 0, "fd=0,rootmode=40000,user_id=0,group_id=0"), ("EINVAL", "ENODEV"))
    apart("ext4", mount("/dev/vda", target, "ext4", 1, 0), ("EBUSY", "ENODEV"))
    apart("securityfs", mount("none", target, "securityfs", 0, 0))
    apart("debugfs", mount("none", target, "debugfs", 0, 0))
    apart("bpf", mount("none", target, "bpf", 0, 0))
    apart("umount", lambda: syscall(166, b"/proc", 2))
    apart("chroot", lambda: os.chroot(target))
    apart("open_tree", lambda: syscall(428, -100, b"/", 1))
    apart("fsopen", lambda: syscall(430, b"tmpfs", 0))
    apart("fspick", lambda: syscall(433, -100, b"/", 0), ("EINVAL",))
    apart("move_mount", lambda: syscall(429, -100, b"/proc", -100, target.encode(), 0), ("EINVAL",))
    apart("mount_setattr", lambda: syscall(442, -100, b"/", 0, (ctypes.c_ulong * 4)(), 32))
    # What a container's escape of 2022 did.
    apart("release_agent", lambda: os.close(os.open("/sys/fs/cgroup/memory/release_agent", os.O_WRONLY)))
    apart("pivot_root", lambda: syscall(155, target.encode(), target.encode()), ("EINVAL", "EBUSY"))
    # Where it worked, the root is another by now, for this process as well.
    os.fchdir(parent)
    name = os.path.basename(base)
    for d in ("at", "upper", "merged"):
        while probe.LIBC.umount2((name + "/" + d).encode(), 2) == 0:
            pass
    shutil.rmtree(name, ignore_errors=True)
    probe.report()


def clone3(flags):
    args = (ctypes.c_ulong * 11)(flags, 0, 0, 0, 17)
    pid = syscall(435, args, 88)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def clone(flags):
    pid = syscall(56, flags | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def namespaces():
    kinds = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000, "uts": 0x4000000,
             "cgroup": 0x2000000, "time": 0x80}
    for name, flag in kinds.items():
        apart("unshare " + name, lambda: syscall(272, flag))
        if name != "time":
            apart("clone " + name, lambda: clone(flag))
        apart("clone3 " + name, lambda: clone3(flag))
        apart("clone " + name + " with a high bit", lambda: False if name == "time" else clone(flag | 1 << 40))
    apart("clone3 into a cgroup", lambda: clone3(0x200000000) and False, ("EBADF", "EINVAL"))
    apart("user, then mount", lambda: (syscall(272, 0x10020000), mount("none", "/tmp", "tmpfs", 0, 0)()))
    apart("user, then netfilter", lambda: (syscall(272, 0x50000000), __import__("socket").socket(16, 3, 12)))
    pid = int(probe.ARGS[1])
    for name in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"):
        apart("setns %s of %s" % (name, "a process"), lambda: syscall(308, os.open("/proc/%d/ns/%s" % (pid, name), os.O_RDONLY), 0), ("EINVAL",))
        apart("setns %s of its own" % name, lambda: syscall(308, os.open("/proc/self/ns/%s" % name, os.O_RDONLY), 0), ("EINVAL",))
    apart("setns by pidfd", lambda: syscall(308, syscall(434, pid, 0), 0x20000))
    apart("unshare by program", lambda: program("unshare", "-Urm", "true"))
    apart("nsenter by program", lambda: program("nsenter", "-t", str(pid), "-m", "true"))
    probe.report()


def program(*argv):
    p = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    if p.returncode:
        raise OSError(1, "")


def poison():
    """What the next run's interpreter would execute."""
    import site
    if os.geteuid() == 0 and os.access("/", os.W_OK):
        sys.exit("what root writes here would stay")
    places = [site.getusersitepackages(), os.path.expanduser("~/.config/python"), "/usr/lib/python3/dist-packages", "/usr/local/lib/python3.11/dist-packages"]
    n = 0
    for place in places:
        try:
            os.makedirs(place, exist_ok=True)
            for name in ("usercustomize.py", "sitecustomize.py"):
                with open(os.path.join(place, name), "w") as f:
                    f.write("print('poisoned %s')\n" % probe.NONCE)
            n += 1
        except OSError:
            pass
    for path in ("~/.bashrc", "~/.profile", "~/.bash_profile", "/etc/ld.so.preload", "/etc/profile.d/x.sh", "~/.npmrc", "~/node_modules/x.js"):
        try:
            path = os.path.expanduser(path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write("echo poisoned %s\n" % probe.NONCE)
            n += 1
        except OSError:
            pass
    out = subprocess.run([sys.executable, "-c", "pass"], capture_output=True, text=True, check=False).stdout
    probe.report(n, text=out)


def residue():
    """Leaves things everywhere; asked a second time, looks for them."""
    import socket
    mark, look = probe.ARGS[1], probe.ARGS[2] == "look"
    found = []
    for d in ("/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~"), ".", "/run", "/dev/mqueue"):
        path = os.path.join(d, mark)
        if look:
            if os.path.exists(path):
                found.append(path)
            continue
        try:
            with open(path, "w") as f:
                f.write(mark)
            found.append(path)
        except OSError:
            pass
    s = socket.socket(socket.AF_UNIX)
    key = struct.unpack("<I", mark.encode()[:4])[0] & 0x7fffffff
    try:
        if look:
            s.connect("\0" + mark)
        else:
            s.bind("\0" + mark)
            s.listen()
            if os.fork() == 0:
                os.setsid()
                for fd in (0, 1, 2):
                    os.close(fd)
                import signal
                signal.pause()
        found.append("abstract socket")
    except OSError:
        pass
    try:
        syscall(29, key, 4096, 0o666 if look else 0o1666)
        found.append("shared memory")
    except OSError:
        pass
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()) and look:
            found.append("process " + name)
    probe.report(len(found), text=" ".join(found))


{f.__name__: f for f in (settings, mounts, namespaces, poison, residue)}[WHAT]()
