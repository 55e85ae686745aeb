"""A program that fails: it adds up invoices until one of them lacks its tax
rate, and Python's traceback says where.

  glovebox run examples/invoices.py; echo "exit code $?"

Expect the invoices before it on standard output, a KeyError with its traceback
on standard error, and exit code 1, the program's own.
"""

INVOICES = [
    {"number": 17, "items": [(2, 1250), (1, 399)], "tax": 19},
    {"number": 18, "items": [(7, 80)], "tax": 7},
    {"number": 19, "items": [(1, 99900), (3, 1500)]},
    {"number": 20, "items": [(1, 1)], "tax": 19},
]


def net(invoice):
    return sum(quantity * cents for quantity, cents in invoice["items"])


def gross(invoice):
    return net(invoice) * (100 + invoice["tax"]) // 100


def main():
    total = 0
    for invoice in INVOICES:
        total += gross(invoice)
        print(f"invoice {invoice['number']}: {gross(invoice)} cents, {total} so far")


main()
