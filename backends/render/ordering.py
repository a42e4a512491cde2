"""The order of elements: comparisons in C."""

from __future__ import annotations

from atc.ir.graph import DType


def comes_first(a: str, b: str, sign: str, dtype: DType) -> str:
    """Return the C condition that value a belongs before value b; NaN is the largest."""
    if not dtype.is_float:
        return f"{a} {sign} {b}"
    nan, number = (a, b) if sign == ">" else (b, a)
    return f"{a} {sign} {b} || (isnan({nan}) && !isnan({number}))"
