"""Attacks on other processes: signals, tracing, memory, descriptors."""
import ctypes
import fcntl
import os
import signal

import probe
from probe import attempt, syscall

WHAT = probe.ARGS[0]
HARMLESS = probe.ARGS[-1] == "harmless"
PIDS = [int(a) for a in probe.ARGS[1:] if a.isdigit()]
SIGNALS = [signal.SIGCONT] if HARMLESS else [
    signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGTRAP,
    signal.SIGSYS, signal.SIGUSR1, signal.SIGSTOP, signal.SIGKILL, 34]


def queue(number, *ids):
    """rt_sigqueueinfo and rt_tgsigqueueinfo, with a siginfo of SI_QUEUE."""
    def call(sig):
        info = ctypes.create_string_buffer(128)
        ctypes.memmove(info, (ctypes.c_int * 3)(sig, 0, -1), 12)
        return syscall(number, *ids, int(sig), info)
    return call


def own_descriptor(pid, sig):
    """Makes the kernel send a signal to whoever owns a pipe."""
    r, w = os.pipe()
    fcntl.fcntl(r, fcntl.F_SETSIG, int(sig))
    fcntl.fcntl(r, fcntl.F_SETOWN, pid)
    fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(w, b"x")
    if fcntl.fcntl(r, fcntl.F_GETOWN) != pid:
        return False
    # Without the right to signal the kernel says nothing: the agent's life
    # shows it. As a try it counts where the owner is not process 1.
    return None if HARMLESS else False


def proc_directory(pid, sig):
    fd = os.open("/proc/%d" % pid, os.O_RDONLY | os.O_DIRECTORY)
    return syscall(424, fd, int(sig), 0, 0)


def pidfd(pid, sig, flags=0):
    return syscall(424, syscall(434, pid, flags), int(sig), 0, 0)


def signalling(pid, tag=""):
    for i, sig in enumerate(SIGNALS):
        last = "" if i == 0 else " %d" % sig
        attempt("kill" + tag + last, lambda: os.kill(pid, sig))
        attempt("tgkill" + tag + last, lambda: syscall(234, pid, pid, int(sig)))
        attempt("tkill" + tag + last, lambda: syscall(200, pid, int(sig)))
        attempt("rt_sigqueueinfo" + tag + last, lambda: queue(129, pid)(sig))
        attempt("rt_tgsigqueueinfo" + tag + last, lambda: queue(297, pid, pid)(sig))
        attempt("pidfd" + tag + last, lambda: pidfd(pid, sig))
        attempt("pidfd of a thread" + tag + last, lambda: pidfd(pid, sig, os.O_EXCL))
        attempt("proc directory as pidfd" + tag + last, lambda: proc_directory(pid, sig))
        attempt("F_SETOWN" + tag + last, lambda: own_descriptor(pid, sig))
    for tid in threads(pid)[1:4]:
        attempt("tkill a thread" + tag, lambda: syscall(200, tid, int(SIGNALS[0])))
        attempt("tgkill a thread" + tag, lambda: syscall(234, pid, tid, int(SIGNALS[0])))


def threads(pid):
    try:
        return sorted(int(t) for t in os.listdir("/proc/%d/task" % pid))
    except OSError:
        return []


def peek(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 64) != b""
    finally:
        os.close(fd)


def writable(path):
    os.close(os.open(path, os.O_RDWR))


def first_map(pid):
    with open("/proc/%d/maps" % pid) as f:
        return int(f.readline().split("-")[0], 16)


class IOVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def vm(number, pid):
    try:
        at = first_map(pid)
    except OSError:
        at = 0x400000
    buf = ctypes.create_string_buffer(1)
    local = IOVec(ctypes.cast(buf, ctypes.c_void_p), 1)
    remote = IOVec(at, 1)
    return syscall(number, pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)


def trace(request, pid):
    syscall(101, request, pid, 0, 0)
    if request == 16:
        os.waitpid(pid, 0x40000000)
    if request in (16, 0x4206):
        try:
            syscall(101, 17, pid, 0, 0)
        except OSError:
            pass


def memory(pid, tag=""):
    attempt("process_vm_readv" + tag, lambda: vm(310, pid), ("EFAULT",))
    attempt("process_vm_writev" + tag, lambda: vm(311, pid), ("EFAULT",))
    attempt("mem" + tag, lambda: writable("/proc/%d/mem" % pid))
    attempt("pidfd_getfd" + tag, lambda: syscall(438, syscall(434, pid, 0), 0, 0))
    attempt("kcmp" + tag, lambda: syscall(312, pid, os.getpid(), 2, 0, 0))
    buf = IOVec(0, 0)
    attempt("process_madvise" + tag, lambda: syscall(440, syscall(434, pid, 0), ctypes.byref(buf), 1, 21, 0), ("EINVAL",))


def slack(path, text=b"50000"):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)


