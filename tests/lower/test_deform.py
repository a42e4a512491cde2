"""DeformConv against sums written out in numpy and plain Conv."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from atc.errors import AtcError
from atc.ir.graph import Array
from support import Batch, compile_graph, node_model, run_model

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "one axis": ((2, 2, 9), (3, 2, 3), (4,), {"strides": [2], "pads": [0, 1]}),
    "two axes, groups": (
        (1, 4, 5, 6), (6, 2, 3, 2), (3, 5),
        {"group": 2, "offset_group": 2, "strides": [2, 1], "pads": [1, 0, 1, 0]},
    ),
    "three axes": ((1, 2, 3, 4, 3), (2, 2, 2, 2, 2), (2, 2, 2), {"dilations": [1, 2, 1]}),
    "a row": ((2, 1, 1, 6), (2, 1, 1, 3), (1, 6), {"pads": [0, 1, 0, 1]}),
}  # fmt: skip
"""Shapes of x and w, extents of the output, attributes."""


def operands(name: str, dtype: Any) -> list[Array]:
    """Return x, w, offset, bias and mask; some offsets lead far outside."""
    x, w, out, attributes = CASES[name]
    random = np.random.default_rng(len(name))
    taps = attributes.get("offset_group", 1) * prod(w[2:])
    shapes = (x, w, (x[0], taps * (len(x) - 2), *out), w[:1], (x[0], taps, *out))
    return [random.normal(0, 1.5, s).astype(dtype) for s in shapes]


def at(plane: Array, place: list[float]) -> float:
    """Return the linear interpolation of an array that is 0 outside."""
    total = 0.0
    for corner in product((0, 1), repeat=plane.ndim):
        index = [int(np.floor(p)) + c for p, c in zip(place, corner, strict=True)]
        share = prod(1 - abs(p - i) for p, i in zip(place, index, strict=True))
        inside = all(0 <= i < n for i, n in zip(index, plane.shape, strict=True))
        total += share * float(plane[tuple(index)]) if inside else 0.0
    return total


def written_out(name: str, given: list[Array]) -> Array:
    """Return what the standard says, sum by sum."""
    attributes = CASES[name][3]
    x, w, offset, bias, mask = (a.astype(np.float64) for a in given)
    rank, kernel = x.ndim - 2, w.shape[2:]
    sets, group = attributes.get("offset_group", 1), attributes.get("group", 1)
    strides, dilations = (attributes.get(k, [1] * rank) for k in ("strides", "dilations"))
    pads, out = attributes.get("pads", [0] * 2 * rank), CASES[name][2]
    offset = offset.reshape(x.shape[0], sets, *kernel, rank, *out)
    mask = mask.reshape(x.shape[0], sets, *kernel, *out)
    y = np.zeros((x.shape[0], w.shape[0], *out)) + bias.reshape(-1, *[1] * rank)
    for n, m, c in np.ndindex(x.shape[0], w.shape[0], w.shape[1]):
        channel = m // (w.shape[0] // group) * w.shape[1] + c
        s = channel // (x.shape[1] // sets)
        for o, k in product(np.ndindex(*out), np.ndindex(*kernel)):
            place = [
                o[d] * strides[d] + k[d] * dilations[d] - pads[d] + offset[(n, s, *k, d, *o)]
                for d in range(rank)
            ]
            y[(n, m, *o)] += w[(m, c, *k)] * mask[(n, s, *k, *o)] * at(x[n, channel], place)
    return y


TYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16}
TYPED = Batch({
    f"{name} {dtype}": node_model(
        "DeformConv", operands(name, TYPES[dtype]), opset=22, **CASES[name][3]
    )
    for name in CASES for dtype in TYPES
})  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", CASES)
def test_sums_of_interpolated_elements(name: str, dtype: str) -> None:
    given = operands(name, TYPES[dtype])
    (y,) = TYPED[f"{name} {dtype}"](given)
    assert y.dtype == TYPES[dtype]
    tolerance = {2: 4e-3, 4: 2e-5, 8: 1e-12}[y.itemsize]
    wanted = written_out(name, given)
    np.testing.assert_allclose(y, wanted, rtol=tolerance, atol=tolerance * abs(wanted).max())


def test_without_displacement_it_is_a_convolution() -> None:
    x, w, offset, _, _ = operands("two axes, groups", np.float32)
    attributes = CASES["two axes, groups"][3]
    (y,) = run_model(
        node_model("DeformConv", [x, w, 0 * offset], opset=19, **attributes), [x, w, 0 * offset]
    )
    plain = {k: v for k, v in attributes.items() if k != "offset_group"}
    wanted = ReferenceEvaluator(node_model("Conv", [x, w], opset=19, **plain)).run(
        None, {"x0": x, "x1": w}
    )
    np.testing.assert_allclose(y, wanted[0], rtol=1e-4, atol=1e-5)


def test_offsets_of_another_shape_are_refused() -> None:
    x, w, offset, _, _ = operands("one axis", np.float32)
    with pytest.raises(AtcError, match="the offset is"):
        compile_graph(node_model("DeformConv", [x, w, offset[:, :-1]], opset=22))
