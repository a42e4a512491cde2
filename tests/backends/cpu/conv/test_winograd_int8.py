"""Winograd's matrices in integers: exact, and within the bits that their kernel counts on."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from atc.backends.cpu.conv.winograd_int8 import HIGHEST, SIZES, exact_matrices

Integers = NDArray[np.int64]


def matrices(m: int) -> tuple[Integers, Integers, Integers]:
    """Return A^T, B^T and G."""
    of = exact_matrices(m)
    output, into, filters = (
        np.array([[int(x) for x in row] for row in rows], np.int64)
        for rows in (of.output, of.input, of.filter)
    )
    return output, into, filters


@pytest.mark.parametrize("m", SIZES)
def test_results_are_multiples_of_the_exact_sums(m: int) -> None:
    output, into, filters = matrices(m)
    rng = np.random.default_rng(m)
    d, g = rng.integers(0, 256, (m + 2, m + 2)), rng.integers(-128, 128, (3, 3))
    got = output @ ((filters @ g @ filters.T) * (into @ d @ into.T)) @ output.T
    windows = np.lib.stride_tricks.sliding_window_view(d, (3, 3))
    np.testing.assert_array_equal(got, exact_matrices(m).scale ** 2 * (windows * g).sum((2, 3)))


@pytest.mark.parametrize("m", SIZES)
def test_transformed_bytes_and_filters_fit_16_bits(m: int) -> None:
    _, into, filters = matrices(m)
    components = np.kron(into, into)  # each of all inputs of a tile
    assert 255 * components.clip(min=0).sum(1).max() < 1 << 15
    assert 255 * components.clip(max=0).sum(1).min() >= -(1 << 15)
    assert HIGHEST * np.abs(np.kron(filters, filters)).sum(1).max() < 1 << 15


@pytest.mark.parametrize("m", SIZES)
def test_what_is_left_of_32_bits_holds_the_sums_of_a_group(m: int) -> None:
    of = exact_matrices(m)
    greatest = of.channels * 9 * HIGHEST * HIGHEST
    for exact in (greatest - 1, -greatest):
        wrapped = np.array([of.scale**2 * exact], np.int64).astype(np.int32)
        odd = (wrapped.astype(np.int64) * of.inverse).astype(np.int32)
        assert (odd >> of.shift).item() == exact
