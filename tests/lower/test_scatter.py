"""Operators that write at computed places against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from atc.errors import ModelError
from atc.ir.graph import Array, DType
from atc.ir.ops.data import Scatter
from support import (
    NUMBERS,
    Batch,
    assert_close,
    compile_graph,
    node_model,
    random_array,
    run_model,
)  # fmt: skip

FUNCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
"""numpy's sums and products of booleans are or and and, as they should be here."""


def combine(reduction: str, old: Array, new: Array) -> Array:
    return new if reduction == "none" else np.asarray(FUNCTIONS[reduction](old, new))


def scattered_elements(x: Array, table: Array, updates: Array, axis: int, reduction: str) -> Array:
    y = x.copy()
    for i in np.ndindex(*table.shape):
        place = (*i[:axis], int(table[i]), *i[axis + 1 :])
        y[place] = combine(reduction, y[place], updates[i])
    return y


def scattered_nd(x: Array, table: Array, updates: Array, reduction: str) -> Array:
    y = x.copy()
    for i in np.ndindex(*table.shape[:-1]):
        place = tuple(int(k) for k in table[i])
        y[place] = combine(reduction, y[place], updates[i])
    return y


REDUCTIONS = ["none", "add", "mul", "max", "min"]
TABLE = np.array([[0, 2, 0], [-1, 1, 0]])
BOX = np.stack(np.meshgrid([0, 2], [1, 2, 3], range(4), indexing="ij"), -1)
"""The indices of x[::2, 1:4], as PyTorch's exporter writes an assignment to a slice."""
TUPLES = np.array([[[2], [0]], [[0], [-3]]])


@pytest.fixture(scope="module")
def of_dtypes() -> Batch:
    models = {}
    for d in NUMBERS:
        x, updates = random_array(d, (3, 3)), random_array(d, (2, 3))
        slices = random_array(d, (2, 2, 3))
        for reduction in REDUCTIONS:
            models[f"elements {reduction} {d.label}"] = node_model(
                "ScatterElements", [x, TABLE, updates], reduction=reduction, axis=0, constant=[]
            )
            models[f"nd {reduction} {d.label}"] = node_model(
                "ScatterND", [x, TUPLES, slices], reduction=reduction, constant=[]
            )
    return Batch(models, chunk=48)


@pytest.mark.few(1)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda d: d.label)
def test_reductions_of_every_type(dtype: DType, reduction: str, of_dtypes: Batch) -> None:
    x, updates = random_array(dtype, (3, 3), 1), random_array(dtype, (2, 3), 2)
    slices = random_array(dtype, (2, 2, 3), 3)
    got = of_dtypes[f"elements {reduction} {dtype.label}"]([x, TABLE, updates])
    assert_close(got, [scattered_elements(x, TABLE, updates, 0, reduction)], rtol=1e-6)
    got = of_dtypes[f"nd {reduction} {dtype.label}"]([x, TUPLES, slices])
    assert_close(got, [scattered_nd(x, TUPLES, slices, reduction)], rtol=1e-6)


@pytest.mark.few(4)
@pytest.mark.parametrize("constant", [[], [1]], ids=["run time", "constant"])
@pytest.mark.parametrize(
    ("shape", "axis", "table"),
    [
        ((4,), 0, [3, -4, 1]),
        ((2, 3, 4), 1, [[[2, 0]], [[-1, 1]]]),
        ((2, 3), -1, [[-1], [0]]),
        ((2, 3), 0, np.zeros((0, 3), int)),
    ],
)
def test_scatter_elements(
    shape: tuple[int, ...], axis: int, table: list[int], constant: list[int]
) -> None:
    x, indices = random_array(DType.FLOAT, shape), np.array(table)
    updates = random_array(DType.FLOAT, indices.shape, 1)
    model = node_model("ScatterElements", [x, indices, updates], axis=axis, constant=constant)
    got = run_model(model, [x, updates] if constant else [x, indices, updates])
    expected = scattered_elements(x, indices, updates, axis % len(shape), "none")
    assert_close(got, [expected], rtol=0, atol=0)


