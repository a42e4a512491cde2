"""Concat and Pad against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atc.errors import ModelError, UnsupportedError
from atc.ir.graph import Array, DType
from support import MOVED, Batch, assert_close, node_model, random_array, run_model

# ---- Concat -------------------------------------------------------------------------------------

JOINS: dict[str, tuple[int, list[tuple[int, ...]]]] = {
    "first axis": (0, [(2, 3), (1, 3), (4, 3)]),
    "last axis": (-1, [(2, 3), (2, 1), (2, 5)]),
    "middle axis": (1, [(2, 2, 4), (2, 3, 4)]),
    "single elements": (1, [(5, 1), (5, 1), (5, 1)]),
    "an empty part": (1, [(2, 3), (2, 0), (2, 2)]),
    "only empty parts": (0, [(0, 3), (0, 3)]),
    "one operand": (0, [(3, 2)]),
    "vectors": (0, [(3,), (2,)]),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("join", JOINS)
def test_concat(join: str) -> None:
    axis, shapes = JOINS[join]
    parts = [random_array(DType.FLOAT, s, k) for k, s in enumerate(shapes)]
    got = run_model(node_model("Concat", parts, axis=axis), parts)
    assert_close(got, [np.concatenate(parts, axis)], rtol=0, atol=0)


@pytest.fixture(scope="module")
def concat_of_dtypes() -> Batch:
    shapes = ((2, 3), (2, 2))
    return Batch({
        d.label: node_model("Concat", [random_array(d, s) for s in shapes], axis=1)
        for d in MOVED
    })  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", MOVED, ids=lambda d: d.label)
def test_concat_keeps_every_type(dtype: DType, concat_of_dtypes: Batch) -> None:
    parts = [random_array(dtype, s, 7) for s in ((2, 3), (2, 2))]
    got = concat_of_dtypes[dtype.label](parts)
    assert got[0].tobytes() == np.concatenate(parts, 1).tobytes()


def test_concat_before_opset_4_joins_axis_1() -> None:
    parts = [random_array(DType.FLOAT, s) for s in ((2, 3), (2, 2))]
    got = run_model(node_model("Concat", parts, opset=3), parts)
    assert_close(got, [np.concatenate(parts, 1)])


@pytest.mark.parametrize(
    ("shapes", "axis"), [(((2, 3), (3, 3)), 1), (((2, 3), (2,)), 0), (((2,), (2,)), 3), (((),), 0)]
)
def test_concat_refuses_what_does_not_fit(shapes: tuple[tuple[int, ...], ...], axis: int) -> None:
    parts = [np.zeros(s, np.float32) for s in shapes]
    with pytest.raises(ModelError, match="Concat"):
        run_model(node_model("Concat", parts, axis=axis), parts)


# ---- Pad ----------------------------------------------------------------------------------------

FRAMES: dict[str, tuple[tuple[int, ...], list[int]]] = {
    "last axis": ((2, 3, 4), [0, 0, 1, 0, 0, 2]),
    "middle axis": ((2, 3, 4), [0, 2, 0, 0, 1, 0]),
    "all axes": ((3, 2, 4), [1, 1, 2, 2, 0, 3]),
    "outer axes": ((3, 2, 4), [1, 1, 0, 2, 0, 0]),
    "images": ((1, 2, 5, 6), [0, 0, 2, 3, 0, 0, 1, 2]),
    "begin only": ((4,), [3, 0]),
    "end only": ((4,), [0, 2]),
    "nothing": ((2, 2), [0, 0, 0, 0]),
    "crop": ((5, 6), [-1, -2, -1, 0]),
    "crop and frame": ((5, 6), [-1, 2, 1, -1]),
    "one element": ((1, 3), [2, 0, 2, 0]),
    "further than the axis": ((3, 2), [5, 0, 7, 4]),
}


def framed(x: Array, pads: list[int], mode: str, **values: Any) -> Array:
    """numpy's pad, with negative pads cropping first."""
    rank = x.ndim
    begins, ends = pads[:rank], pads[rank:]
    limits = zip(x.shape, begins, ends, strict=True)
    x = x[tuple(slice(max(0, -b), n - max(0, -e)) for n, b, e in limits)]
    widths = [(max(0, b), max(0, e)) for b, e in zip(begins, ends, strict=True)]
    return np.pad(x, widths, mode, **values)  # type: ignore[call-overload,no-any-return]


