"""What the hostile programs share: tries with their outcome, and one report."""
import ctypes
import errno
import json
import os
import signal
import sys

NONCE = sys.argv[1]
ARGS = sys.argv[2:]
LIBC = ctypes.CDLL(None, use_errno=True)
TRIES = {}
if not os.access(".", os.W_OK):
    os.chdir("/tmp")


def only_inside():
    """Ends a program that would hurt the host unless it is in a sandbox."""
    if os.uname().nodename != "sandbox" or os.path.exists("/proc/1/root/sbin/init"):
        sys.exit("this is not a sandbox")


def name_of(number):
    return errno.errorcode.get(number, "E%d" % number)


def syscall(number, *args):
    """A raw system call; OSError when it is refused."""
    ctypes.set_errno(0)
    LIBC.syscall.restype = ctypes.c_long
    conv = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    result = LIBC.syscall(ctypes.c_long(number), *conv)
    if result == -1 and ctypes.get_errno():
        raise OSError(ctypes.get_errno(), name_of(ctypes.get_errno()))
    return result


def attempt(name, action, permitted=()):
    """Runs action; errnos in permitted show that it was not refused."""
    try:
        value = action()
        TRIES[name] = "no effect" if value is False else "ok"
    except OSError as e:
        if e.errno is None:  # socket.timeout and its like
            TRIES[name] = "ETIMEDOUT"
        else:
            TRIES[name] = "ok" if name_of(e.errno) in permitted else name_of(e.errno)
        return None
    except Exception as e:  # an error of the program's own
        TRIES[name] = "%s: %s" % (type(e).__name__, e)
        return None
    return value


def apart(name, action, permitted=()):
    """attempt in a child, for what kills or changes the process."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(r)
        attempt(name, action, permitted)
        os.write(w, TRIES[name].encode())
        os._exit(0)
    os.close(w)
    with os.fdopen(r) as f:
        text = f.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        text = signal.Signals(os.WTERMSIG(status)).name
    TRIES[name] = text or "no answer"


def ready():
    """Tells the test to go on, and waits until it is done."""
    os.write(1, b"READY\n")
    sys.stdin.read()


def report(n=0, errno="", text="", tries=None):
    line = json.dumps({"nonce": NONCE, "tries": TRIES if tries is None else tries, "n": n, "errno": errno, "text": text})
    data = ("\nRESULT %s %s\n" % (NONCE, line)).encode()
    while data:
        data = data[os.write(1, data):]