def hijack(pid):
    base = "/proc/%d/" % pid
    for name in ("environ", "maps", "auxv", "stack", "syscall", "io", "personality", "pagemap"):
        attempt(name, lambda: peek(base + name))
    for name in ("root", "cwd", "exe"):
        attempt(name, lambda: os.readlink(base + name) != "")
    attempt("root listing", lambda: os.listdir(base + "root/") != [])
    attempt("fd", lambda: False if os.getuid() == 0 and pid == 1 else os.listdir(base + "fd") != [])
    attempt("map_files", lambda: os.listdir(base + "map_files") != [])
    for fd in range(0, 24):
        attempt("fd %d" % fd, lambda: os.open(base + "fd/%d" % fd, os.O_RDWR))
    if os.getuid() == 0 and pid == 1:
        # The kernel gives the names of a process that is not dumpable to uid 0
        # of its user namespace. What that is good for is seen from outside.
        for name in ("oom_score_adj", "coredump_filter", "clear_refs", "comm", "autogroup", "uid_map", "setgroups", "projid_map"):
            for text in (b"1000", b"-1000", b"0 0 1"):
                try:
                    slack(base + name, text)
                except OSError:
                    pass
        memory(pid)
        attempt("ptrace", lambda: trace(0x4206, pid))
        return
    attempt("clear_refs", lambda: os.close(os.open(base + "clear_refs", os.O_WRONLY)))
    attempt("coredump_filter", lambda: os.close(os.open(base + "coredump_filter", os.O_WRONLY)))
    attempt("oom_score_adj", lambda: os.close(os.open(base + "oom_score_adj", os.O_WRONLY)))
    attempt("timerslack_ns", lambda: slack(base + "timerslack_ns"))
    attempt("uid_map", lambda: os.close(os.open(base + "uid_map", os.O_WRONLY)))
    for ns in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        attempt("ns " + ns, lambda: os.open(base + "ns/" + ns, os.O_RDONLY))
    for tid in threads(pid)[1:3]:
        attempt("a thread's mem", lambda: writable(base + "task/%d/mem" % tid))
        attempt("a thread's comm", lambda: writable(base + "task/%d/comm" % tid))
    memory(pid)
    attempt("ptrace", lambda: trace(0x4206, pid))


def limits(pid):
    def change(number):
        now = (ctypes.c_ulong * 2)()
        if HARMLESS:
            syscall(302, pid, number, 0, now)
        syscall(302, pid, number, now, 0)
    for name, number in (("cpu", 0), ("nofile", 7), ("as", 9), ("nproc", 6), ("sigpending", 11)):
        attempt("prlimit " + name, lambda: change(number))
    attempt("sched_setaffinity", lambda: os.sched_setaffinity(pid, {0}))
    attempt("sched_setscheduler", lambda: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0)))
    attempt("setpriority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    # These reach every process of the user's: what became of the agent is
    # seen from outside.
    attempt("setpriority of the user", lambda: False if HARMLESS else os.setpriority(os.PRIO_USER, 0, 19))
    attempt("ioprio_set of the user", lambda: False if HARMLESS else syscall(251, 3, 0, (3 << 13)))
    attempt("setpriority of the group", lambda: False if HARMLESS else os.setpriority(os.PRIO_PGRP, 0, 19))
    for name in ("setpriority of the user", "ioprio_set of the user", "setpriority of the group"):
        if probe.TRIES[name] == "ok":
            probe.TRIES[name] = "no effect seen here"
    attempt("ioprio_set", lambda: syscall(251, 1, pid, (3 << 13)))
    attempt("setpgid", lambda: False if HARMLESS else os.setpgid(pid, os.getpid()))
    attempt("migrate_pages", lambda: syscall(256, pid, 1, ctypes.byref(ctypes.c_ulong(1)), ctypes.byref(ctypes.c_ulong(1))))


def everybody():
    """kill(-1): the control is process 1 of a namespace and lives to tell."""
    sleeper = os.fork()
    if sleeper == 0:
        signal.pause()
    if not HARMLESS:
        probe.report(1)
    child = os.fork()
    if child == 0:
        os.kill(-1, signal.SIGKILL)
        os._exit(0)
    os.waitpid(child, 0)
    status = os.waitpid(sleeper, 0)[1]
    probe.TRIES["kill(-1)"] = "ok" if os.WIFSIGNALED(status) else "no effect"
    if HARMLESS:
        probe.report(1)


def main():
    global SIGNALS
    if not HARMLESS:
        probe.only_inside()
    elif WHAT == "all" and os.getpid() != 1:
        raise SystemExit("this is not a pid namespace of its own")
    if WHAT == "all":
        return everybody()
    for i, pid in enumerate(PIDS):
        tag = "" if i == 0 else " of victim %d" % i
        if WHAT != "init" and pid != 1 and os.path.exists("/proc/%d" % pid) and not HARMLESS:
            continue  # the number names one of our own here
        if WHAT == "init":
            signalling(pid, tag)
        elif WHAT == "pids":
            SIGNALS = [signal.SIGCONT if i or HARMLESS else signal.SIGKILL]
            signalling(pid, tag)
        elif WHAT == "hijack":
            hijack(pid)
        elif WHAT == "limits":
            limits(pid)
        elif WHAT == "memory":
            memory(pid, tag)
        elif WHAT == "trace":
            probe.apart("PTRACE_SEIZE" + tag, lambda: trace(0x4206, pid))
            probe.apart("PTRACE_ATTACH" + tag, lambda: trace(16, pid))
    if WHAT == "trace":
        probe.apart("PTRACE_TRACEME", lambda: syscall(101, 0, 0, 0, 0))
    probe.report()


main()
