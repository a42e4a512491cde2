"""Normalisation in channel blocks: statistics of groups and of pixels against numpy in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from blocked_convs import from_blocks, to_blocks

from atc.backends.cpu.normalize.blocked import NormalizeGroups, NormalizePixels
from atc.backends.kernel import Candidate, workload_of
from atc.backends.targets import get_target
from atc.ir.expr import Expr, Input, call
from atc.ir.graph import DType, Graph, Node, TensorType, row_major, type_of
from atc.ir.ops import Epilogue, NormalizeBlocked
from atc.ir.view import View
from support import Runner, compile_candidates, runnable

F = DType.FLOAT
TARGETS = ["x86-64-sse2", "x86-64-avx2", "x86-64-avx512"]
EPSILON = 1e-3


@dataclass(frozen=True)
class Case:
    """x [2, channels, *size] with statistics of `group` channels; 0: of each pixel's."""

    channels: int
    group: int
    size: tuple[int, ...]
    how: str = "Variance"
    epilogue: str = "affine"
    mean: float = 1.0


CASES = [
    Case(20, 1, (6, 7)),
    Case(64, 2, (5, 5)),
    Case(48, 16, (4, 9), epilogue="residual"),
    Case(80, 10, (3, 3), epilogue="residual"),
    Case(24, 24, (7,), epilogue="libm"),
    Case(40, 8, (2, 3), "MeanSquare"),
    Case(32, 4, (9, 9), mean=300.0),
    Case(40, 0, (6, 7)),
    Case(16, 0, (33,), "MeanSquare"),
    Case(64, 0, (5, 5), epilogue="residual"),
    Case(5, 0, (4, 4), epilogue="row"),
    Case(33, 0, (3, 8), epilogue="libm", mean=300.0),
]


def expected(case: Case, x: np.ndarray) -> np.ndarray:
    """Normalise in float64."""
    wide = x.astype(np.float64)
    if case.group:
        split = wide.reshape(2, case.channels // case.group, -1)
        axis = 2
    else:
        split, axis = wide, 1
    centre = split.mean(axis, keepdims=True) if case.how == "Variance" else 0.0
    square = ((split - centre) ** 2).mean(axis, keepdims=True)
    return ((split - centre) / np.sqrt(square + EPSILON)).reshape(x.shape)


def build(case: Case, block: int) -> tuple[Graph, list[np.ndarray], np.ndarray]:
    """Return a graph of one node, its inputs and what it should give."""
    rng = np.random.default_rng(case.channels)
    x = rng.standard_normal((2, case.channels, *case.size)).astype(np.float32)
    x = np.float32(case.mean) + x * np.arange(1, case.channels + 1, dtype=np.float32).reshape(
        -1, *[1] * len(case.size)
    )
    other = rng.standard_normal((2, case.channels, *case.size)).astype(np.float32)
    scale = rng.standard_normal((1, case.channels, *[1] * len(case.size))).astype(np.float32)
    first, blocked_scale = to_blocks(x, block), to_blocks(scale, block).reshape(-1)
    if case.channels % block:
        first[:, -1, ..., case.channels % block :] = np.nan  # padding holds anything
    shape = first.shape
    rank = len(case.size)
    value: Expr = Input(F, 0)
    y = expected(case, x)
    per_channel = View((0, block, *[0] * rank, 1))
    match case.epilogue:
        case "affine":
            operands, views = {"scale": blocked_scale}, (per_channel,)
            value, y = call("Mul", value, Input(F, 1)), y * scale
        case "residual":
            operands = {"other": to_blocks(other, block)}
            views = (View(row_major(shape)),)
            value, y = call("Add", value, Input(F, 1)), y + other
        case "row":  # one number for each row of pixels
            operands = {"rows": np.arange(case.size[0], dtype=np.float32)}
            views = (View((0, 0, 1, 0, 0)),)
            value = call("Add", value, Input(F, 1))
            y = y + np.arange(case.size[0])[:, None]
        case _:
            operands, views = {}, ()
            value, y = call("Cos", value), np.cos(y)
    op = NormalizeBlocked(
        case.how, case.channels, case.group or case.channels, not case.group, EPSILON,
        Epilogue(value, views),
    )  # fmt: skip
    feeds = {"x": first, **operands}
    types = {name: type_of(a) for name, a in feeds.items()} | {"y": TensorType(F, shape)}
    op.check([types[n] for n in feeds], [types["y"]])
    graph = Graph("g", tuple(feeds), ("y",), (Node(op, tuple(feeds), ("y",)),), types)
    return graph, list(feeds.values()), y


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_against_numpy(target: str) -> None:
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    record = get_target(target)
    jobs, wanted = [], []
    for case in CASES:
        graph, feeds, y = build(case, record.vector_bytes // 4)
        kernel = NormalizeGroups() if case.group else NormalizePixels()
        assert kernel.accepts(workload_of(graph, graph.nodes[0], {}), record)
        jobs.append((graph, Candidate(kernel)))
        wanted.append((case, feeds, y))
    for (case, feeds, y), runner in zip(wanted, compile_candidates(jobs, record), strict=True):
        assert isinstance(runner, Runner), runner
        got = from_blocks(runner(feeds)[0], case.channels)
        tolerance = 2e-5 if case.mean == 1 else 3e-4
        np.testing.assert_allclose(got, y, rtol=tolerance, atol=tolerance, err_msg=str(case))
