"""Reaching anything that listens outside. Arguments are name=target pairs."""
import ctypes
import mmap
import os
import socket
import struct
import sys

import probe

TOKEN = probe.NONCE.encode()


def tcp(host, port, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(2)
        s.connect((host, int(port)))
        s.sendall(TOKEN)


def mptcp(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as s:
        s.settimeout(2)
        s.connect((host, int(port)))
        s.sendall(TOKEN)


def fast_open(host, port):
    with socket.socket() as s:
        s.sendto(TOKEN, 0x20000000, (host, int(port)))


def udp(host, port, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.settimeout(2)
        s.sendto(TOKEN, (host, int(port)))
        if s.recv(100) != b"pong":
            return False


def dns(host, port):
    query = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0)
    for label in (probe.NONCE, "x", "test"):
        query += bytes([len(label)]) + label.encode()
    query += struct.pack(">BHH", 0, 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(2)
        s.sendto(query, (host, int(port)))
        s.recv(100)


def resolve(name):
    try:
        socket.getaddrinfo("%s.%s" % (probe.NONCE, name), 80)
    except socket.gaierror:
        raise OSError(113, "")


def fetch(url):
    """By the proxy that the environment names, if there is one."""
    import urllib.request
    with urllib.request.urlopen(url, timeout=5) as r:
        r.read(100)


def unix(path, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_UNIX, kind) as s:
        s.settimeout(2)
        s.connect(path)
        s.sendall(TOKEN)


def gate(numbers):
    """socketcall through the 32-bit gate: arguments below 4 GiB."""
    low = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40
    mem = mmap.mmap(-1, 4096, low, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    at = ctypes.addressof(ctypes.c_char.from_buffer(mem))
    struct.pack_into("<3I", mem, 1024, *numbers)
    code = (b"\x53"                                        # push rbx
            + b"\xb8" + struct.pack("<I", 102)             # mov eax, socketcall
            + b"\xbb" + struct.pack("<I", 1)               # mov ebx, SYS_SOCKET
            + b"\xb9" + struct.pack("<I", at + 1024)       # mov ecx, arguments
            + b"\xcd\x80\x5b\xc3")                         # int 0x80; pop rbx; ret
    mem[0:len(code)] = code
    result = ctypes.CFUNCTYPE(ctypes.c_int)(at)()
    if result < 0:
        raise OSError(-result, "")


def sockets():
    make = lambda *a: socket.socket(*a).close()  # noqa: E731
    probe.apart("vsock", lambda: make(40, socket.SOCK_STREAM))
    probe.apart("vsock datagram", lambda: make(40, socket.SOCK_DGRAM))
    probe.apart("vsock socketpair", lambda: probe.syscall(53, 40, 1, 0, (ctypes.c_int * 2)()))
    probe.apart("vsock by the 32 bit gate", lambda: gate((40, 1, 0)))
    probe.apart("inet by the 32 bit gate", lambda: gate((2, 1, 0)))
    probe.apart("vsock, high bits set", lambda: probe.syscall(41, (1 << 32) | 40, 1, 0))
    probe.apart("socket by x32", lambda: probe.syscall(0x40000000 | 41, 40, 1, 0))
    probe.apart("AF_ALG", lambda: make(38, socket.SOCK_SEQPACKET))
    probe.apart("raw", lambda: make(socket.AF_INET, socket.SOCK_RAW, 1))
    probe.apart("raw v6", lambda: make(socket.AF_INET6, socket.SOCK_RAW, 58))
    probe.apart("packet", lambda: make(17, socket.SOCK_RAW, 0x300))
    probe.apart("packet, old kind", lambda: make(2, 10, 0x300))
    probe.apart("ping", lambda: make(socket.AF_INET, socket.SOCK_DGRAM, 1))
    for number in (0, 4, 9, 10, 12, 15, 16):
        probe.apart("netlink %d" % number, lambda: make(16, socket.SOCK_RAW, number))
    for family in (3, 4, 5, 8, 9, 21, 23, 26, 29, 30, 31, 35, 37, 39, 43, 44, 45):
        probe.apart("family %d" % family, lambda: make(family, socket.SOCK_DGRAM))


def interfaces():
    import fcntl
    s = socket.socket()
    request = struct.pack("16sH22s", b"lo", 0x49, b"")
    probe.apart("SIOCSIFFLAGS", lambda: fcntl.ioctl(s, 0x8914, fcntl.ioctl(s, 0x8913, request)))
    probe.apart("SO_MARK", lambda: s.setsockopt(1, 36, 0))
    probe.apart("SO_BINDTODEVICE", lambda: s.setsockopt(1, 25, b"eth0\0"))
    probe.apart("SO_RCVBUFFORCE", lambda: s.setsockopt(1, 33, 1 << 20))
    probe.apart("IP_TRANSPARENT", lambda: s.setsockopt(0, 19, 1))
    probe.apart("TUN device", lambda: os.close(os.open("/dev/net/tun", os.O_RDWR)))
    # Everything but the loopback and what kernels put into every namespace.
    probe.attempt("an interface", lambda: [i for _, i in socket.if_nameindex() if i.startswith(("eth", "en", "docker", "br"))] != [])


def loopback():
    a = socket.socket()
    a.bind(("127.0.0.1", 0))
    a.listen()
    b = socket.create_connection(a.getsockname(), 2)
    c, _ = a.accept()
    b.sendall(b"x")
    probe.report(len(c.recv(1)))


def listen():
    """Listens on everything there is until the test is done."""
    port = int(probe.ARGS[1])
    held = []
    for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        s = socket.socket(family)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            s.setsockopt(41, 26, 1)
        s.bind((host, port))
        s.listen()
        held.append(s)
    u = socket.socket(socket.AF_UNIX)
    u.bind("\0" + probe.ARGS[2])
    u.listen()
    probe.report(len(held) + 1)
    probe.ready()


def connect():
    for i, arg in enumerate(probe.ARGS[1:]):
        kind, _, rest = arg.partition("=")
        host, _, port = rest.rpartition("|")
        actions = {
            "tcp4": lambda: tcp(host, port), "tcp6": lambda: tcp(host, port, socket.AF_INET6),
            "udp4": lambda: udp(host, port), "udp6": lambda: udp(host, port, socket.AF_INET6),
            "fetch": lambda: fetch(rest), "mptcp": lambda: mptcp(host, port), "tfo": lambda: fast_open(host, port), "dns": lambda: dns(host, port),
            "resolve": lambda: resolve(rest),
            "abstract": lambda: unix("\0" + rest), "abstract datagram": lambda: unix("\0" + rest + "-dgram", socket.SOCK_DGRAM),
            "path": lambda: unix(rest), "open": lambda: tcp(host, port),
        }
        # A listener that hangs up at once was reached.
        probe.attempt("%s %s" % (kind, rest), actions[kind], ("EPIPE", "ECONNRESET"))
    probe.report()


def main():
    if probe.ARGS[0] == "sockets":
        sockets()
        probe.report()
    elif probe.ARGS[0] == "interfaces":
        interfaces()
        probe.report()
    else:
        {"loopback": loopback, "listen": listen, "connect": connect}[probe.ARGS[0]]()


main()
sys.exit(0)
