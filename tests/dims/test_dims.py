"""Extents that vary: their arithmetic, what is proven of them, and their text."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from atc.dims import (
    Dim,
    Symbol,
    Undecided,
    bind_tokens,
    broadcast_guard,
    broadcast_shapes,
    ceiling,
    decided,
    dim,
    equals,
    evaluate,
    lower_bound,
    max_value,
    maximum,
    minimum,
    not_equal,
    plain,
    upper_bound,
)

N, H, W = (Symbol(k, name, *ends) for k, (name, *ends) in
           enumerate([("n", 1, 4), ("h", 3, 9), ("w", 2, 7)]))  # fmt: skip
n, h, w = map(dim, (N, H, W))
COUNT = Symbol(3, "count", 0, n * h, given=False)
count = dim(COUNT)

Point = dict[Symbol, int]


def points() -> Iterator[Point]:
    for values in itertools.product(range(1, 5), range(3, 10), range(2, 8)):
        yield dict(zip((N, H, W), values, strict=True))


def expressions(seed: int, depth: int) -> tuple[int, Callable[[Point], int], list[int]]:
    """Return a random extent, how numbers compute it, and all extents that went into it."""
    seeded = random.Random(seed)

    def build(level: int) -> tuple[int, Callable[[Point], int]]:
        if level == 0 or seeded.random() < 0.2:
            symbol = seeded.choice([N, H, W, None])
            if symbol is None:
                value = seeded.randint(1, 6)
                return value, lambda at: value
            return dim(symbol), lambda at: at[symbol]
        kind = seeded.choice("+-*/%mMd")
        (a, fa), (b, fb) = build(level - 1), build(level - 1)
        step = seeded.randint(2, 5)
        match kind:
            case "+":
                return a + b, lambda at: fa(at) + fb(at)
            case "-":
                return a - b, lambda at: fa(at) - fb(at)
            case "*":
                return a * b, lambda at: fa(at) * fb(at)
            case "/":
                return a // step, lambda at: fa(at) // step
            case "%":
                return a % step, lambda at: fa(at) % step
            case "m":
                return minimum(a, b), lambda at: min(fa(at), fb(at))
            case "M":
                return maximum(a, b), lambda at: max(fa(at), fb(at))
            case _ if lower_bound(b) > 0:
                return a // b, lambda at: fa(at) // fb(at)
            case _:
                return a, fa

    value, compute = build(depth)
    return value, compute, []


@pytest.mark.parametrize("seed", range(150))
def test_an_extent_has_the_value_that_numbers_give(seed: int) -> None:
    value, compute, _ = expressions(seed, 4)
    for at in points():
        assert evaluate(value, at) == compute(at), plain(value)


@pytest.mark.parametrize("seed", range(150))
def test_bounds_hold_everywhere(seed: int) -> None:
    value, compute, _ = expressions(seed, 4)
    values = [compute(at) for at in points()]
    assert lower_bound(value) <= min(values)
    assert upper_bound(value) >= max(values)


@pytest.mark.parametrize("seed", range(60))
def test_the_c_text_means_the_same(seed: int) -> None:
    value, compute, _ = expressions(seed, 4)
    if not isinstance(value, Dim):
        return
    text = re.sub(r"(?<![/])/(?![/])", "//", plain(value))
    names = {
        "atc_div": lambda a, b: a // b, "atc_mod": lambda a, b: a % b, "atc_min": min,
        "atc_max": max,
    }  # fmt: skip
    for at in itertools.islice(points(), 0, None, 7):
        d = [at[N], at[H], at[W]]
        assert int(eval(text, {**names, "d": d})) == compute(at), text


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (n * h * w // (h * w), n),
        (4 * n * h % h, 0),
        ((h - 1) // 2 + 1, (h + 1) // 2),
        (((h + 1) // 2 + 1) // 2, (h + 3) // 4),
        ((h * w * 5 + 1) // w, 5 * h),
        (n * (h + 1) * w // (h + 1), n * w),
        (maximum(h, 2), h),
        (minimum(h, w, 40 * h), minimum(h, w)),
        ((3 * h + n) - 3 * h, n),
        (6 * h // 4, 3 * h // 2),
        (maximum(h - 5, 0) - maximum(5 - h, 0), h - 5),
        (n * minimum(h, w) + n * maximum(h, w), n * h + n * w),
    ],
)
def test_one_value_has_one_form(left: int, right: int) -> None:
    assert left == right
    assert hash(left) == hash(right)


def test_what_no_longer_varies_is_an_int() -> None:
    assert type(h - h + 3) is int
    assert type(n * h // (n * h)) is int
    assert n not in (1, 2, 3, 4)


@pytest.mark.parametrize(
    "proven",
    [
        lambda: h * w - w >= 0,
        lambda: (h + 1) // 2 * 2 - 2 < h,
        lambda: count <= n * h,
        lambda: count <= n * 9,
        lambda: (n * h - 1) + 1 <= n * h,
        lambda: minimum(h, w) <= w,
        lambda: maximum(h - 4, 0) < h,
        lambda: 2 * (h // 8) * w <= h // 4 * w,
        lambda: n * (w // 2) * (h // 2) >= 4 * n * (w // 4) * (h // 4),
        lambda: 2 * ((h + 4) // 8) - 1 <= h // 4,
        lambda: maximum(5 - h, 0) + 2 * h - 1 <= 2 * maximum(h - 5, 0) + 9,
    ],
)
def test_order_is_proven(proven: Callable[[], bool]) -> None:
    assert proven()


@pytest.mark.parametrize(
    "open_question",
    [lambda: h < w, lambda: n > 1, lambda: h * w > 20, lambda: equals(n, 1)],
)
def test_order_that_depends_on_the_shape_is_refused(open_question: Callable[[], bool]) -> None:
    with pytest.raises(Undecided, match="depends on the shape"):
        open_question()


def test_nothing_is_found_of_what_the_shape_decides() -> None:
    assert decided(lambda: n < 5) is True
    assert decided(lambda: n < 1) is False
    assert decided(lambda: n < 2) is None
    with pytest.raises(ZeroDivisionError):  # another fault is one
        decided(lambda: n // 0)


@pytest.mark.parametrize("use", [range, float, lambda v: [0] * v, lambda v: "%d" % v, int])  # noqa: UP031
def test_an_extent_is_never_taken_for_a_number(use: Callable[[object], object]) -> None:
    with pytest.raises(TypeError):
        use(h)


def test_shapes_broadcast() -> None:
    assert broadcast_shapes((n, 1, h), (w, 1)) == (n, w, h)
    assert broadcast_shapes((n,), (5,)) == (5,)  # n is 5 or 1, or the model is wrong
    other = dim(Symbol(4, "m", 1, 9))
    assert broadcast_shapes((n,), (other,)) == (maximum(n, other),)
    (counted,) = broadcast_shapes((n,), (count,))
    assert [evaluate(counted, {N: 1, COUNT: k}) for k in (0, 1, 3)] == [0, 1, 3]
    with pytest.raises(ValueError, match="broadcast"):
        broadcast_shapes((h,), (2,))
    assert evaluate(broadcast_guard(h, w), {H: 4, W: 5}) == 1
    assert evaluate(broadcast_guard(h, w), {H: 5, W: 5}) == 0
    assert broadcast_guard(h, 1) == 0
    assert not_equal(n, 9) == 1
    assert not_equal(h, h) == 0


def test_the_most_that_kernels_may_write() -> None:
    assert ceiling(4 * count + 3) == 4 * n * h + 3
    assert max_value(4 * count) == 4 * 4 * 9
    assert max_value(9 - count) == 9


def test_extents_in_text_are_bound_to_names() -> None:
    text, found = bind_tokens(f"for (; i < {h}; ) {h * 2} {h}", "dim{}".format)
    assert text == "for (; i < dim0; ) dim1 dim0"
    assert found == ("d[1]", "2 * d[1]")


def test_what_is_broadcast_may_be_nothing() -> None:
    a, b = (Symbol(k, name, 0, 4) for k, name in enumerate("ab"))
    (extent,) = broadcast_shapes([dim(a)], [dim(b)])
    assert (lower_bound(extent), upper_bound(extent), max_value(extent)) == (0, 4, 4)
    assert (extent,) == broadcast_shapes([dim(b)], [dim(a)])
    assert broadcast_shapes([dim(a)], [0]) == (0,)
    for x, y in itertools.product(range(5), repeat=2):
        at = {a: x, b: y}
        if not evaluate(broadcast_guard(dim(a), dim(b)), at):
            assert (evaluate(extent, at),) == np.broadcast_shapes((x,), (y,))
            text = plain(extent).replace("atc_broadcast", "broadcast")
            c = {"broadcast": lambda p, q: q if p == 1 else p, "d": [x, y]}
            assert eval(text, c) == evaluate(extent, at)
        else:
            with pytest.raises(ValueError, match="broadcast"):
                np.broadcast_shapes((x,), (y,))


def test_factors_have_their_bounds_by_themselves() -> None:
    """Twice a quarter of an image is no smaller than its half, which it is joined to."""
    h, w = (dim(Symbol(k, name, 320, 640, given=True)) for k, name in enumerate("hw"))
    half, quarters = (h + 15) // 16, 2 * ((h + 31) // 32)
    assert minimum(half, quarters) == half
    assert lower_bound(quarters * w - half * w) == 0
    assert upper_bound(6 * half * w - 6 * quarters * w) == 0


def test_many_counts_have_their_bounds_soon() -> None:
    """A detector keeps some boxes of each of its classes, and the best of them all."""
    counts = [dim(Symbol(k, f"class{k}", 0, 3000, given=False)) for k in range(90)]
    kept = sum(minimum(300, each) for each in counts)
    assert (lower_bound(kept), upper_bound(kept)) == (0, 90 * 300)
    best = minimum(100, kept)
    assert (lower_bound(best), upper_bound(best)) == (0, 100)
    assert upper_bound(minimum(kept, kept - best + 7)) == 90 * 300 - 93
    assert lower_bound(kept - best) == 0
