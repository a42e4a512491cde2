"""Maps in vectors, and the vector expressions they are made of, against numpy in float64."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, prod
from typing import Any

import numpy as np
import pytest
from kernel_program import VECTOR_TARGETS, run_calls, vector_target
from kernel_program import Call as Run

from atc.backends.cpu.map.vectors import MapVectors
from atc.backends.kernel import Candidate, Workload, workload_of
from atc.backends.render.activations import NEAR, after_rounding
from atc.backends.render.vector_expr import (
    FUNCTIONS,
    render_vector,
    stored,
    vectorisable,
)
from atc.backends.targets import get_target
from atc.ir.expr import Call, Const, Expr, Input, call, cast, const, operands_of
from atc.ir.graph import DType, Graph, Node, TensorType
from atc.ir.ops import Map
from atc.ir.view import View, broadcast, dense, gather_view
from support import Runner, compile_candidates, runnable

F = DType.FLOAT
TARGETS = ["x86-64-avx2", "x86-64-avx512"]
X, Y, Z = Input(F, 0), Input(F, 1), Input(F, 2)

with np.errstate(all="ignore"):
    NUMPY: dict[str, Callable[..., Any]] = {
        "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide,
        "Max": np.maximum, "Min": np.minimum, "Abs": np.abs, "Neg": np.negative,
        "Floor": np.floor, "Ceil": np.ceil, "Round": np.rint, "Trunc": np.trunc, "Sqrt": np.sqrt,
        "Exp": np.exp, "Expm1": np.expm1, "Log": np.log, "Log1p": np.log1p, "Sin": np.sin,
        "Cos": np.cos, "Tanh": np.tanh, "Erf": np.vectorize(erf, otypes=[float]),
        "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Softplus": lambda x: np.logaddexp(0, x),
        "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
        "GreaterOrEqual": np.greater_equal, "IsNaN": np.isnan, "Where": np.where,
        "Reciprocal": lambda x: 1 / x, "Sign": np.sign, "IsInf": np.isinf, "Pow": np.power,
        "And": np.logical_and, "Or": np.logical_or, "Not": np.logical_not,
    }  # fmt: skip


def evaluate(e: Expr, operands: list[np.ndarray]) -> np.ndarray:
    """Compute an expression in float64."""
    match e:
        case Input():
            return operands[e.index]
        case Const():
            return np.asarray(e.value)
        case Call(fn="Cast"):
            value = evaluate(e.args[0], operands)
            return value != 0 if e.dtype is DType.BOOL else value.astype(float)
        case Call():
            return NUMPY[e.fn](*(evaluate(a, operands) for a in e.args))
    raise AssertionError(e)


def gelu(x: Expr) -> Expr:
    inner = call("Erf", call("Div", x, const(2**0.5, F)))
    return call("Mul", call("Mul", x, call("Add", inner, const(1, F))), const(0.5, F))


def as_float(mask: Expr) -> Expr:
    return cast(mask, F)


UNARY = ["Abs", "Neg", "Floor", "Ceil", "Round", "Trunc", "Sqrt", "Exp", "Expm1", "Log", "Log1p",
         "Sin", "Cos", "Tanh", "Erf", "Sigmoid", "Softplus", "Reciprocal", "Sign"]  # fmt: skip
EXPRESSIONS: dict[str, Expr] = {
    **{fn: call(fn, X) for fn in UNARY},
    **{fn: call(fn, X, Y) for fn in ("Add", "Sub", "Mul", "Div", "Max", "Min")},
    **{fn: as_float(call(fn, X, Y))
       for fn in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")},
    "IsNaN": as_float(call("IsNaN", X)),
    "IsInf": as_float(call("IsInf", call("Div", X, Y))),
    "Where": call("Where", call("Less", X, Y), call("Exp", X), Y),
    "masks": as_float(call("And", call("Not", call("Less", X, Y)),
                           call("Or", cast(X, DType.BOOL), call("Greater", Y, X)))),
    "Pow": call("Pow", X, const(2, F)),
    "Relu": call("Max", X, const(0, F)),
    "Clip": call("Min", call("Max", X, const(-1, F)), const(6, F)),
    "bound first": call("Max", const(0.5, F), X),
    "SiLU": call("Mul", X, call("Sigmoid", X)),
    "Mish": call("Mul", call("Tanh", call("Softplus", X)), X),
    "Gelu": gelu(X),
    "Gelu, other order": call("Mul", call("Mul", const(0.5, F), X), call(
        "Add", const(1, F), call("Erf", call("Mul", const(0.5**0.5, F), X)))),
    "Gelu of a sum": gelu(call("Add", X, Y)),
    "shared": call("Mul", call("Add", call("Exp", X), Y), call("Sub", call("Exp", X), Y)),
    "three": call("Add", call("Mul", X, Y), Z),
}  # fmt: skip


def sample(rng: np.random.Generator, size: int) -> np.ndarray:
    """Two thirds positive, the others small enough for log1p."""
    return (rng.uniform(0.1, 4, size) * rng.choice([1, 1, -0.2], size)).astype(np.float32)


def run(cases: list[tuple[Map, int]], target: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Run Maps of one-dimensional operands that are as long as their views reach."""
    record = get_target(target)
    graphs, feeds = [], []
    for seed, (op, count) in enumerate(cases):
        rng = np.random.default_rng(seed)
        sizes = [v.bounds(op.shape)[1] + 1 for v in op.views]
        names = tuple(f"x{k}" for k in range(count))
        types = {n: TensorType(F, (s,)) for n, s in zip(names, sizes, strict=True)}
        types["y"] = TensorType(F, op.shape)
        node = Node(op, names, ("y",))
        graph = Graph("g", names, ("y",), (node,), types)
        assert MapVectors().accepts(workload_of(graph, node, {}), record)
        graphs.append((graph, Candidate(MapVectors())))
        feeds.append([sample(rng, s) for s in sizes])
    results = []
    for (op, _), feed, runner in zip(cases, feeds, compile_candidates(graphs, record), strict=True):
        assert isinstance(runner, Runner), runner
        (got,) = runner(feed)
        operands = [gather_view(x, op.shape, v).astype(np.float64)
                    for x, v in zip(feed, op.views, strict=True)]  # fmt: skip
        with np.errstate(all="ignore"):
            results.append((got, evaluate(op.expr, operands)))
    return results


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_function_is_as_numpy_has_it(target: str) -> None:
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    assert {e.fn for e in EXPRESSIONS.values() if isinstance(e, Call)} - {"Cast"} <= set(NUMPY)
    assert set(FUNCTIONS) - set(NEAR.values()) <= set(EXPRESSIONS)  # those are for rounding
    views = (dense((3, 37)), broadcast((37,), (3, 37)), broadcast((3, 1), (3, 37)))
    cases = []
    for e in EXPRESSIONS.values():
        used = 1 + max(operand.index for operand in operands_of(e))
        cases.append((Map((3, 37), e, views[:used]), used))
    for name, (got, expected) in zip(EXPRESSIONS, run(cases, target), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-6, err_msg=name)


