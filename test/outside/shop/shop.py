"""A basket with a discount: enough of a project to be cloned, installed and tested."""
from decimal import Decimal


class Basket:
    def __init__(self):
        self.lines = {}

    def add(self, name, price, count=1):
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}")
        have = self.lines.get(name, (Decimal(price), 0))[1]
        self.lines[name] = (Decimal(price), have + count)

    def total(self, discount_percent=0):
        whole = sum((price * count for price, count in self.lines.values()), Decimal(0))
        return (whole * (100 - Decimal(discount_percent)) / 100).quantize(Decimal("0.01"))
