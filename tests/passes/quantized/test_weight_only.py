"""Products with weights that only themselves are quantized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from atc.ir.ops import MatMul
from atc.ir.ops.quantize import MatMulPacked
from atc.passes import run_passes
from support import compile_graph, run_models

Array = NDArray[Any]
LOW = {TensorProto.INT4: -8, TensorProto.UINT4: 0, TensorProto.INT8: -128, TensorProto.UINT8: 0}
HIGH = {TensorProto.INT4: 7, TensorProto.UINT4: 15, TensorProto.INT8: 127, TensorProto.UINT8: 255}


@dataclass(frozen=True)
class Case:
    """x [*batch, m, k] times weights of a type: scales per column, or blocks of the depth."""

    kind: int
    block: int = 0
    zeros: bool = False
    m: int = 3
    n: int = 18
    k: int = 72
    batch: tuple[int, ...] = ()
    transposed: bool = False


CASES = {
    "nibbles per column": Case(TensorProto.INT4),
    "nibbles in blocks": Case(TensorProto.INT4, 32, batch=(2,)),
    "unsigned nibbles in blocks": Case(TensorProto.UINT4, 16, zeros=True, m=40),
    "transposed nibbles": Case(TensorProto.UINT4, 32, zeros=True, k=64, transposed=True),
    "bytes for one row": Case(TensorProto.INT8, m=1),
    "unsigned bytes": Case(TensorProto.UINT8, zeros=True),
}


def parts(case: Case) -> tuple[Array, Array, Array, Array]:
    """Return x, the integers, scales and zero points, both spread over the weights."""
    rng = np.random.default_rng(case.kind)
    low, high = LOW[case.kind], HIGH[case.kind]
    x = rng.standard_normal((*case.batch, case.m, case.k)).astype(np.float32)
    q = rng.integers(low, high + 1, (case.k, case.n))
    rows = -(-case.k // case.block) if case.block else 1
    scales = rng.uniform(0.5, 2, (rows, case.n)).astype(np.float32)
    zeros = rng.integers(low, high + 1, scales.shape) if case.zeros else scales.astype(int) * 0
    return x, q, scales, zeros


def model(case: Case) -> onnx.ModelProto:
    x, q, scales, zeros = parts(case)
    if case.transposed:
        q, scales, zeros = q.T, scales.T, zeros.T
    given = scales if case.block else scales.reshape(-1)
    axis = int(case.transposed) if case.block else 1
    ints = [helper.make_tensor("w", case.kind, q.shape, q.reshape(-1).tolist())]
    if case.zeros:
        flat = zeros.reshape(-1).tolist()
        ints.append(helper.make_tensor("z", case.kind, given.shape, flat))
    inputs = ["w", "s", *(["z"] if case.zeros else [])]
    nodes = [
        helper.make_node("DequantizeLinear", inputs, ["d"], axis=axis, block_size=case.block),
        *([helper.make_node("Transpose", ["d"], ["t"])] if case.transposed else []),
        helper.make_node("MatMul", ["x", "t" if case.transposed else "d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, x.shape)],
        [helper.make_tensor_value_info("y", 1, None)], [numpy_helper.from_array(given, "s"), *ints],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True)


def expected(case: Case) -> Array:
    x, q, scales, zeros = parts(case)
    repeats = case.block or case.k
    whole, zero = (np.repeat(v, repeats, 0)[: case.k] for v in (scales, zeros))
    return x.astype(np.float64) @ ((q - zero) * whole.astype(np.float64))


def test_results_are_those_of_the_weights() -> None:
    models = [model(c) for c in CASES.values()]
    results = run_models(models, [[parts(c)[0]] for c in CASES.values()])
    for (name, case), (got,) in zip(CASES.items(), results, strict=True):
        want = expected(case)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * np.abs(want).max(), err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_weights_stay_packed(name: str) -> None:
    graph = run_passes(compile_graph(model(CASES[name])))
    (op,) = [n.op for n in graph.nodes if isinstance(n.op, MatMul | MatMulPacked)]
    assert isinstance(op, MatMulPacked)
    assert op.bits == (8 if "byte" in name else 4)
    assert (op.block == CASES[name].block) or not CASES[name].block


def test_many_rows_meet_weights_of_bytes_as_floats() -> None:
    graph = run_passes(compile_graph(model(Case(TensorProto.INT8, m=100))))
    assert [n.op.kind for n in graph.nodes] == ["MatMul"]
