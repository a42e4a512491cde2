"""Conversions of the types of 8 bits and fewer: every code, every tie, against ml_dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.numpy_helper import saturate_cast, to_float8e8m0
from onnx.reference import ReferenceEvaluator

from atc.errors import AtcError
from atc.ir.graph import Array, DType
from support import Runner, compile_graph, compile_models

SMALL = [d for d in DType if d.is_small]
E8M0 = DType.FLOAT8E8M0
FLOATS = [d for d in SMALL if d.is_float and d is not E8M0]
LARGE = [DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16, DType.INT8, DType.INT64,
         DType.UINT8, DType.BOOL]  # fmt: skip


@dataclass(frozen=True)
class Conversion:
    """A Cast, its attributes and its name."""

    source: DType
    target: DType
    attributes: tuple[tuple[str, int | str], ...] = ()

    def __str__(self) -> str:
        attributes = "".join(f" {k}={v}" for k, v in self.attributes)
        return f"{self.source.label} to {self.target.label}{attributes}"


def conversions() -> Iterator[Conversion]:
    for source in (*SMALL, *LARGE):
        for target in (*SMALL, *LARGE):
            if source is target or not (source.is_small or target.is_small):
                continue
            yield Conversion(source, target)
            if target in FLOATS:
                yield Conversion(source, target, (("saturate", 0),))
            if target is E8M0:
                for mode in ("down", "nearest"):
                    yield Conversion(source, target, (("round_mode", mode),))
                    yield Conversion(source, target, (("round_mode", mode), ("saturate", 0)))


ALL = {str(c): c for c in conversions()}


def all_codes(dtype: DType) -> Array:
    """Return every number that a type of 8 and fewer bits has."""
    return np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)


@cache
def numbers(dtype: DType) -> Array:
    """Return the numbers to convert: of a large type those that rounding can get wrong."""
    if dtype.is_small:
        return all_codes(dtype)
    if not dtype.is_float:
        return np.arange(-128, 256).astype(dtype.numpy)
    grid = [np.unique(all_codes(d).astype(np.float32)) for d in SMALL]
    exact = np.concatenate([g[np.isfinite(g)] for g in grid])
    ties = np.concatenate([(g[1:] / 2 + g[:-1] / 2) for g in (h[np.isfinite(h)] for h in grid)])
    past = np.array([464, 480, 248, 61440, 65536, 2**127 * 1.5, 3e38, 1e-45, 2**-126], np.float32)
    values = np.concatenate([exact, ties, past, -past])
    near = [np.nextafter(values, np.float32(way)) for way in (-np.inf, np.inf)]
    special = np.array([np.inf, -np.inf, np.nan, -0.0], np.float32)
    with np.errstate(over="ignore", under="ignore"):
        return np.concatenate([values, *near, special]).astype(dtype.numpy)


def expected(conversion: Conversion, x: Array) -> Array:
    """Return what the standard's reference makes of numbers."""
    target, attributes = conversion.target, dict(conversion.attributes)
    saturate = bool(attributes.get("saturate", 1))
    if target is E8M0:
        mode = str(attributes.get("round_mode", "up"))
        return to_float8e8m0(x.astype(np.float32), saturate, mode)
    if target in FLOATS and saturate:
        return saturate_cast(x.astype(np.float32), target.numpy)
    if target.is_small and not target.is_float:  # by way of integers, whose low bits are kept
        return x.astype(np.float32).astype(np.int32).astype(np.int8).astype(target.numpy)
    return x.astype(conversion.source.computed.numpy).astype(target.numpy)


def defined(conversion: Conversion, x: Array) -> Array:
    """Return where the result is defined: integers that hold the number."""
    target = conversion.target
    if target.is_float or target is DType.BOOL or not conversion.source.is_float:
        return np.ones(x.shape, bool)
    info = ml_dtypes.iinfo(target.numpy)
    with np.errstate(invalid="ignore"):
        whole = np.trunc(x.astype(np.float64))
    return (whole >= float(info.min)) & (whole <= min(float(info.max), 2.0**31))


