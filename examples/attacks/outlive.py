"""Attack: wants to live on after its end, as a daemon that has left its
session and its parent, ignores signals and starts itself anew.

  glovebox run examples/attacks/outlive.py daemon 60

Inside, the daemon is on its way when the program ends. From outside: exit code
0 at once, and no process of it is left when the command returns. The arguments
are a name to find it by and the seconds after which it gives up by itself.
"""

import os
import signal
import sys
import time

name, seconds = sys.argv[1], float(sys.argv[2])
ready, told = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for s in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(s, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        os.write(told, b"x")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(0.1)
            if os.fork() > 0:
                os._exit(0)
    os._exit(0)
os.read(ready, 1)
print(f"{name} is on its way")
