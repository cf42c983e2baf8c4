from decimal import Decimal

import pytest

from shop import Basket


def test_an_empty_basket_costs_nothing():
    assert Basket().total() == Decimal("0.00")


@pytest.mark.parametrize("discount, want", [(0, "21.00"), (10, "18.90"), (100, "0.00")])
def test_discount(discount, want):
    basket = Basket()
    basket.add("tea", "3.50", 4)
    basket.add("cup", "7.00")
    assert basket.total(discount) == Decimal(want)


def test_a_count_below_one_is_refused():
    with pytest.raises(ValueError):
        Basket().add("tea", "3.50", 0)
