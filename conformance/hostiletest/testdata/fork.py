"""Processes and threads beyond what is allowed, and beyond their time."""
import os
import signal
import subprocess
import sys
import threading
import time

import probe

WHAT = probe.ARGS[0]
MOST = 380


def sleeper():
    signal.pause()
    os._exit(0)


def sleepers():
    n, err = 0, ""
    for _ in range(MOST):
        try:
            if os.fork() == 0:
                sleeper()
            n += 1
        except OSError as e:
            err = probe.name_of(e.errno)
            break
    probe.report(n, err)
    probe.ready()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)


def bomb():
    probe.report(1)
    groups = probe.ARGS[1:] == ["groups"]
    while True:
        try:
            if os.fork() == 0 and groups:
                os.setpgid(0, 0)  # no signal to one group reaches it
        except OSError:
            pass


def threads():
    n, err = 0, ""
    gate = threading.Event()
    for _ in range(MOST):
        try:
            threading.Thread(target=gate.wait, daemon=True).start()
            n += 1
        except (RuntimeError, MemoryError, OSError) as e:
            err = type(e).__name__
            break
    probe.report(n, err)
    probe.ready()
    os._exit(0)


def zombies():
    n, err = 0, ""
    for _ in range(MOST):
        try:
            if os.fork() == 0:
                os._exit(0)
            n += 1
        except OSError as e:
            err = probe.name_of(e.errno)
            break
    probe.report(n, err)
    probe.ready()
    os._exit(0)


def daemonise():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            null = os.open("/dev/null", os.O_RDWR)
            for fd in range(3):
                os.dup2(null, fd)
            sleeper()
        os._exit(0)
    os.wait()


def daemon():
    daemonise()
    probe.report(1)


def escape():
    """Leaves session and group in every way there is, then waits."""
    for _ in range(3):
        daemonise()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        sleeper()
    try:  # CLONE_PARENT: a sibling, which outside the test would have to wait for
        if os.uname().nodename == "sandbox" and probe.syscall(56, 0x8000 | 17, 0, 0, 0, 0) == 0:
            os.setsid()
            sleeper()
    except OSError:
        pass
    probe.report(5)
    sleeper()


def ignore():
    for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(s, signal.SIG_IGN)
    os.fork()  # the child holds the pipes as well
    probe.report(1)
    while True:
        time.sleep(60)


def stop():
    if os.fork() == 0:
        os.setsid()
        os.kill(os.getpid(), signal.SIGSTOP)
        sleeper()
    probe.report(1)
    os.kill(os.getpid(), signal.SIGSTOP)
    sleeper()


def orphan():
    """Ends at once; a child goes on holding the pipes."""
    if os.fork() == 0:
        os.setsid()
        sleeper()
    probe.report(1)
    os._exit(7)


def respawn():
    """Two processes each of which starts the other again."""
    def guard():
        while True:
            try:
                pid = os.fork()
            except OSError:
                continue
            if pid == 0:
                os.setsid()
                child = os.fork()
                if child:
                    os.waitpid(child, 0)
                    continue
                signal.pause()
            try:
                os.waitpid(pid, 0)
            except OSError:
                pass
    probe.report(1)
    for _ in range(2):
        if os.fork() == 0:
            os.setsid()
            guard()
    sleeper()


def some():
    """So many sleepers, for a limit that another may have used up."""
    want, n, err = int(probe.ARGS[1]), 0, ""
    for _ in range(want):
        try:
            if os.fork() == 0:
                sleeper()
            n += 1
        except OSError as e:
            err = probe.name_of(e.errno)
            break
    probe.report(n, err)
    probe.ready()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)


def priority():
    probe.apart("SCHED_FIFO", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
    probe.apart("SCHED_RR", lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1)))
    probe.apart("nice -20", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
    probe.apart("ioprio real time", lambda: probe.syscall(251, 1, 0, (1 << 13) | 0))
    probe.apart("rlimit nproc up", lambda: up(6))
    probe.apart("rlimit nice up", lambda: up(13))
    probe.apart("rlimit rtprio up", lambda: up(14))
    probe.report()


def up(which):
    import resource
    hard = resource.getrlimit(which)[1]
    if hard == resource.RLIM_INFINITY:
        resource.setrlimit(which, (100, 100))
        hard = 100
    try:
        resource.setrlimit(which, (hard + 1, hard + 1))
    except ValueError:
        raise OSError(1, "")


{f.__name__: f for f in (
    sleepers, bomb, threads, zombies, daemon, escape, ignore, stop, orphan, respawn, some, priority)}[WHAT]()
