"""Makes the data that the other examples work on: a shop's sales as CSV and a
web server's access log. The same seed gives the same bytes on every machine.

  glovebox run --out sales.csv:examples/data/sales.csv \
    --out access.log:examples/data/access.log examples/make_data.py

Expect exit code 0, one line for each file, and both files copied out of the
sandbox to examples/data; git sees no difference.
"""

import sys


class Random:
    """A linear congruential generator, since random's may change."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n

    def choice(self, items):
        return items[self.below(len(items))]


def sales(rng, rows):
    products = {"anvil": 8900, "bucket": 450, "candle": 120, "drill": 5999, "easel": 3250, "funnel": 275}
    yield "order,date,region,product,quantity,unit_cents"
    for order in range(1, rows + 1):
        product = rng.choice(list(products))
        price = products[product] * (90 + rng.below(21)) // 100
        date = f"2026-{1 + rng.below(12):02d}-{1 + rng.below(28):02d}"
        yield f"{order},{date},{rng.choice(['north', 'south', 'east', 'west'])},{product},{1 + rng.below(9)},{price}"


def log(rng, rows):
    paths = ["/", "/login", "/search", "/cart", "/checkout", "/static/app.js", "/api/items", "/api/orders"]
    second = 0
    for _ in range(rows):
        second += rng.below(30)
        clock = f"{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        status = rng.choice([200] * 12 + [304] * 3 + [404] * 2 + [500])
        yield (f"10.0.{rng.below(4)}.{1 + rng.below(20)} [21/Nov/2026:{clock}] "
               f'"GET {rng.choice(paths)}" {status} {rng.below(50000)} {1 + rng.below(900)}ms')


for name, lines in (("sales.csv", sales(Random(1), 400)), ("access.log", log(Random(2), 600))):
    text = "".join(line + "\n" for line in lines)
    with open(name, "w", encoding="ascii") as f:
        f.write(text)
    print(f"{name}: {text.count(chr(10))} lines, {len(text)} bytes", file=sys.stderr)
