"""Attack: looks for the host's secrets and a way to send them out. Its exit
code is the number of ways that worked.

  glovebox run examples/attacks/steal.py

Expect exit code 0 and "contained" on every line. Without a sandbox it only
reads and connects, nothing is sent, so compare: python3 examples/attacks/steal.py
Arguments name more to look for: file=PATH, env=NAME, tcp=HOST:PORT.
"""

import glob
import os
import socket
import sys


def file(path):
    with open(path, "rb") as f:
        return f"{len(f.read(4096))} bytes of {path}"


def anyfile(patterns):
    for pattern in patterns:
        for path in glob.glob(pattern):
            try:
                return file(path)
            except OSError:
                continue
    return None


def environ(name):
    """Looks at its own environment and at that of every process it sees."""
    if name in os.environ:
        return f"{name} in its own environment"
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as f:
                if name.encode() + b"=" in f.read():
                    return f"{name} in {path}"
        except OSError:
            continue
    return None


def strangers():
    """Counts processes of other programs that it can see the command line of."""
    seen = 0
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as f:
                line = f.read()
        except OSError:
            continue
        if line and b"steal.py" not in line and b"glovebox" not in line:
            seen += 1
    return f"{seen} command lines" if seen else None


def tcp(address):
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=2):
        return f"connected to {address}"


def unix(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        return f"connected to {path}"


def dns(name):
    return f"{name} is {socket.gethostbyname(name)}"


ways = [
    ("password hashes", file, "/etc/shadow"),
    ("keys in homes", anyfile, ["/root/.ssh/*", "/home/*/.ssh/*", "/root/.aws/*", "/root/.docker/*", "/root/.gitconfig"]),
    ("the kernel's memory", anyfile, ["/dev/mem", "/dev/kmem", "/proc/kcore"]),
    ("the host's disks", anyfile, ["/dev/sd*", "/dev/vd*", "/dev/nvme*"]),
    ("other processes", lambda _: strangers(), None),
    ("Docker's socket", unix, "/run/docker.sock"),
    ("the metadata service", tcp, "169.254.169.254:80"),
    ("a name server", tcp, "1.1.1.1:53"),
    ("a name", dns, "example.com"),
]
kinds = {"file": file, "env": environ, "tcp": tcp}
for argument in sys.argv[1:]:
    kind, _, value = argument.partition("=")
    ways.append((argument, kinds[kind], value))

stolen = 0
for what, attempt, argument in ways:
    try:
        found = attempt(argument)
        why = "nothing there"
    except OSError as error:
        found, why = None, error.strerror or str(error)
    stolen += found is not None
    print(f"{'STOLEN' if found else 'contained':<10} {what}: {found or why}")
sys.exit(stolen)