SHAPES = [(1,), (8,), (15,), (16,), (17,), (64,), (100,), (3, 16), (2, 5, 9), (4, 1, 33),
          (2, 3, 4, 31)]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_every_extent_and_view(target: str) -> None:
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    width = get_target(target).vector_bytes // 4
    cases = []
    for shape in SHAPES:
        if 2 * shape[-1] < width:
            continue
        rows = View((*dense(shape[:-1]).strides, 0), 2)  # constant along the last loop
        shifted = View((*(s * 2 for s in dense(shape).strides[:-1]), 1), 5)
        flipped = View((*(-s for s in dense(shape).strides[:-1]), 1), prod(shape) - shape[-1])
        e = call("Add", call("Mul", X, Y), call("Sub", Z, Input(F, 3)))
        cases.append((Map(shape, e, (dense(shape), rows, shifted, flipped)), 4))
    for (op, _), (got, expected) in zip(cases, run(cases, target), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6, err_msg=str(op.shape))


def test_what_vectors_cannot_do_is_refused() -> None:
    target = get_target("x86-64-avx2")
    strided = Map((32,), X, (View((2,)),))
    narrow = Map((32, 2), X, (dense((32, 2)),))
    libm = Map((32,), call("Tan", X), (dense((32,)),))
    coordinate = Map((32,), cast(Input(DType.INT64, 0), F), (), (dense((32,)),))
    for op in (strided, narrow, libm, coordinate):
        types = {"x": TensorType(F, (64,)), "y": TensorType(F, op.shape)}
        names = () if op is coordinate else ("x",)
        node = Node(op, names, ("y",))
        graph = Graph("g", names, ("y",), (node,), types)
        assert not MapVectors().accepts(workload_of(graph, node, {}), target), op
        assert not MapVectors().accepts(workload_of(graph, node, {}), get_target("c99"))