def cast_model(made: Mapping[str, Conversion]) -> onnx.ModelProto:
    """Return a model of Casts: from one input of each type to one output per conversion."""
    sources = dict.fromkeys(c.source for c in made.values())
    inputs = [helper.make_tensor_value_info(s.label, s.code, numbers(s).shape) for s in sources]
    nodes, outputs = [], []
    for name, c in made.items():
        attributes = dict(c.attributes)
        nodes.append(
            helper.make_node("Cast", [c.source.label], [name], to=c.target.code, **attributes)
        )
        shape = numbers(c.source).shape
        outputs.append(helper.make_tensor_value_info(name, c.target.code, shape))
    graph = helper.make_graph(nodes, "casts", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])


@cache
def results() -> dict[str, Array]:
    (runner,) = compile_models([cast_model(ALL)])
    assert isinstance(runner, Runner), runner
    sources = dict.fromkeys(c.source for c in ALL.values())
    return dict(zip(ALL, runner([numbers(s) for s in sources]), strict=True))


@pytest.mark.few(3)
@pytest.mark.parametrize("target", [*SMALL, *LARGE], ids=lambda d: d.label)
def test_every_conversion_is_the_standards(target: DType) -> None:
    for name, conversion in ALL.items():
        if conversion.target is not target:
            continue
        x, got = numbers(conversion.source), _wide(results()[name])
        with np.errstate(all="ignore"):
            wanted = _wide(expected(conversion, x))
        none = np.isnan(wanted) | (np.isnan(_wide(x)) & (target is DType.FLOAT4E2M1))
        same = (got == wanted) & ((np.signbit(got) == np.signbit(wanted)) | none)
        right = same | (np.isnan(got) & np.isnan(wanted)) | ~defined(conversion, x)
        wrong = [(x[i], got[i], wanted[i]) for i in np.flatnonzero(~right)[:5]]
        assert not wrong, f"{name}: {wrong}"


def _wide(x: Array) -> Array:
    with np.errstate(all="ignore"):
        return x.astype(np.float64)


# ---- movement, bits and what isn't covered ------------------------------------------------------


def one_type_model(nodes: list[onnx.NodeProto], shape: tuple[int, ...], dtype: DType, out: DType,
                   result: tuple[int, ...]) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(
        nodes, "moves", [helper.make_tensor_value_info("x", dtype.code, shape)],
        [helper.make_tensor_value_info("y", out.code, result)],
        [helper.make_tensor("order", 7, [4], [3, 0, 2, 1]),
         helper.make_tensor("shape", 7, [2], [4, -1])],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)])


MOVES = [
    helper.make_node("Reshape", ["x", "shape"], ["a"]),
    helper.make_node("Gather", ["a", "order"], ["b"]),
    helper.make_node("Concat", ["a", "b"], ["c"], axis=0),
    helper.make_node("Transpose", ["c"], ["y"]),
]


def test_moving_keeps_every_bit() -> None:
    types = [*SMALL, DType.FLOAT16, DType.BFLOAT16]
    codes = [all_codes(d) if d.is_small else np.arange(1 << 16, dtype=np.uint16).view(d.numpy)
             for d in types]  # fmt: skip
    models = [one_type_model(MOVES, x.shape, d, d, (x.size // 4, 8))
              for d, x in zip(types, codes, strict=True)]  # fmt: skip
    for x, run in zip(codes, compile_models(models), strict=True):
        assert isinstance(run, Runner), run
        a = x.view(f"u{x.itemsize}").reshape(4, -1)
        (y,) = run([x])
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y.view(a.dtype), np.concatenate([a, a[[3, 0, 2, 1]]]).T)


def test_bits_are_reinterpreted() -> None:
    pairs = [(d, DType.UINT8 if d.bits == 8 else DType.UINT4 if d.bits == 4 else DType.UINT2)
             for d in SMALL]  # fmt: skip
    pairs += [(b, a) for a, b in pairs]
    pairs += [(DType.FLOAT16, DType.INT16), (DType.UINT16, DType.BFLOAT16),
              (DType.BFLOAT16, DType.FLOAT16)]  # fmt: skip
    pairs = [(a, b) for a, b in pairs if a is not b]
    codes = [all_codes(a) if a.bits <= 8 else np.arange(1 << 16, dtype=np.uint16).view(a.numpy)
             for a, _ in pairs]  # fmt: skip
    models = [one_type_model([helper.make_node("BitCast", ["x"], ["y"], to=b.code)], x.shape, a, b,
                             x.shape) for (a, b), x in zip(pairs, codes, strict=True)]  # fmt: skip
    for (_, target), x, run in zip(pairs, codes, compile_models(models), strict=True):
        assert isinstance(run, Runner), run
        (y,) = run([x])
        assert y.dtype == target.numpy
        np.testing.assert_array_equal(y.view(f"u{x.itemsize}"), x.view(f"u{x.itemsize}"))


QUANTIZED = [d for d in SMALL if d is not E8M0]
LAYOUTS = [((), {}), ((6,), {"axis": 1}), ((4, 3, 2), {"axis": 2, "block_size": 4})]


def quantized_model(
    op: str, dtype: DType, x: Array, scale: Array, zero: Array | None, attributes: dict[str, int]
) -> onnx.ModelProto:
    """Return a model of one operator with constant scale and zero point, as a file has them."""
    fixed = {"scale": scale} if zero is None else {"scale": scale, "zero": zero}
    if zero is None and op == "QuantizeLinear":
        attributes = {**attributes, "output_dtype": dtype.code}
    out = dtype.code if op == "QuantizeLinear" else 1
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *fixed], ["y"], **attributes)], "scaled",
        [helper.make_tensor_value_info("x", DType.from_numpy(x.dtype).code, x.shape)],
        [helper.make_tensor_value_info("y", out, x.shape)],
        [onnx.numpy_helper.from_array(a, n) for n, a in fixed.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])


