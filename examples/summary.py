"""Standard input: statistics of the numbers that are piped in, one a line, in
one pass and without holding them.

  seq 1 1000 | glovebox run --stdin examples/summary.py

Expect exit code 0 and four lines; a line that is no number is counted and
shown on standard error, and makes the exit code 1.
"""

import math
import sys

count, mean, m2 = 0, 0.0, 0.0
least, most = math.inf, -math.inf
bad = 0
for number, line in enumerate(sys.stdin, 1):
    try:
        x = float(line)
    except ValueError:
        bad += 1
        print(f"line {number} is no number: {line.strip()[:40]!r}", file=sys.stderr)
        continue
    count += 1
    # Welford's way: sums of squares would lose digits.
    delta = x - mean
    mean += delta / count
    m2 += delta * (x - mean)
    least, most = min(least, x), max(most, x)

print(f"count {count}")
print(f"mean {mean:.6f}")
print(f"deviation {math.sqrt(m2 / count) if count else 0:.6f}")
print(f"range {least:g} to {most:g}" if count else "range empty")
sys.exit(1 if bad else 0)
