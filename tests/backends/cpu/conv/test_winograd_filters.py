"""Winograd's matrices; transformed filters, packed at once and in parts."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from atc.backends.cpu.conv import winograd_pairs
from atc.backends.cpu.conv.winograd_matrices import (
    POINTS,
    Matrices,
    matrices,
    with_plain_filters,
)
from atc.backends.cpu.conv.winograd_pairs import packed_filters


@pytest.mark.parametrize("part", [1, 1 << 22], ids=["parts", "whole"])
@pytest.mark.parametrize(("out", "nv"), [(32, 2), (40, 2), (36, 3), (8, 1)])
@pytest.mark.parametrize("m", [2, 4])
def test_filters_lie_in_panels(
    m: int, out: int, nv: int, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd_pairs, "PART", part)
    block, channels = 8, 5
    w = np.random.default_rng(out).standard_normal((out, channels, 3, 3)).astype(np.float32)
    g = np.array([[float(x) for x in row] for row in matrices(m).filter])
    every = np.einsum("ia,ocab,jb->ijoc", g, w.astype(np.float64), g).reshape(-1, out, channels)
    whole = -(-out // block) * block
    every = np.pad(every, [(0, 0), (0, whole - out), (0, 0)])
    panels = [every[:, k : k + nv * block].swapaxes(1, 2) for k in range(0, whole, nv * block)]
    expected = np.concatenate([p.reshape(len(every), -1) for p in panels], 1).reshape(-1)
    pack = packed_filters(SimpleNamespace(ic=channels, mb=whole // block, block=block), m, nv)
    parts = [*pack.parts(w)]
    if part == 1:
        assert max(values.size for _, values in parts) == channels * nv * block
    assert pack.size == expected.size == sum(values.size for _, values in parts)
    assert np.allclose(pack(w), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("of", [matrices, with_plain_filters])
@pytest.mark.parametrize("m", POINTS)
def test_each_set_of_matrices_gives_the_exact_sums(of: Callable[[int], Matrices], m: int) -> None:
    each = of(m)
    output, filters, inputs = (np.array(x, object) for x in (each.output, each.filter, each.input))
    rng = np.random.default_rng(m)
    g, d = (rng.integers(-9, 9, n).astype(object) for n in (3, m + 2))
    want = [sum(g * d[i : i + 3]) for i in range(m)]
    assert list(output @ ((filters @ g) * (inputs @ d))) == want
