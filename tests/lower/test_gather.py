"""Operators that read at computed places against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from atc.errors import ModelError
from atc.ir.graph import Array, DType
from atc.ir.ops.data import Gather
from support import (
    MOVED,
    Batch,
    assert_close,
    compile_graph,
    node_model,
    random_array,
    run_model,
)

# ---- Gather -------------------------------------------------------------------------------------

TAKES: dict[str, tuple[tuple[int, ...], int, Array]] = {
    "rows": ((5, 3), 0, np.array([4, 0, 2, 0])),
    "columns": ((3, 5), 1, np.array([[4, 0], [2, 1]])),
    "last of three axes": ((2, 3, 4), -1, np.array([3, 1])),
    "middle axis": ((2, 3, 4), 1, np.array([2, 0, 1, 1])),
    "scalar": ((4, 3), 0, np.array(2)),
    "scalar of a vector": ((4,), 0, np.array(-1)),
    "negative": ((4, 2), 0, np.array([-1, -4, 3])),
    "even steps": ((9, 2), 0, np.array([1, 3, 5])),
    "backwards": ((4, 2), 0, np.array([3, 2, 1, 0])),
    "even grid": ((9,), 0, np.array([[0, 1, 2], [3, 4, 5]])),
    "one index": ((3, 2), 1, np.array([[1]])),
    "no index": ((3, 2), 0, np.zeros((0,), np.int64)),
    "empty data": ((3, 0), 0, np.array([1, 2])),
    "int32": ((4, 2), 0, np.array([1, -2], np.int32)),
}


def take_models(constant: list[int]) -> Batch:
    return Batch({
        name: node_model("Gather", [np.zeros(s, np.float32), i], axis=axis, constant=constant)
        for name, (s, axis, i) in TAKES.items()
    })  # fmt: skip


@pytest.fixture(scope="module")
def takes() -> dict[str, Batch]:
    return {"constant": take_models([1]), "run time": take_models([])}


@pytest.mark.parametrize("when", ["constant", "run time"])
@pytest.mark.parametrize("name", TAKES)
def test_gather(name: str, when: str, takes: dict[str, Batch]) -> None:
    shape, axis, indices = TAKES[name]
    x = random_array(DType.FLOAT, shape)
    got = takes[when][name]([x] if when == "constant" else [x, indices])
    assert_close(got, [np.take(x, indices.astype(np.int64), axis)], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("indices", "is_view"), [([0, 2, 4], True), ([3, 2], True), ([0, 1, 3], False)]
)
def test_even_constant_indices_are_a_view(indices: list[int], is_view: bool) -> None:
    x = np.zeros((5, 2), np.float32)
    graph = compile_graph(node_model("Gather", [x, np.array(indices)], constant=[1]))
    assert any(isinstance(n.op, Gather) for n in graph.nodes) != is_view


@pytest.fixture(scope="module")
def gathers_of_dtypes() -> Batch:
    indices = np.zeros((2,), np.int64)
    return Batch({
        f"{d.label} {op}": node_model(op, [random_array(d, (3, 2)), table], constant=[])
        for d in MOVED
        for op, table in (("Gather", indices), ("GatherElements", np.zeros((2, 2), np.int64)))
    })  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", MOVED, ids=lambda d: d.label)
def test_every_type(dtype: DType, gathers_of_dtypes: Batch) -> None:
    x = random_array(dtype, (3, 2), 5)
    rows, places = np.array([2, -2]), np.array([[0, 2], [-1, 1]])
    got = gathers_of_dtypes[f"{dtype.label} Gather"]([x, rows])
    assert got[0].tobytes() == x[rows].tobytes()
    got = gathers_of_dtypes[f"{dtype.label} GatherElements"]([x, places])
    assert got[0].tobytes() == np.take_along_axis(x, places % 3, 0).tobytes()


WILD = np.array([7, -9, 2**62, -(2**62), 2**63 - 1, -(2**63)])
NEAREST = np.array([2, 0, 2, 0, 2, 0])
"""Where the wild indices are clamped to on an axis of 3."""


def test_wild_indices_are_clamped() -> None:
    """The runner's fences show that nothing outside is written; reads give the nearest element."""
    x = random_array(DType.FLOAT, (3, 2))
    cases = [
        ("Gather", WILD, x[NEAREST]),
        ("GatherElements", np.stack([WILD, WILD], 1), x[NEAREST]),
        ("GatherND", WILD[:, None], x[NEAREST]),
    ]
    for op, indices, expected in cases:
        got = run_model(node_model(op, [x, indices], constant=[]), [x, indices])
        assert_close(got, [expected], rtol=0, atol=0)


def test_wild_tuples_are_clamped_per_axis() -> None:
    x = random_array(DType.FLOAT, (3, 4))
    indices = np.array([[9, 1], [1, 9], [-9, -1], [2**62, 2**62]])
    got = run_model(node_model("GatherND", [x, indices], constant=[]), [x, indices])
    assert_close(got, [x[[2, 1, 0, 2], [1, 3, 3, 3]]], rtol=0, atol=0)


@pytest.mark.parametrize("op", ["Gather", "GatherElements", "GatherND"])
def test_constant_indices_outside_are_refused(op: str) -> None:
    x, indices = np.zeros((3, 2), np.float32), np.array([[0], [3]])
    with pytest.raises(ModelError, match="index 3 is outside an axis of 3"):
        run_model(node_model(op, [x, indices], constant=[1]), [x])


# ---- GatherElements, GatherND -------------------------------------------------------------------


