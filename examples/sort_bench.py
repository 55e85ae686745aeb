"""A benchmark of sorting: five algorithms on the same numbers, each result
checked, times as multiples of Python's own sort.

  glovebox run --cpu-time 20s examples/sort_bench.py 20000

Expect exit code 0 and one line for each algorithm; the times are this
machine's, the check sum depends on the numbers alone.
"""

import heapq
import sys
import time


def numbers(n):
    state = 2463534242  # xorshift32
    for _ in range(n):
        state ^= (state << 13) & 0xFFFFFFFF
        state ^= state >> 17
        state ^= (state << 5) & 0xFFFFFFFF
        yield state


def builtin(a):
    return sorted(a)


def heap(a):
    h = list(a)
    heapq.heapify(h)
    return [heapq.heappop(h) for _ in range(len(h))]


def merge(a):
    width, src = 1, list(a)
    while width < len(src):
        out = []
        for i in range(0, len(src), 2 * width):
            left, right = src[i:i + width], src[i + width:i + 2 * width]
            out.extend(heapq.merge(left, right))
        src, width = out, 2 * width
    return src


def quick(a):
    a, stack = list(a), [(0, len(a) - 1)]
    while stack:
        lo, hi = stack.pop()
        if lo >= hi:
            continue
        pivot, i, j = a[(lo + hi) // 2], lo, hi
        while i <= j:
            while a[i] < pivot:
                i += 1
            while a[j] > pivot:
                j -= 1
            if i <= j:
                a[i], a[j] = a[j], a[i]
                i, j = i + 1, j - 1
        stack += [(lo, j), (i, hi)]
    return a


def radix(a):
    a = list(a)
    for shift in range(0, 32, 8):
        buckets = [[] for _ in range(256)]
        for x in a:
            buckets[x >> shift & 255].append(x)
        a = [x for bucket in buckets for x in bucket]
    return a


def checksum(a):
    total = 0
    for position, x in enumerate(a, 1):
        total = (total + position * x) % 1_000_000_007
    return total


count = int(sys.argv[1]) if len(sys.argv) > 1 else 20000
data = list(numbers(count))
reference = 0.0
for algorithm in (builtin, radix, quick, heap, merge):
    start = time.perf_counter()
    result = algorithm(data)
    seconds = time.perf_counter() - start
    reference = reference or seconds
    if any(x > y for x, y in zip(result, result[1:])) or len(result) != count:
        sys.exit(f"{algorithm.__name__} does not sort")
    print(f"{algorithm.__name__:<8} {seconds * 1000:8.1f} ms  {seconds / reference:6.1f} x  check {checksum(result)}")