@pytest.mark.few(5)
@pytest.mark.parametrize("constant", [[], [1]], ids=["run time", "constant"])
@pytest.mark.parametrize(
    ("shape", "table"),
    [
        ((4, 2), [[3], [-4]]),
        ((2, 3, 2), [[[1, 2], [0, -3]]]),
        ((2, 3), [[1, 1], [1, 1]]),
        ((4,), [2]),
        ((2, 3), np.zeros((1, 0), int)),
        ((2, 3), np.zeros((0, 1), int)),
        ((3, 5, 4), BOX),
        ((3, 5, 4), BOX[..., :2]),
        ((3, 5, 4), BOX[:, ::-1]),
    ],
)
def test_scatter_nd(shape: tuple[int, ...], table: list[int], constant: list[int]) -> None:
    x, indices = random_array(DType.FLOAT, shape), np.array(table)
    updates = random_array(DType.FLOAT, (*indices.shape[:-1], *shape[indices.shape[-1] :]), 1)
    model = node_model("ScatterND", [x, indices, updates], constant=constant)
    got = run_model(model, [x, updates] if constant else [x, indices, updates])
    assert_close(got, [scattered_nd(x, indices, updates, "none")], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("op", "table", "loops", "run"),
    [
        ("ScatterND", BOX, (2,), 12), ("ScatterND", BOX[:, :, 0, :2], (2,), 12),
        ("ScatterND", BOX[:, ::-1], (2, 3), 4), ("ScatterND", BOX[:, :1, ::3], (2, 2), 1),
        ("ScatterElements", np.ones((3, 1, 4), int), (3,), 4), ("ScatterND", BOX[1, 0], (), 4),
    ],
)  # fmt: skip
def test_known_places_that_are_even_are_runs(
    op: str, table: Array, loops: tuple[int, ...], run: int
) -> None:
    x = np.zeros((3, 5, 4), np.float32)
    shape = table.shape if op == "ScatterElements" else (
        *table.shape[:-1], *x.shape[table.shape[-1] :]
    )  # fmt: skip
    model = node_model(op, [x, table, np.zeros(shape, np.float32)], constant=[1],
                       **{"axis": 1} if op == "ScatterElements" else {})  # fmt: skip
    (node,) = compile_graph(model).nodes
    assert isinstance(node.op, Scatter)
    assert (node.op.shape, node.op.run, node.op.views) == (loops, run, ())


def test_wild_indices_are_clamped() -> None:
    """The runner's fences show that nothing outside is written."""
    x, updates = np.zeros(3, np.float32), np.array([1, 2, 3, 4], np.float32)
    wild = np.array([2**62, -(2**62), 5, -5])
    expected = np.array([4, 0, 3], np.float32)
    for op, indices in (("ScatterElements", wild), ("ScatterND", wild[:, None])):
        model = node_model(op, [x, indices, updates], constant=[])
        assert_close(run_model(model, [x, indices, updates]), [expected])


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter_by_wild_starts_stays_inside(mode: str) -> None:
    x, update = np.zeros((2, 3, 2), np.float32), np.ones((2, 2, 2), np.float32)
    starts = np.array([2**62, -7])
    model = node_model("TensorScatter", [x, update, starts], mode=mode, opset=24, constant=[])
    (got,) = run_model(model, [x, update, starts])
    assert got.sum() <= update.sum()
    assert set(np.unique(got)) <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("op", "table", "updates", "attributes"),
    [
        ("ScatterElements", (1, 2), (1, 3), {}),
        ("ScatterElements", (1, 2), (1, 2), {"reduction": "mean"}),
        ("ScatterElements", (4, 2), (4, 2), {"axis": 1}),
        ("ScatterND", (2, 1), (2, 2), {}),
        ("ScatterND", (2, 3), (2,), {}),
    ],
)
def test_operands_that_do_not_fit_are_refused(
    op: str, table: tuple[int, ...], updates: tuple[int, ...], attributes: dict[str, str]
) -> None:
    inputs = [np.zeros((2, 3), np.float32), np.zeros(table, int), np.zeros(updates, np.float32)]
    with pytest.raises(ModelError, match=op):
        run_model(node_model(op, inputs, constant=[], **attributes), inputs)