@pytest.mark.few(5)
@pytest.mark.parametrize("constant", [[], [1]], ids=["run time", "constant"])
@pytest.mark.parametrize(
    ("shape", "axis", "table"),
    [
        ((3, 4), 1, [[3, -1], [0, 0], [1, 2]]),
        ((3, 4), 0, [[2, -1, 0, 1]]),
        ((2, 2, 3), -2, [[[1, 0, 1]], [[0, -2, 1]]]),
        ((5,), 0, [4, 4, -5]),
        ((2, 0), 0, np.zeros((1, 0), int)),
    ],
)
def test_gather_elements(
    shape: tuple[int, ...], axis: int, table: list[int], constant: list[int]
) -> None:
    x, indices = random_array(DType.FLOAT, shape), np.array(table)
    kept = x[tuple(slice(n) if d != axis % x.ndim else slice(None)
                   for d, n in enumerate(indices.shape))]  # fmt: skip
    expected = np.take_along_axis(kept, indices % max(shape[axis], 1), axis)
    model = node_model("GatherElements", [x, indices], axis=axis, constant=constant)
    got = run_model(model, [x] if constant else [x, indices])
    assert_close(got, [expected], rtol=0, atol=0)


@pytest.mark.few(5)
@pytest.mark.parametrize("constant", [[], [1]], ids=["run time", "constant"])
@pytest.mark.parametrize(
    ("shape", "table", "batch"),
    [
        ((3, 4, 2), [[1, -1], [0, 2]], 0),
        ((3, 4, 2), [[-1], [0]], 0),
        ((3, 4), [[[1, 1]], [[2, -4]]], 0),
        ((2, 3, 4), [[[1], [0]], [[2], [-1]]], 1),
        ((2, 2, 3, 2), [[[0], [1]], [[2], [-1]]], 2),
        ((3, 4), np.zeros((2, 0), int), 0),
    ],
)
def test_gather_nd(
    shape: tuple[int, ...], table: list[int], batch: int, constant: list[int]
) -> None:
    x, indices = random_array(DType.FLOAT, shape), np.array(table)
    outer = np.ndindex(*indices.shape[:-1])
    slices = [x[(*i[:batch], *indices[i])] for i in outer]
    rest = shape[batch + indices.shape[-1] :]
    expected = np.array(slices, np.float32).reshape(*indices.shape[:-1], *rest)
    model = node_model("GatherND", [x, indices], batch_dims=batch, constant=constant)
    got = run_model(model, [x] if constant else [x, indices])
    assert_close(got, [expected], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("op", "shape", "indices"),
    [
        ("Gather", (), [0]),
        ("Gather", (2,), [0.5]),
        ("GatherElements", (2, 3), [0, 1]),
        ("GatherElements", (2, 3), [[0, 0, 0, 0]]),
        ("GatherND", (2, 3), [[0, 0, 0]]),
        ("GatherND", (2, 3), 1),
    ],
)
def test_operands_that_do_not_fit_are_refused(
    op: str, shape: tuple[int, ...], indices: list[int]
) -> None:
    x, table = np.zeros(shape, np.float32), np.array(indices)
    with pytest.raises(ModelError, match=op):
        run_model(node_model(op, [x, table], constant=[]), [x, table])


# ---- sequences and selections -------------------------------------------------------------------


@pytest.mark.parametrize("time", [0, 1])
def test_reverse_sequence(time: int) -> None:
    x = random_array(DType.INT16, (4, 3, 2) if time == 0 else (3, 4, 2))
    lengths = np.array([4, 0, 2])
    steps = np.swapaxes(x, 0, 1) if time == 0 else x
    expected = steps.copy()
    for k, n in enumerate(lengths):
        expected[k, :n] = steps[k, :n][::-1]
    expected = np.swapaxes(expected, 0, 1) if time == 0 else expected
    model = node_model("ReverseSequence", [x, lengths], time_axis=time, batch_axis=1 - time)
    assert_close(run_model(model, [x, lengths]), [expected])


def test_reverse_sequence_by_wild_lengths_stays_inside() -> None:
    x = random_array(DType.FLOAT, (2, 4))
    lengths = np.array([2**62, -(2**62)])
    model = node_model("ReverseSequence", [x, lengths], time_axis=1, batch_axis=0)
    assert_close(run_model(model, [x, lengths]), [np.stack([x[0, ::-1], x[1]])])


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_compress_by_a_constant(axis: int | None) -> None:
    x, condition = random_array(DType.FLOAT, (3, 4)), np.array([True, False, True])
    attributes = {} if axis is None else {"axis": axis}
    got = run_model(node_model("Compress", [x, condition], **attributes), [x])
    assert_close(got, [np.compress(condition, x, axis)])


def test_compress_by_nothing_is_empty() -> None:
    x = np.zeros((3, 4), np.float32)
    got = run_model(node_model("Compress", [x, np.zeros(3, np.bool_)], axis=0), [x])
    assert got[0].shape == (0, 4)


@pytest.mark.parametrize(("op", "expected"), [("NonZero", [[0, 1], [1, 0]]), ("Unique", [0, 3, 5])])
def test_shapes_that_depend_on_constants_are_folded(op: str, expected: list[int]) -> None:
    x = np.array([[0, 3], [5, 0]], np.float32)
    model = node_model(op, [x], constant=[0])
    wanted = np.array(expected, np.int64 if op == "NonZero" else np.float32)
    assert_close(run_model(model, []), [wanted])
