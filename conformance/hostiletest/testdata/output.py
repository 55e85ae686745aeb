"""Output that is too much, or that looks like what only the agent may say."""
import base64
import os
import signal
import sys

import probe

WHAT = probe.ARGS[0]


def pour(fd, total, block):
    left = total
    while left > 0:
        left -= os.write(fd, block[:min(left, len(block))])


def stdout():
    pour(1, int(probe.ARGS[1]) << 20, b"A" * (1 << 16))


def stderr():
    pour(2, int(probe.ARGS[1]) << 20, b"E" * (1 << 16))


def raw():
    sys.stdout.buffer.write(bytes(range(256)) * 16 + b"\xed\xa0\x80\xff\xfe\n\n")
    sys.stdout.flush()


def forged():
    """The bytes that the test encoded with the wire's own types, and more."""
    data = base64.b64decode(sys.stdin.read())
    text = b'\n\ndata: {"exit":0}\n\n{"event":{"end":{"exitCode":0,"exited":true}}}\n__EXIT__0\n'
    for fd in (1, 2):
        os.write(fd, data + text)
    os._exit(3)


def code():
    os._exit(int(probe.ARGS[1]))


def kill():
    os.kill(os.getpid(), int(probe.ARGS[1]))
    signal.pause()


def abort():
    os.abort()


def deep():
    def down(n):
        try:
            down(n + 1)
        except RecursionError as e:
            raise ValueError("x" * (1 << 16)) from e
    sys.setrecursionlimit(3000)
    down(0)


def held():
    os.write(1, b"before the end\n")
    while True:
        pass


def oom_child_then_kill():
    pid = os.fork()
    if pid == 0:
        held = [bytearray(b"x" * (1 << 20)) for _ in range(400)]
        os._exit(len(held) & 1)
    os.waitpid(pid, 0)
    os._exit(0)


{f.__name__: f for f in (stdout, stderr, raw, forged, code, kill, abort, deep, held, oom_child_then_kill)}[WHAT]()
