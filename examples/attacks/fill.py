"""Attack: writes until the disk is full, then takes memory until it is killed.

  glovebox run --memory 256MiB --disk 32MiB examples/attacks/fill.py

Inside, the disk ends after 32 MiB with "No space left on device", as a disk
does. From outside: exit code 137 and "memory_limit" in the receipt; the host's
own disk and memory are as before. Not to be run without a sandbox.
"""

import sys

chunk = b"\xa5" * (1 << 20)
written = 0
try:
    with open("filler", "wb", buffering=0) as f:
        while True:
            written += f.write(chunk)
except OSError as error:
    print(f"disk: {written >> 20} MiB written, then: {error.strerror}", flush=True)

hoard = []
while True:
    hoard.append(bytearray(chunk))
    if len(hoard) % 32 == 0:
        print(f"memory: {len(hoard)} MiB held", flush=True)
    if len(hoard) == 4096:
        sys.exit("memory: 4 GiB held and nobody minds")
