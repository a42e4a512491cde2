"""Operators of MegEngine dumps that move, search or make data, written by hand, against numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from importers.megengine_check import Case, Const, Quant, build, check, load
from importers.megengine_numpy import conv
from importers.megengine_writer import write_v2

from atc.errors import AtcError
from atc.importers.megengine.types import DType

RNG = np.random.default_rng(6)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def index(*numbers: int) -> Const:
    return Const(np.array(numbers, np.int32))


X, M, V = normal(5, 6, 7), normal(4, 9), normal(20)
REDUCTIONS = {
    "SUM": np.sum,
    "SUM_SQR": lambda x, a, keepdims: np.sum(x * x, a, keepdims=keepdims),
    "PRODUCT": np.prod,
    "MIN": np.min,
    "MAX": np.max,
    "MEAN": np.mean,
}


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("mode", sorted(REDUCTIONS))
def test_reduce_keeps_the_axis(mode: str, axis: int, tmp_path: Path) -> None:
    truth = lambda x: REDUCTIONS[mode](x.astype(np.float64), axis, keepdims=True)  # noqa: E731
    check(Case("Reduce", [X], {"Reduce": {"mode": mode, "axis": axis}}, truth), tmp_path)


@pytest.mark.parametrize("target", [(1,), (5, 1, 1), (1, 6, 7), (6, 1)])
def test_reduce_to_a_shape(target: tuple[int, ...], tmp_path: Path) -> None:
    aligned = (1,) * (3 - len(target)) + target
    axes = tuple(i for i in range(3) if aligned[i] == 1)
    truth = lambda x, _: x.astype(np.float64).sum(axes).reshape(target)  # noqa: E731
    check(Case("Reduce", [X, index(*target)], {"Reduce": {"mode": "SUM"}}, truth), tmp_path)


@pytest.mark.parametrize("dtype", ["int32", "int16", "int8", "uint8"])
@pytest.mark.parametrize("mode", ["SUM", "MAX"])
def test_reduce_integers(mode: str, dtype: str, tmp_path: Path) -> None:
    x = RNG.integers(0, 20, (4, 5)).astype(dtype)
    truth = lambda x: REDUCTIONS[mode](x, 1, keepdims=True).astype(dtype)  # noqa: E731
    check(Case("Reduce", [x], {"Reduce": {"mode": mode, "axis": 1}}, truth, tolerance=0), tmp_path)


@pytest.mark.parametrize(("data_type", "high"), [("DEFAULT", 127), ("QINT_I8xO32", 2**31 - 1)])
def test_quantized_sums_saturate(data_type: str, high: int, tmp_path: Path) -> None:
    x = RNG.integers(0, 127, (3, 9)).astype(np.int8)
    truth = np.minimum(x.astype(np.int64).sum(1, keepdims=True), high)
    params = {"Reduce": {"mode": "SUM", "axis": 1, "data_type": data_type}}
    quant = Quant(x, DType("QuantizedS8", 0.1))
    check(Case("Reduce", [quant], params, lambda _: truth, tolerance=0), tmp_path)


TIES = np.array([[3, 1, 3, 1], [0, 0, 0, 0]], np.float32)
ORDER = np.argsort(M, -1)
SEARCHES = [
    Case("Argmax", [TIES], {"Axis": {"axis": 1}}, lambda x: x.argmax(1)[:, None]),
    Case("Argmin", [TIES], {"Axis": {"axis": -1}}, lambda x: x.argmin(1)[:, None]),
    Case("Argsort", [M], {"Argsort": {}}, lambda x: (np.sort(x), ORDER)),
    Case(
        "Argsort",
        [M],
        {"Argsort": {"order": "DESCENDING"}},
        lambda x: (np.sort(x)[:, ::-1], ORDER[:, ::-1]),
        "descending",
    ),
    Case(
        "TopK",
        [M, index(3)],
        {"TopK": {"mode": "VALUE_IDX_SORTED"}},
        lambda x, k: (np.sort(x)[:, :3], ORDER[:, :3]),
        "smallest",
    ),
    Case(
        "TopK",
        [M, index(-3)],
        {"TopK": {"mode": "VALUE_IDX_SORTED"}},
        lambda x, k: (np.sort(x)[:, :-4:-1], ORDER[:, :-4:-1]),
        "largest",
    ),
    Case("TopK", [M, index(3)], {"TopK": {}}, lambda x, k: np.sort(x)[:, 2], "kth"),
    *(
        Case(
            "Cumsum",
            [X],
            {"Cumsum": {"axis": 1, "exclusive": bool(e), "reverse": bool(r)}},
            lambda x, e=e, r=r: accumulated(x, e, r),
            f"{e}{r}",
        )
        for e in (0, 1)
        for r in (0, 1)
    ),
]


def accumulated(x: np.ndarray, exclusive: int, reverse: int) -> np.ndarray:
    x = x[:, ::-1] if reverse else x
    total = np.cumsum(x.astype(np.float64), 1) - (x if exclusive else 0)
    return total[:, ::-1] if reverse else total


@pytest.mark.parametrize("case", SEARCHES, ids=str)
def test_search(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


ONE = normal(3, 1, 4)
PADS = {"front0": 1, "back1": 2, "front2": 2, "back2": 1}
NUMPY_PADS = ((1, 0), (0, 2), (2, 1))
Y = normal(5, 6, 2)


def neighbours(x: np.ndarray) -> np.ndarray:
    data = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    view = np.lib.stride_tricks.sliding_window_view(data, (2, 5), (2, 3))
    return view[:, :, ::2, :, :, ::2]


SHAPES = [
    Case(
        "Reshape", [X, index(-1, 3)], {"OptionalAxisV1": {"axis": 0}}, lambda x, _: x.reshape(-1, 3)
    ),
    Case("Reshape", [X, index(210)], {"OptionalAxisV1": {}}, lambda x, _: x.reshape(210), "flat"),
    Case(
        "Broadcast",
        [ONE, index(2, 3, 5, 4)],
        {"Empty": {}},
        lambda x, _: np.broadcast_to(x, (2, 3, 5, 4)),
    ),
    Case("Broadcast", [ONE, index(3, 1, 4)], {"Empty": {}}, lambda x, _: x, "same"),
    Case(
        "Dimshuffle",
        [X],
        {"Dimshuffle": {"pattern": [2, -1, 0, 1], "ndim": 3}},
        lambda x: x.transpose(2, 0, 1)[:, None],
    ),
    Case(
        "Dimshuffle",
        [ONE],
        {"Dimshuffle": {"pattern": [2, 0], "ndim": 3}},
        lambda x: x[:, 0].T,
        "drop",
    ),
    Case(
        "AxisAddRemove",
        [ONE],
        {"AxisAddRemove": {"desc": [(1, 1), (0, 0), (0, -1)]}},
        lambda x: x[:, 0][None, ..., None],
    ),
    Case(
        "AxisAddRemove", [normal(1)], {"AxisAddRemove": {"desc": [(1, 0)]}}, lambda x: x, "scalar"
    ),
    Case("Concat", [X, Y], {"Axis": {"axis": -1}}, lambda x, y: np.concatenate([x, y], -1)),
    Case(
        "Split",
        [X, index(2), index(4)],
        {"Axis": {"axis": 1}},
        lambda x, a, b: (x[:, :2], x[:, 2:]),
    ),
    Case("GetVarShape", [X], {"OptionalAxisV1": {}}, lambda x: np.array(x.shape)),
    Case(
        "GetVarShape",
        [ONE, normal(6, 1)],
        {"OptionalAxisV1": {}},
        lambda x, y: np.array([3, 6, 4]),
        "broadcast",
    ),
    Case("GetVarShape", [X], {"OptionalAxisV1": {"axis": -2}}, lambda x: np.array([6]), "axis"),
    *(
        Case(
            "Padding",
            [X],
            {"Padding": {**PADS, "padding_mode": word, "padding_val": 1.5}},
            lambda x, m=m, k=k: np.pad(x, NUMPY_PADS, m, **k),
            word,
        )
        for word, m, k in (
            ("CONSTANT", "constant", {"constant_values": 1.5}),
            ("REFLECT", "reflect", {}),
            ("REPLICATE", "edge", {}),
        )
    ),
    Case("Identity", [X], {"Empty": {}}, np.copy),
    Case("Copy", [X], {"Empty": {}}, np.copy),
    Case("MarkNoBroadcastElemwise", [X], {"Empty": {}}, np.copy),
    Case(
        "Images2Neibs",
        [normal(2, 3, 6, 7)],
        {"Images2Neibs": {"pad_h": 1, "window_h": 2, "window_w": 3, "stride_h": 2, "dilate_w": 2}},
        neighbours,
    ),
    Case(
        "RelayoutFormat",
        [normal(1, 8, 2, 3)],
        {"RelayoutFormat": {"mode": 24}},
        lambda x: x.reshape(1, 2, 4, 2, 3).transpose(0, 1, 3, 4, 2),
    ),
    Case(
        "RelayoutFormat",
        [normal(1, 2, 3, 8)],
        {"RelayoutFormat": {"mode": 30}},
        lambda x: x.transpose(0, 3, 1, 2),
        "nhwc",
    ),
]


@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_shape_operator(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def number(value: float) -> Const:
    return Const(np.array([value], np.float32))


CREATION = [
    Case(
        "Linspace",
        [number(1), number(3), index(5)],
        {"Linspace": {}},
        lambda *_: np.linspace(1, 3, 5),
    ),
    Case(
        "Linspace",
        [number(1), number(3), index(5)],
        {"Linspace": {"endpoint": False}},
        lambda *_: np.linspace(1, 3, 5, endpoint=False),
        "open",
    ),
    Case(
        "Linspace",
        [number(2), number(3), index(1)],
        {"Linspace": {}},
        lambda *_: np.array([2.0]),
        "one",
    ),
    Case(
        "Linspace",
        [number(0), number(8999), index(9000)],
        {"Linspace": {}},
        lambda *_: np.arange(9000.0),
        "long",
    ),
    Case("Eye", [index(3, 5)], {"Eye": {"k": 1}}, lambda _: np.eye(3, 5, 1)),
    Case("Alloc", [index(2, 3)], {"DType(param)": {"dtype": 0}}, lambda _: np.zeros((2, 3))),
    Case(
        "Alloc",
        [index(2, 3)],
        {"DType": {"dtype": DType("Int32")}},
        lambda _: np.zeros((2, 3)),
        "typed",
    ),
    Case("Fill", [index(4)], {"Fill": {"value": 2.5}}, lambda _: np.full(4, 2.5)),
    *(
        Case("Diag", [normal(4)], {"Diag": {"k": k}}, lambda x, k=k: np.diag(x, k), f"vector{k}")
        for k in (-1, 0, 2)
    ),
    *(
        Case("Diag", [M], {"Diag": {"k": k}}, lambda x, k=k: np.diag(x, k), f"matrix{k}")
        for k in (-1, 0, 7)
    ),
]


@pytest.mark.parametrize("case", CREATION, ids=str)
def test_creation(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def packed(w: np.ndarray, k: int) -> np.ndarray:
    """Pack dense weights: (O/k, I/k, kh, kw, k of I, k of O)."""
    o, i, kh, kw = w.shape
    return w.reshape(o // k, k, i // k, k, kh, kw).transpose(0, 2, 4, 5, 3, 1).copy()


def packed_data(x: np.ndarray, k: int) -> np.ndarray:
    n, c, h, w = x.shape
    return x.reshape(n, c // k, k, h, w).transpose(0, 1, 3, 4, 2).copy()


@pytest.mark.parametrize(("word", "k"), [("NCHW44", 4), ("NCHW88", 8)])
@pytest.mark.parametrize("kind", ["dense", "first", "depthwise", "grouped"])
def test_packed_convolution(word: str, k: int, kind: str, tmp_path: Path) -> None:
    x = normal(1, 3 if kind == "first" else 2 * k, 5, 6)
    groups, params = 1, {"format": word}
    data = x if kind == "first" else packed_data(x, k)
    if kind == "depthwise":
        w = normal(2 * k, 1, 3, 2)
        stored = w.reshape(2, k, 1, 1, 3, 2).transpose(0, 2, 3, 4, 5, 1).copy()
    elif kind == "grouped":
        w = normal(2 * k, k, 3, 2)
        stored = np.stack([packed(half, k) for half in np.split(w, 2)])
    elif kind == "first":
        w = normal(k, 3, 3, 2)
        stored = w.reshape(1, k, 3, 3, 2).transpose(0, 3, 4, 2, 1).copy()
    else:
        w, stored = normal(k, 2 * k, 3, 2), None
        stored = packed(w, k)
    if kind in ("depthwise", "grouped"):
        params["sparse"], groups = "GROUP", len(x[0]) // w.shape[1]
    truth = packed_data(conv(x, w, groups=groups).astype(np.float32), k)
    check(
        Case("Convolution", [data, Const(stored)], {"Convolution": params}, lambda *_: truth),
        tmp_path,
    )


@pytest.mark.parametrize("word", ["NCHW4_NCHW32", "CHWN4", "NHWCD4"])
def test_other_memory_formats_are_refused(word: str, tmp_path: Path) -> None:
    case = Case(
        "Convolution",
        [normal(1, 4, 5, 5), Const(normal(4, 4, 3, 3))],
        {"Convolution": {"format": word}},
        lambda x, w: x,
    )
    with pytest.raises(AtcError, match=rf"{word} is not covered.*net\.mge: node"):
        load(write_v2(build(case)[0]), tmp_path)