@pytest.mark.slow
def test_quantization_of_small_types() -> None:
    random = np.random.default_rng(5)
    made: list[tuple[onnx.ModelProto, Array]] = []
    for dtype in QUANTIZED:
        for given, attributes in LAYOUTS:
            shape = (4, 6) if len(given) < 3 else (4, 3, 7)
            scale = random.uniform(0.25, 2, given).astype(np.float32)
            codes = random.integers(0, 1 << dtype.bits, size=(2, *shape), dtype=np.uint8)
            x, zeros = codes[0].view(dtype.numpy), codes[1].view(dtype.numpy)
            zero = None if dtype.is_float else np.resize(zeros, given)
            made.append((quantized_model("DequantizeLinear", dtype, x, scale, zero, attributes), x))
            y = random.standard_normal(shape).astype(np.float32) * 16
            for saturate in (0, 1) if dtype.is_float else (1,):
                more = {**attributes, "saturate": saturate}
                made.append((quantized_model("QuantizeLinear", dtype, y, scale, zero, more), y))
    runs = compile_models([model for model, _ in made])
    for (model, x), run in zip(made, runs, strict=True):
        assert isinstance(run, Runner), run
        with np.errstate(all="ignore"):
            (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
        (got,) = run([x])
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(_wide(got), _wide(wanted), str(model.graph.node[0]))


@pytest.mark.parametrize(("x_type", "scale_type", "precision"), [
    (np.float16, np.float16, 0), (np.float16, np.float16, 1), (np.float32, np.float32, 10),
    (np.float32, np.float32, 0),
])  # fmt: skip
def test_the_quotients_precision(x_type: Any, scale_type: Any, precision: int) -> None:
    x = (np.arange(-4096, 4096) / 64).astype(x_type)  # many a quotient is nearly a tie
    scale, zero = np.array(0.7, scale_type), np.array(0, np.int8)
    attributes = {"precision": precision} if precision else {}
    model = quantized_model("QuantizeLinear", DType.INT8, x, scale, zero, attributes)
    (run,) = compile_models([model])
    assert isinstance(run, Runner), run
    np.testing.assert_array_equal(run([x])[0], ReferenceEvaluator(model).run(None, {"x": x})[0])


@pytest.mark.parametrize("op", ["Add", "Neg", "Softmax", "ReduceMax", "MatMul"])
@pytest.mark.parametrize("dtype", [DType.INT4, DType.FLOAT8E5M2], ids=lambda d: d.label)
def test_arithmetic_on_small_types_is_refused_by_name(op: str, dtype: DType) -> None:
    inputs = ["x", "x"] if op in ("Add", "MatMul") else ["x"]
    model = one_type_model([helper.make_node(op, inputs, ["y"])], (4, 4), dtype, dtype, (4, 4))
    with pytest.raises(AtcError, match=f"({dtype.label}|{dtype.numpy.name})"):
        compile_graph(model)
