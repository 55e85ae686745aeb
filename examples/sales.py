"""Data processing: totals of a CSV file that is copied in, as a table on
standard output and as JSON in a file that is copied out.

  glovebox run --file examples/data/sales.csv --out report.json examples/sales.py sales.csv

Expect exit code 0, revenue by region and by product, the best month, and
report.json in the working directory.
"""

import collections
import csv
import json
import sys


def read(path):
    with open(path, newline="", encoding="utf-8") as f:
        for row in csv.DictReader(f):
            yield row["region"], row["product"], row["date"][:7], int(row["quantity"]), int(row["unit_cents"])


def euros(cents):
    return f"{cents // 100:,}.{cents % 100:02d}"


def table(title, totals):
    print(title)
    whole = sum(totals.values())
    for name, cents in totals.most_common():
        print(f"  {name:<10} {euros(cents):>12}  {100 * cents / whole:5.1f} %")


regions, products, months = collections.Counter(), collections.Counter(), collections.Counter()
rows = units = 0
for region, product, month, quantity, price in read(sys.argv[1]):
    rows += 1
    units += quantity
    for totals, key in ((regions, region), (products, product), (months, month)):
        totals[key] += quantity * price

table("revenue by region", regions)
table("revenue by product", products)
best, cents = max(months.items(), key=lambda item: item[1])
print(f"best month: {best} with {euros(cents)}")
print(f"in all: {rows} orders, {units} units, {euros(sum(regions.values()))}")

with open("report.json", "w", encoding="utf-8") as f:
    json.dump({"orders": rows, "units": units, "revenue_cents": sum(regions.values()),
               "by_region": regions, "by_product": products, "by_month": months}, f, indent=2)
