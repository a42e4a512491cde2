"""Products with gathered matrices read these where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper

from atc.ir.ops.data import Gather
from atc.ir.ops.grouped import GroupedMatMul
from atc.passes import run_passes
from support import compile_graph, run_model


@dataclass(frozen=True)
class Case:
    """x of a shape times, or behind, matrices that an index of a shape chooses."""

    x: tuple[int, ...]
    index: tuple[int, ...]
    weights: tuple[int, ...]
    behind: bool = False
    """Whether the matrices are on the left."""
    transposed: bool = False
    """Whether they are transposed first."""
    axis: int = 0
    grouped: bool = True


CASES = {
    "rows": Case((6, 1, 8), (6,), (4, 8, 10)),
    "few rows": Case((2, 1, 8), (2,), (4, 8, 10)),
    "a row for several": Case((1, 1, 8), (2,), (4, 8, 10)),
    "pairs": Case((3, 1, 1, 8), (3, 2), (4, 8, 10)),
    "blocks of rows": Case((3, 5, 8), (3,), (4, 8, 10)),
    "columns": Case((6, 8, 1), (6,), (4, 10, 8), behind=True),
    "transposed": Case((6, 1, 8), (6,), (4, 10, 8), transposed=True),
    "several columns": Case((6, 8, 3), (6,), (4, 10, 8), behind=True, grouped=False),
    "parts of matrices": Case((2, 1, 3), (3,), (2, 8, 10), axis=1, grouped=False),
}


def model(case: Case) -> onnx.ModelProto:
    weights = np.random.default_rng(0).standard_normal(case.weights).astype(np.float32)
    nodes = [helper.make_node("Gather", ["w", "index"], ["matrices"], axis=case.axis)]
    name = "matrices"
    if case.transposed:
        rank = len(case.index) + 2
        perm = [*range(rank - 2), rank - 1, rank - 2]
        nodes.append(helper.make_node("Transpose", [name], ["turned"], perm=perm))
        name = "turned"
    sides = [name, "x"] if case.behind else ["x", name]
    nodes.append(helper.make_node("MatMul", sides, ["y"]))
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, case.x),
        helper.make_tensor_value_info("index", TensorProto.INT64, case.index),
    ]
    out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", infos, out, [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def feeds(case: Case) -> Sequence[np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal(case.x).astype(np.float32)
    return x, rng.integers(-case.weights[case.axis], case.weights[case.axis], case.index)


@pytest.mark.parametrize("name", CASES)
def test_matrices_are_read_where_they_lie(name: str) -> None:
    case = CASES[name]
    graph = run_passes(compile_graph(model(case)))
    kinds = [type(n.op) for n in graph.nodes]
    assert (GroupedMatMul in kinds) == case.grouped
    largest = max(graph.types[o].size for n in graph.nodes for o in n.outputs)
    size = int(np.prod(case.index)) * case.weights[1] * case.weights[2]
    assert largest < size or not case.grouped or Gather not in kinds


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_gathered_matrices(name: str) -> None:
    case = CASES[name]
    given = feeds(case)
    (got,) = run_model(model(case), given)
    session = onnx.reference.ReferenceEvaluator(model(case))
    (want,) = session.run(None, dict(zip(("x", "index"), given, strict=True)))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_products_with_the_same_index_are_sorted_once() -> None:
    again = [helper.make_node("Gather", ["w", "index"], ["other"]),
             helper.make_node("MatMul", ["y", "other"], ["u"])]  # fmt: skip
    single = model(Case((6, 1, 8), (6,), (4, 8, 8)))
    single.graph.node.extend(again)
    single.graph.output[0].name = "u"
    graph = run_passes(compile_graph(single))
    kinds = [n.op.kind for n in graph.nodes]
    assert kinds.count("GroupedMatMul") == 2
    assert kinds.count("TopK") == 2
