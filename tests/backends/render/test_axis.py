"""A window's axis says of its taps and outputs what counting them one by one says."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from atc.backends.render.axis import Axis
from atc.dims import Symbol, dim, evaluate

PADS = (0, 2, 7, -1)
WINDOWS = list(itertools.product((1, 2, 5), (1, 2, 3), (1, 3), PADS))
"""Kernels, strides, dilations and pads; some taps meet nothing but padding."""
N = Symbol(0, "n", 1, 9)


@pytest.mark.parametrize("size", [1, 4, 9])
def test_known_extents(size: int) -> None:
    for out, numbers in itertools.product((1, 3, 6), WINDOWS):
        axis = Axis(out, size, *numbers)
        valid = {(q, k) for q in range(out) for k in range(axis.kernel) if axis.valid(q, k)}
        for k in range(axis.kernel):
            served = [q for q in range(out) if (q, k) in valid]
            first, last = axis.tap_range(k)
            assert list(range(first, last)) == served
            assert 0 <= first <= last <= out
        whole = [q for q in range(out) if all((q, k) in valid for k in range(axis.kernel))]
        assert list(range(*axis.interior)) == whole
        assert axis.inside <= (len(whole) == out)


@pytest.mark.parametrize("pad", PADS)
def test_extents_of_the_run(pad: int) -> None:
    n = dim(N)
    for kernel, stride, dilation in itertools.product((1, 2, 5), (1, 2), (1, 3)):
        axis = Axis((n + 2) // stride, n, kernel, stride, dilation, pad)
        assert not axis.inside
        bounds = [*axis.interior, *itertools.chain(*map(axis.tap_range, range(kernel)))]
        for size in range(1, 10):
            known = replace(axis, out=(size + 2) // stride, size=size)
            expected = [*known.interior, *itertools.chain(*map(known.tap_range, range(kernel)))]
            assert [evaluate(b, {N: size}) for b in bounds] == expected


def test_windows_that_meet_nothing_are_not_covered() -> None:
    assert Axis(3, 3, 3, 1, 1, 1).covered
    assert Axis(3, 3, 2, 1, 3, 3).covered
    assert not Axis(3, 3, 2, 1, 1, 2).covered
    assert not Axis(5, 3, 2, 1, 1, 1).covered
    assert not Axis(1, 1, 2, 1, 5, 1).covered