def test_activations_become_one_function() -> None:
    for name, function in (("SiLU", "v_silu"), ("Mish", "v_mish"), ("Gelu", "v_gelu"),
                           ("Gelu, other order", "v_gelu")):  # fmt: skip
        assert render_vector(EXPRESSIONS[name], lambda k: f"x{k}") == ([], f"{function}(x0)")


def test_an_activation_is_as_exact_as_its_rounding_needs() -> None:
    """That to float16, when stored or there and back: bfloat16 holds smaller numbers."""
    silu = cast(EXPRESSIONS["SiLU"], DType.FLOAT16)
    assert render_vector(cast(silu, F), lambda k: f"x{k}")[1] == "v_round_f16(v_silu_near(x0))"
    gelu, found = EXPRESSIONS["Gelu"], []
    for half in (DType.FLOAT16, DType.BFLOAT16):
        narrow = cast(gelu, half)
        for expr in (stored(narrow), cast(narrow, F)):
            assert expr is not None
            assert vectorisable(expr)
            found += render_vector(expr, lambda k: f"x{k}")[1:]
    assert found == [
        "v_gelu_near(x0)", "v_round_f16(v_gelu_near(x0))", "v_gelu(x0)", "v_round_bf16(v_gelu(x0))",
    ]  # fmt: skip


def test_what_follows_rounded_products_is_as_exact_as_they() -> None:
    gelu, exact = EXPRESSIONS["Gelu"], call("Add", X, call("Sigmoid", X))
    _, value = render_vector(after_rounding(call("Add", gelu, X)), lambda k: f"x{k}")
    assert value == "v_add(v_gelu_near(x0), x0)"
    assert after_rounding(exact) is exact


def test_a_scaled_gate_is_no_gelu() -> None:
    gate = call("Add", call("Erf", call("Mul", X, const(0.8, F))), const(1, F))
    _, value = render_vector(call("Mul", call("Mul", X, gate), const(0.5, F)), lambda k: f"x{k}")
    assert "v_erf" in value
    assert vectorisable(gate)


@pytest.mark.parametrize("columns", [88, 91])
def test_long_rows_are_converted_whole_under_neon(columns: int) -> None:
    target = vector_target("aarch64-neon")
    x = np.random.default_rng(1).standard_normal((3, columns)).astype(np.float16)
    shape = (3, columns)
    half, wide = TensorType(DType.FLOAT16, shape), TensorType(F, shape)
    op = Map(shape, cast(Input(DType.FLOAT16, 0), F), (dense(shape),))
    w = Workload(op, (half,), (wide,), (False,))
    assert MapVectors().accepts(w, target)
    (call_,) = (Run(MapVectors(), p, w, [x]) for p in MapVectors().parameters(w, target))
    ((got,),) = run_calls([call_], target)
    np.testing.assert_array_equal(got, x.astype(np.float32))


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", [DType.UINT16, DType.INT16])
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_integers_of_16_bits_are_read_and_stored(target: str, dtype: DType) -> None:
    """All of them there and back; ones that saturate; and NaN, which becomes 0."""
    record, limits = vector_target(target), np.iinfo(dtype.numpy)
    every = np.arange(limits.min, limits.max + 1).astype(dtype.numpy)
    wide = np.r_[np.arange(-70000, 70000, 8.5, np.float32), np.nan, np.inf, -np.inf]
    read = cast(Input(dtype, 0), F)
    calls = []
    for x, kind, value in (
        (every, dtype, call("Add", call("Sub", read, const(5, F)), const(5, F))),
        (every[: len(every) - 3], dtype, call("Mul", read, const(3, F))),
        (wide.astype(np.float32), F, X),
    ):
        narrowed = Call(dtype, "CastSaturate", (call("Round", value),))
        op = Map((len(x),), narrowed, (dense((len(x),)),))
        w = Workload(op, (TensorType(kind, x.shape),), (TensorType(dtype, x.shape),), (False,))
        assert MapVectors().accepts(w, record)
        (params,) = MapVectors().parameters(w, record)
        calls.append(Run(MapVectors(), params, w, [x]))
    (same,), (tripled,), (held,) = run_calls(calls, record)
    np.testing.assert_array_equal(same, every)
    more = np.clip(every[: len(every) - 3].astype(np.int64) * 3, limits.min, limits.max)
    np.testing.assert_array_equal(tripled, more)
    rounded = np.clip(np.rint(np.nan_to_num(wide, nan=0.0)), limits.min, limits.max)
    np.testing.assert_array_equal(held, rounded)
