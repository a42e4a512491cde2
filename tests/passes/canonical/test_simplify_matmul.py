"""Products become as large and plain as they can, and stay what they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from graph_text import after, plain_lines
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from atc.ir.ops import Map, MatMul
from atc.passes import run_passes
from support import compile_graph, run_model

RNG = np.random.default_rng(11)


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, ...]], **constants: np.ndarray
) -> onnx.ModelProto:
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    known = [
        numpy_helper.from_array(a.astype(np.float32) if a.dtype == np.float64 else a, n)
        for n, a in constants.items()
    ]
    graph = helper.make_graph(nodes, "g", given, [onnx.ValueInfoProto(name="y")], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=f"n_{outputs}", **attributes)


def shared_weights() -> onnx.ModelProto:
    return model(
        [node("MatMul", "x w", "p"), node("Add", "p b", "q"), node("Mul", "q z", "y")],
        {"x": (2, 3, 4, 6), "z": (2, 3, 4, 5)},
        w=RNG.standard_normal((6, 5)), b=RNG.standard_normal(5),
    )  # fmt: skip


def one_row_each() -> onnx.ModelProto:
    """Rows of every second step, with one number added to each row."""
    return model(
        [node("Slice", "x i0 i3 ax st", "s"), node("MatMul", "s w", "p"), node("Add", "p r", "y")],
        {"x": (9, 1, 6), "r": (5, 1, 1)}, w=RNG.standard_normal((6, 7)),
        i0=np.array([0]), i3=np.array([9]), ax=np.array([0]), st=np.array([2]),
    )  # fmt: skip


def columns() -> onnx.ModelProto:
    return model(
        [node("MatMul", "w x", "p"), node("Add", "p b", "y")], {"x": (3, 6, 1)},
        w=RNG.standard_normal((7, 6)), b=RNG.standard_normal((7, 1)),
    )  # fmt: skip


def scaled_slices() -> onnx.ModelProto:
    """Attention as PyTorch exports it: heads and batch are one axis, queries are scaled."""
    cut = {f"at{i}": np.array([i * 8]) for i in range(4)}
    return model(
        [*(node("Slice", f"x at{i} at{i + 1} last", f"s{i}") for i in range(3)),
         node("Div", "s0 scale", "q0"),
         node("Reshape", "q0 shape", "q1"), node("Transpose", "q1", "q", perm=[1, 0, 2]),
         node("Reshape", "s1 shape", "k1"), node("Transpose", "k1", "k", perm=[1, 2, 0]),
         node("Reshape", "s2 shape", "v1"), node("Transpose", "v1", "v", perm=[1, 0, 2]),
         node("MatMul", "q k", "p"), node("MatMul", "p v", "y")],
        {"x": (5, 3, 24)}, **cut, last=np.array([2]), scale=np.array(2.0),
        shape=np.array([5, 6, 4]),
    )  # fmt: skip


def shared_scaled_operand() -> onnx.ModelProto:
    """The scaled value is a result too, so nothing is gained by scaling later."""
    return model(
        [node("Mul", "x c", "s"), node("MatMul", "s w", "p"), node("Softmax", "s", "t"),
         node("ReduceSum", "t", "u", keepdims=0), node("Add", "p u", "y")],
        {"x": (3, 4)}, w=RNG.standard_normal((4, 5)), c=np.array(3.0),
    )  # fmt: skip


EXPECTED: dict[Callable[[], onnx.ModelProto], list[tuple[tuple[int, ...], int, int]]] = {
    shared_weights: [((), 24, 5)],
    one_row_each: [((), 5, 7)],
    columns: [((), 3, 7)],
    scaled_slices: [((3, 2), 5, 5), ((3, 2), 5, 4)],
    shared_scaled_operand: [((), 3, 5)],
}
"""Batch, m and n of the products of each model."""


@pytest.mark.parametrize("sample", EXPECTED, ids=lambda f: f.__name__)
def test_products_are_merged_and_right(sample: Callable[[], onnx.ModelProto]) -> None:
    proto = sample()
    graph = run_passes(compile_graph(proto))
    found = [n.op for n in graph.nodes if isinstance(n.op, MatMul)]
    assert [(op.batch, op.m, op.n) for op in found] == EXPECTED[sample]
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in proto.graph.input]
    inputs = [RNG.standard_normal(s).astype(np.float32) for s in shapes]
    names = [v.name for v in proto.graph.input]
    want: Any
    got: Any
    (want,) = ReferenceEvaluator(proto).run(None, dict(zip(names, inputs, strict=True)))
    (got,) = run_model(proto, inputs)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_scaling_and_slicing_leave_no_map() -> None:
    graph = run_passes(compile_graph(scaled_slices()))
    assert not [n for n in graph.nodes if isinstance(n.op, Map)]


@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_a_rounded_factor_moves_to_the_results(half: str) -> None:
    """As scaled keys do, which attention then reads where they lie."""
    graph = plain_lines(f"""
        graph g(x: f32[2,4], z: f32[4,3])
          s: f32[2,4] = Map(shape=(8), expr=Cast<f32>(Cast<{half}>(Mul(x0, 0.375))), views=(<1>)) x  # s
          y: f32[2,3] = MatMul(batch=(), m=2, n=3, k=4, a_view=<4,1>, b_view=<3,1>, epilogue=x0) s, z  # y
          return y
        """)  # noqa: E501
    assert "epilogue=Mul(x0, 0.375)) x, z" in after("simplify_matmul", graph)
