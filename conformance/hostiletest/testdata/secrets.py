"""Reading what belongs to the host."""
import ctypes
import hashlib
import json
import os

import probe

WHAT = probe.ARGS[0]


def content(path, most=1 << 16):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(fd, most)
    finally:
        os.close(fd)


def canary():
    text = []
    for path in probe.ARGS[1:]:
        probe.attempt("open " + path, lambda: text.append(content(path).decode()))
        probe.attempt("through /proc/1/root " + path, lambda: text.append(content("/proc/1/root" + path).decode()))
        probe.attempt("stat " + path, lambda: os.stat(path))
        probe.attempt("list " + path, lambda: os.listdir(os.path.dirname(path)))
        probe.attempt("access " + path, lambda: None if os.access(path, os.F_OK) else False)
        up = "/".join([".."] * 40) + path
        probe.attempt("dots " + path, lambda: text.append(content(up).decode()))
        probe.attempt("append " + path, lambda: os.close(os.open(path, os.O_WRONLY | os.O_APPEND)))
        probe.attempt("truncate " + path, lambda: False if "keep" in probe.ARGS else os.truncate(path, 0))
    probe.report(text=" ".join(text))


def files():
    """Digests of what can be read; the test compares them with the host's."""
    found = {}
    for path in probe.ARGS[1:]:
        try:
            found[path] = hashlib.sha256(content(path, 1 << 20)).hexdigest()
        except OSError:
            pass
    probe.report(len(found), text=json.dumps(found))


def environment():
    text = [json.dumps(dict(os.environ))]
    n = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            n += 1
            for what in ("environ", "cmdline", "task/%s/environ" % name, "auxv", "status", "comm", "cgroup", "mountinfo", "net/unix"):
                try:
                    text.append(content("/proc/%s/%s" % (name, what)).decode("latin-1"))
                except OSError:
                    pass
    probe.report(n, text="\n".join(text)[:200000])


def kernel():
    for path in ("/proc/kcore", "/proc/kallsyms", "/proc/kmsg", "/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/sched_debug",
                 "/proc/config.gz", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/iomem", "/proc/ioports", "/proc/interrupts", "/proc/softirqs",
                 "/proc/kpagecount", "/proc/kpageflags", "/proc/schedstat", "/proc/zoneinfo", "/proc/sysrq-trigger", "/proc/fs/ext4/vda/options",
                 "/proc/driver", "/proc/acpi/wakeup", "/proc/scsi/scsi", "/proc/mtrr", "/proc/asound/cards", "/proc/latency_stats",
                 "/sys/kernel/debug/sched/debug", "/sys/firmware/dmi/tables/DMI", "/sys/class/dmi/id/product_uuid", "/sys/kernel/vmcoreinfo",
                 "/sys/kernel/notes", "/sys/class/net/eth0/address", "/sys/devices/system/cpu/vulnerabilities/meltdown", "/dev/kmsg", "/dev/mem"):
        def read():
            data = content(path)
            # Zeroed symbol tables and empty files tell nothing.
            return None if data.strip(b"\0\n ") and not data.startswith(b"0000000000000000 ") else False
        probe.attempt(path, read)
    for path in ("/sys/firmware", "/sys/kernel/debug", "/sys/class", "/sys/fs/cgroup", "/proc/driver", "/proc/fs", "/lost+found", "/boot", "/root"):
        probe.attempt("list " + path, lambda: None if os.listdir(path) else False)
    probe.attempt("syslog", lambda: probe.syscall(103, 10, 0, 0))
    probe.report()


def devices():
    for name in ("mem", "kmem", "port", "kmsg", "vda", "sda", "nvme0n1", "loop0", "loop-control", "kvm", "fuse", "vsock", "vhost-vsock",
                 "vhost-net", "net/tun", "hpet", "rtc0", "cpu_dma_latency", "snapshot", "userfaultfd", "console", "tty0", "tty1", "ttyS0", "vcs",
                 "mapper/control", "btrfs-control", "uinput", "input/event0", "hwrng", "nvram", "autofs", "cuse", "dri/card0", "nvidia0",
                 "nvidiactl", "watchdog", "udmabuf", "vfio/vfio", "zram0", "ptp0", "cpu/0/msr", "mcelog", "bus/usb/001/001"):
        probe.attempt(name, lambda: os.close(os.open("/dev/" + name, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)))
        probe.attempt(name + " for reading", lambda: os.close(os.open("/dev/" + name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)))
    for major, minor, kind in ((1, 1, "c"), (254, 0, "b"), (8, 0, "b"), (10, 232, "c"), (10, 229, "c"), (1, 3, "c")):
        def node():
            path = "node-%d-%d" % (major, minor)
            os.mknod(path, 0o600 | (0o020000 if kind == "c" else 0o060000), os.makedev(major, minor))
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            finally:
                os.unlink(path)
        probe.attempt("mknod %s %d:%d" % (kind, major, minor), node)
    probe.report()


class Handle(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]


def handles():
    def name(path):
        h = Handle(size=128)
        probe.syscall(303, -100, path, ctypes.byref(h), ctypes.byref(ctypes.c_int()), 0)
        return h

    def shocker():
        # Inode 2 is the root of the file system that the host boots from.
        h = Handle(size=8, type=1)
        h.data[0] = 2
        fd = os.open(".", os.O_RDONLY)
        os.close(probe.syscall(304, fd, ctypes.byref(h), os.O_RDONLY))

    def again():
        h = name(b"probe.py")
        os.close(probe.syscall(304, os.open(".", os.O_RDONLY), ctypes.byref(h), os.O_RDONLY))
    probe.attempt("name_to_handle_at", lambda: name(b"probe.py"))
    probe.attempt("open_by_handle_at of inode 2", shocker, ("ESTALE",))
    probe.attempt("open_by_handle_at", again)
    probe.report()


def identity():
    text = {}
    for name, path in (("boot_id", "/proc/sys/kernel/random/boot_id"), ("machine-id", "/etc/machine-id"), ("dbus", "/var/lib/dbus/machine-id"),
                       ("hostname", "/proc/sys/kernel/hostname"), ("hostname file", "/etc/hostname"), ("passwd", "/etc/passwd"),
                       ("cmdline", "/proc/cmdline"), ("cgroup", "/proc/self/cgroup"), ("mountinfo", "/proc/self/mountinfo"),
                       ("domainname", "/proc/sys/kernel/domainname")):
        try:
            text[name] = content(path).decode("latin-1").strip()
        except OSError:
            pass
    text["uname"] = os.uname().nodename
    probe.report(len(text), text=json.dumps(text))


def tree():
    """Every name that can be found, and what somebody else left."""
    seen = []
    for top, dirs, names in os.walk("/"):
        if top in ("/proc", "/usr", "/sys"):
            dirs[:] = []
            continue
        seen += [os.path.join(top, n) for n in names + dirs]
    probe.report(len(seen), text="\n".join(seen)[:500000])


{f.__name__: f for f in (canary, files, environment, kernel, devices, handles, identity, tree)}[WHAT]()
