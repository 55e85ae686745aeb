"""Time: programs that do not end, and the clocks of the host."""
import ctypes
import os
import re
import select
import signal
import sys
import time

import probe

WHAT = probe.ARGS[0]


def spin():
    probe.report(1)
    while True:
        pass


def spinners():
    seconds = float(probe.ARGS[1])
    end = time.monotonic() + seconds
    for _ in range(7):
        if os.fork() == 0:
            break
    while time.monotonic() < end:
        pass
    try:
        while True:
            os.wait()
    except ChildProcessError:
        pass
    if os.getpid() == LEADER:
        probe.report(1)


def native():
    probe.report(1)
    signal.signal(signal.SIGTERM, lambda *_: None)
    re.match("(a+)+$", "a" * 60 + "b")


def wait():
    probe.report(1)
    select.select([], [], [])


def stdin():
    text = sys.stdin.read()
    probe.report(len(text))


def fifo():
    os.mkfifo("fifo-" + probe.NONCE)
    probe.report(1)
    os.open("fifo-" + probe.NONCE, os.O_RDONLY)


def sleep():
    time.sleep(float(probe.ARGS[1]))
    probe.report(1)


class Timex(ctypes.Structure):
    _fields_ = [("modes", ctypes.c_uint), ("longs", ctypes.c_long * 25)]


def clocks():
    def now():
        return (ctypes.c_long * 2)(int(time.time()), time.time_ns() // 1000 % 1000000)

    def adjust(number, *head):
        # The host's own tick: reading it first and writing the same value.
        t = Timex()
        probe.syscall(159, ctypes.byref(t))
        t.modes = 0x4000
        return probe.syscall(number, *head, ctypes.byref(t))
    probe.attempt("settimeofday", lambda: probe.syscall(164, now(), 0))
    probe.attempt("clock_settime", lambda: time.clock_settime_ns(time.CLOCK_REALTIME, time.time_ns()))
    probe.attempt("adjtimex", lambda: adjust(159))
    probe.attempt("clock_adjtime", lambda: adjust(305, 0))
    probe.attempt("settimeofday of the zone", lambda: zone())
    probe.attempt("timens_offsets", lambda: os.write(os.open("/proc/self/timens_offsets", os.O_WRONLY), b"monotonic 0 0\n"))
    probe.report()


def zone():
    tz = (ctypes.c_int * 2)()
    probe.syscall(96, 0, tz)
    return probe.syscall(164, 0, tz)


LEADER = os.getpid()
{f.__name__: f for f in (spin, spinners, native, wait, stdin, fifo, sleep, clocks)}[WHAT]()
