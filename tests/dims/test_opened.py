"""Extents that C takes as numbers: they compute as ints do, and their text has their values."""

from __future__ import annotations

import operator
import random
from functools import cache
from typing import Any

import pytest

from atc.dims import bind_tokens, opened
from atc.dims.opened import Opened

OPERATIONS = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)


def value_of(text: str) -> int:
    """Compute C of extents: the numbers are put where their names are."""
    bound, numbers = bind_tokens(text, "dim{}".format)
    names = {f"dim{k}": int(number) for k, number in enumerate(numbers)}
    return int(eval(bound.replace("/", "//"), {}, names))  # noqa: S307 - own text


def drawn(random: random.Random, depth: int) -> tuple[int, int]:
    """Return the same number as an extent and as an int."""
    if depth == 0:
        n = random.randint(2, 99)
        return (opened(n, f"e{random.randint(0, 9)}_{n}") if random.random() < 0.7 else n), n
    (a, x), (b, y) = drawn(random, depth - 1), drawn(random, depth - 1)
    fn: Any = random.choice(OPERATIONS if y > 0 else OPERATIONS[:3])
    return fn(a, b), fn(x, y)


@pytest.mark.parametrize("seed", range(60))
def test_arithmetic_is_that_of_ints(seed: int) -> None:
    extent, number = drawn(random.Random(seed), 3)
    assert extent == number
    assert -extent == -number
    assert value_of(f"1000 * {extent} - {extent}") == 999 * number
    if isinstance(extent, Opened):
        assert value_of(f"{extent:d}") == number


def test_a_constant_that_is_added_stays_one() -> None:
    plane = opened(784, "plane")
    texts = [f"y + {2 * plane + 16 * k}" for k in range(3)]
    bound, numbers = bind_tokens("; ".join(texts), "dim{}".format)
    assert bound == "y + dim0; y + (dim0 + 16); y + (dim0 + 32)"
    assert numbers == ("1568",)


def test_what_is_0_or_1_decides_what_c_there_is() -> None:
    assert [type(opened(n, "n")) for n in (0, 1, 2)] == [int, int, Opened]
    assert opened(7, "n") * 0 == 0
    assert str(opened(7, "n") * 0) == "0"


def test_what_remembers_results_never_mixes_it_up_with_an_int() -> None:
    @cache
    def text(n: tuple[int, int]) -> str:
        return str(n[0])

    assert (opened(5, "n"), 1) == (5, 1)
    assert text((5, 1)) == "5"
    assert text((opened(5, "n"), 1)) != text((5, 1))
    assert text((opened(5, "n"), 1)) != text((opened(5, "m"), 1))
