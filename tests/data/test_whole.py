"""Whole numbers with an exponent are exact; other numbers are refused."""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.settings.checks import LARGEST, whole_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7),
        ("100_000", 100_000),
        ("2e4", 20_000),
        ("1E+3", 1000),
        ("2.50e2", 250),
        ("-3e1", -30),
        ("9.007199254740993e15", 2**53 + 1),
    ],
)
def test_whole_numbers_as_people_write_them(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["", "1.5", "3.0", "1e-3", "2.55e1", "e5", "1e5x", "inf", "nan", "auto"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        whole_number(text)


@pytest.mark.parametrize("text", ["1e400", "1e19", str(2**63), "-1e30", "9" * 5000])
def test_what_no_array_holds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        whole_number(text)
    assert whole_number(str(LARGEST)) == 2**63 - 1


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3), st.integers(0, 30))
def test_the_value_is_that_of_decimal_arithmetic(mantissa: Decimal, exponent: int) -> None:
    text = f"{mantissa:f}e{exponent}"
    with localcontext(prec=500):  # the default, 28 digits, rounds
        exact = Decimal(f"{mantissa:f}").scaleb(exponent)
        whole = exact == exact.to_integral_value()
    if whole and abs(exact) <= LARGEST:
        assert whole_number(text) == int(exact)