PAD_CASES = [(mode, frame) for mode in ("constant", "edge", "reflect", "wrap") for frame in FRAMES]


@pytest.fixture(scope="module")
def pads() -> Batch:
    return Batch({
        f"{mode} {frame}": node_model(
            "Pad", [np.zeros(FRAMES[frame][0], np.float32), np.array(FRAMES[frame][1])], mode=mode
        )
        for mode, frame in PAD_CASES
    })  # fmt: skip


@pytest.mark.few(24)
@pytest.mark.parametrize(("mode", "frame"), PAD_CASES)
def test_pad(mode: str, frame: str, pads: Batch) -> None:
    shape, widths = FRAMES[frame]
    x = random_array(DType.FLOAT, shape)
    assert_close(pads[f"{mode} {frame}"]([x]), [framed(x, widths, mode)], rtol=0, atol=0)


@pytest.fixture(scope="module")
def pads_of_dtypes() -> Batch:
    return Batch({
        d.label: node_model(
            "Pad", [random_array(d, (2, 3)), np.array([1, 1, 0, 2]), random_array(d, ())]
        )
        for d in MOVED
    })  # fmt: skip


@pytest.mark.few(8)
@pytest.mark.parametrize("dtype", MOVED, ids=lambda d: d.label)
def test_pad_with_a_value_of_run_time(dtype: DType, pads_of_dtypes: Batch) -> None:
    x, value = random_array(dtype, (2, 3), 3), random_array(dtype, (), 4)
    expected = framed(x, [1, 1, 0, 2], "constant", constant_values=value)
    assert pads_of_dtypes[dtype.label]([x, value])[0].tobytes() == expected.tobytes()


def test_pad_some_axes() -> None:
    x = random_array(DType.FLOAT, (2, 3, 4))
    given = [x, np.array([1, 0, 2, 0]), None, np.array([-1, 0])]
    got = run_model(node_model("Pad", given), [x])
    assert_close(got, [np.pad(x, [(0, 0), (0, 0), (1, 2)])])


def test_pad_constant_value_in_the_model() -> None:
    x = random_array(DType.FLOAT, (2, 3))
    given = [x, np.array([0, 1, 1, 0]), np.array(-np.inf, np.float32)]
    got = run_model(node_model("Pad", given, constant=[1, 2]), [x])
    assert_close(got, [np.pad(x, [(0, 1), (1, 0)], constant_values=-np.inf)])


@pytest.mark.parametrize(("opset", "name"), [(1, "paddings"), (2, "pads"), (10, "pads")])
def test_pad_attributes_before_opset_11(opset: int, name: str) -> None:
    x = random_array(DType.FLOAT, (2, 3))
    model = node_model("Pad", [x], opset=opset, value=1.5, **{name: [0, 1, 0, 2]})
    assert_close(run_model(model, [x]), [np.pad(x, [(0, 0), (1, 2)], constant_values=1.5)])


def test_pad_an_empty_tensor_with_a_value() -> None:
    x = np.zeros((2, 0), np.float32)
    got = run_model(node_model("Pad", [x, np.array([0, 1, 0, 2])]), [x])
    assert_close(got, [np.zeros((2, 3), np.float32)])


def test_pad_to_an_empty_tensor() -> None:
    x = np.zeros((2, 3), np.float32)
    got = run_model(node_model("Pad", [x, np.array([0, -1, 0, -2])]), [x])
    assert got[0].shape == (2, 0)


@pytest.mark.parametrize(
    ("pads", "attributes"),
    [
        ([0, -2, 0, -2], {}),
        ([0, 0, 0], {}),
        ([0, 0, 0, 0], {"mode": "mirror"}),
        ([0, 1, 0, -3], {"mode": "edge"}),
    ],
)
def test_pad_refuses_what_does_not_fit(pads: list[int], attributes: dict[str, str]) -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ModelError, match="Pad"):
        run_model(node_model("Pad", [x, np.array(pads)], **attributes), [x])


def test_pad_by_run_time_pads_is_refused() -> None:
    x, widths = np.zeros(3, np.float32), np.array([1, 1])
    with pytest.raises(UnsupportedError, match="run time"):
        run_model(node_model("Pad", [x, widths], constant=[]), [x, widths])


def test_pad_a_scalar() -> None:
    x = np.array(3, np.float32)
    model = node_model("Pad", [x, np.zeros(0, np.int64)])
    assert_close(run_model(model, [x]), [x])
