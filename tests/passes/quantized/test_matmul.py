"""Products of dequantized matrices against exact integer sums, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from atc.ir.graph import DType
from atc.ir.ops import MatMul
from atc.passes import run_passes
from support import compile_graph, run_models, runnable

Array = NDArray[Any]
F32 = np.float32


@dataclass(frozen=True)
class Case:
    """A product of a [m, k] or [batch, m, k] with b: `known` whether b is a constant, `per` whether
    it has a scale per column, `op` and `bias` what node it is and what is added."""

    a: Any = np.uint8
    b: Any = np.int8
    zeros: tuple[int, int] = (0, 0)
    known: bool = True
    per: bool = False
    op: str = "MatMul"
    bias: str = ""
    batch: tuple[int, ...] = ()
    a_scale: float = 0.5
    m: int = 5
    n: int = 21
    k: int = 38


CASES = {
    "plain": Case(m=24, n=40),
    "per column": Case(zeros=(7, 0), per=True),
    "signed": Case(a=np.int8, zeros=(-128, 0), batch=(2,)),
    "unsigned weights": Case(b=np.uint8, zeros=(3, 120)),
    "asymmetric columns": Case(b=np.int8, zeros=(3, 30), per=True),
    "both computed": Case(a=np.int8, b=np.uint8, zeros=(9, 200), known=False, batch=(2, 3)),
    "gemm": Case(op="Gemm", zeros=(130, 0), bias="integer", per=True),
    "gemm, one scale": Case(op="Gemm", bias="integer"),
    "gemm, float bias": Case(op="Gemm", a=np.int8, zeros=(1, 0), bias="float"),
    "nibbles": Case(b="int4", per=True, zeros=(66, 0)),
    "unsigned nibbles": Case(b="uint4", zeros=(66, 9)),
}
NIBBLES = {"int4": (-8, 8, onnx.TensorProto.INT4), "uint4": (0, 16, onnx.TensorProto.UINT4)}


def parts(case: Case) -> dict[str, Array]:
    """Return the operands, scales and zero points; results saturate and lie between two others."""
    rng = np.random.default_rng(len(repr(case)))
    if case.b in NIBBLES:
        low, high, _ = NIBBLES[case.b]
        b = rng.integers(low, high, (case.k, case.n)).astype(np.int8)
    else:
        info = np.iinfo(case.b)
        shape = (*(() if case.known else case.batch), case.k, case.n)
        b = rng.integers(info.min, info.max + 1, shape).astype(case.b)
    info = np.iinfo(case.a)
    a = rng.integers(info.min, info.max + 1, (*case.batch, case.m, case.k)).astype(case.a)
    count = (case.n,) if case.per else ()
    scale = rng.uniform(0.5, 1.5, count) if case.per else np.array(1.0)
    spread = 4.0 if case.b in NIBBLES else 74.0
    y_scale = F32(2.0 ** np.round(np.log2(case.k**0.5 * 74 * spread * case.a_scale / 90)))
    return {
        "a": a, "b": b, "b_scale": scale.astype(F32), "y_scale": y_scale,
        "bias": rng.integers(-3000, 3000, case.n).astype(np.int32), "a_scale": F32(case.a_scale),
    }  # fmt: skip


def model(case: Case) -> onnx.ModelProto:
    p = parts(case)
    code = helper.np_dtype_to_tensor_dtype
    b_zero = np.full(p["b_scale"].shape, case.zeros[1])
    constants = {
        "as": p["a_scale"], "az": np.array(case.zeros[0], case.a), "bs": p["b_scale"],
        "ys": p["y_scale"], "yz": np.array(100, np.uint8), "c": p["bias"],
        "cs": (p["a_scale"] * p["b_scale"]).astype(F32),
    }  # fmt: skip
    if case.b in NIBBLES:
        kind = NIBBLES[case.b][2]
        packed = [helper.make_tensor(name, kind, v.shape, v.reshape(-1).tolist())
                  for name, v in (("bz", b_zero), ("b", p["b"]))]  # fmt: skip
    else:
        packed = [numpy_helper.from_array(b_zero.astype(case.b), "bz")]
        packed += [numpy_helper.from_array(p["b"], "b")] * case.known
    inputs = [helper.make_tensor_value_info("a", code(np.dtype(case.a)), p["a"].shape)]
    if not case.known:
        inputs.append(helper.make_tensor_value_info("b", code(np.dtype(case.b)), p["b"].shape))
    operands = ["af", "bf", *(["cf"] if case.bias else [])]
    nodes = [
        helper.make_node("DequantizeLinear", ["a", "as", "az"], ["af"]),
        helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["bf"], axis=1),
        helper.make_node(case.op, operands, ["p"]),
        helper.make_node("QuantizeLinear", ["p", "ys", "yz"], ["y"]),
    ]
    if case.bias == "integer":
        nodes.insert(0, helper.make_node("DequantizeLinear", ["c", "cs"], ["cf"], axis=0))
    elif case.bias:
        constants["cf"] = p["bias"].astype(F32)
    graph = helper.make_graph(
        nodes, "quantized", inputs, [helper.make_tensor_value_info("y", 2, None)],
        [*(numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()), *packed],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True)


def expected(case: Case) -> Array:
    """The definition: exact sums, each float operation rounded once, half to even, saturated."""
    p = parts(case)
    total = (p["a"].astype(np.int64) - case.zeros[0]) @ (p["b"].astype(np.int64) - case.zeros[1])
    factor = p["a_scale"].astype(np.float64) * p["b_scale"].astype(np.float64)
    over = (factor.astype(F32).astype(np.float64) / p["y_scale"]).astype(F32)
    shift = F32(0)
    if case.bias == "integer":
        total = total + p["bias"]
    elif case.bias:
        shift = (p["bias"].astype(np.float64) / p["y_scale"]).astype(F32)
    value = total.astype(F32) * over + shift
    return np.clip(np.rint(value) + F32(100), 0, 255).astype(np.uint8)


def feeds(case: Case) -> list[Array]:
    p = parts(case)
    return [p["a"], *([] if case.known else [p["b"]])]


@pytest.mark.parametrize(
    "target",
    ["x86-64-avx512-vnni",
     *(pytest.param(t, marks=pytest.mark.slow)
       for t in ("c99", "x86-64-sse2", "x86-64-avx2", "x86-64-avx2-vnni", "x86-64-avx512"))],
)  # fmt: skip
def test_sums_are_exact_and_results_rounded_once(target: str) -> None:
    if target != "c99" and not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    models = [model(case) for case in CASES.values()]
    results = run_models(models, [feeds(case) for case in CASES.values()], target)
    for (name, case), (got,) in zip(CASES.items(), results, strict=True):
        np.testing.assert_array_equal(got, expected(case), err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_every_product_sums_integers(name: str) -> None:
    graph = run_passes(compile_graph(model(CASES[name])))
    ops = [n.op for n in graph.nodes if isinstance(n.op, MatMul)]
    assert [op.accumulator for op in ops] == [DType.INT32]
    assert graph.types[graph.nodes[-1].outputs[0]].dtype is DType.UINT8


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.b not in NIBBLES])
def test_results_are_within_one_step_of_onnxruntime(name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    case = CASES[name]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model(case).SerializeToString(), options)
    given = dict(zip(("a", "b"), feeds(case), strict=False))
    (want,) = session.run(None, given)
    assert np.abs(want.astype(int) - expected(case).astype(int)).max() <= 1


def test_there_are_ties_and_saturated_results() -> None:
    case = CASES["plain"]
    p = parts(case)
    value = (p["a"].astype(int) @ p["b"].astype(int)) * np.float64(p["a_scale"]) / p["y_scale"]
    assert (np.abs(value - np.floor(value) - 0.5) == 0).any()
    assert (expected(case) == 0).any()
    assert (expected(case) == 255).any()


def test_sums_that_int32_may_not_hold_stay_in_float() -> None:
    case = Case(k=70000, n=1, m=1)
    graph = run_passes(compile_graph(model(case)))
    (op,) = [n.op for n in graph.nodes if isinstance(n.op, MatMul)]
    total = int(np.abs(parts(case)["b"].astype(int)).sum()) * 255
    assert (op.accumulator is DType.FLOAT) == (total > 2**31 - 1)
    assert total > 2**30
