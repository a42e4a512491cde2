"""Products with packed weights under every instruction set, NEON under an emulator among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from kernel_program import Call, run_calls, vector_target
from numpy.typing import NDArray

import atc
from atc.backends.cpu.matmul.packed_int8 import (
    MatMulFixedPointTile,
    MatMulRounding,
    MatMulRoundingTile,
)
from atc.backends.cpu.matmul.packed_tile import MatMulUnpackingTile
from atc.backends.kernel import Candidate, Workload
from atc.backends.machines import get_machine
from atc.backends.targets import get_target
from atc.dims import Symbol, dim
from atc.ir.expr import Input, call
from atc.ir.graph import DType, Node, TensorType, type_of
from atc.ir.ops import Epilogue, identity_epilogue
from atc.ir.ops.quantize import MatMulPacked
from atc.ir.view import View
from atc.program.partition import partitions
from atc.select.select import ANY, Limits, choose

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """Rows, columns, depth, block, bits; `zero`: none, bytes or floats; with a bias; `halves`:
    scales in float16."""

    m: int
    n: int
    k: int
    block: int
    bits: int
    zero: str = ""
    bias: bool = False
    halves: bool = False


CASES = (
    Case(1, 70, 64, 16, 4),
    Case(3, 33, 75, 32, 4, "bytes", halves=True),
    Case(1, 16, 100, 64, 8, "bytes", bias=True),
    Case(17, 40, 40, 16, 2, "floats"),
    Case(2, 100, 300, 256, 4, "floats", bias=True),
    Case(5, 20, 37, 128, 8),
    Case(6, 17, 1024, 128, 4, "bytes"),
)


def prepared(case: Case) -> tuple[Workload, list[Array | None]]:
    """Return the workload and random operands."""
    rng = np.random.default_rng(case.n)
    blocks = -(-case.k // case.block)
    x = rng.standard_normal((case.m, case.k)).astype(np.float32)
    q = rng.integers(0, 256, (case.n, blocks, case.block * case.bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.5, 2, (case.n, blocks)).astype(np.float16 if case.halves else np.float32)
    zero = rng.integers(0, 1 << case.bits, (case.n, blocks))
    zeros = {"bytes": zero.astype(np.uint8), "floats": zero.astype(np.float32) + 0.25}
    arrays: list[Array | None] = [x, q, scales, zeros.get(case.zero)]
    epilogue = identity_epilogue(DType.FLOAT)
    if case.bias:
        arrays.append(rng.standard_normal(case.n).astype(np.float32))
        sum_ = call("Add", Input(DType.FLOAT, 0), Input(DType.FLOAT, 1))
        epilogue = Epilogue(sum_, (View((0, 1)),))
    op = MatMulPacked(case.m, case.n, case.k, case.block, case.bits, epilogue)
    types = tuple(None if a is None else type_of(a) for a in arrays)
    out = TensorType(DType.FLOAT, (case.m, case.n))
    known = (False, *[True] * (len(types) - 1))
    return Workload(op, types, (out,), known), arrays


def expected(case: Case, arrays: list[Array | None]) -> tuple[Array, Array]:
    """Return the product in float64, and the sums of magnitudes that bound its error."""
    x, q, scales, zeros, *bias = arrays
    assert x is not None
    assert q is not None
    assert scales is not None
    shifts = np.arange(0, 8, case.bits)
    fields = (q[..., None].astype(int) >> shifts) & ((1 << case.bits) - 1)
    zero = np.float64(1 << (case.bits - 1)) if zeros is None else zeros[..., None]
    blocks = fields.reshape(*scales.shape, -1) - zero
    weights = (blocks * scales[..., None].astype(np.float64)).reshape(case.n, -1)[:, : case.k]
    y = x.astype(np.float64) @ weights.T
    total = np.abs(x) @ np.abs(weights).T
    return (y + bias[0] if bias and bias[0] is not None else y), total


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "x86-64-avx512",
        *(
            pytest.param(t, marks=pytest.mark.slow)
            for t in ("x86-64-sse2", "x86-64-avx2", "aarch64-neon")
        ),
    ],
)
def test_tiles_err_no_more_than_sums_of_floats(name: str) -> None:
    target = vector_target(name)
    calls, wanted = [], []
    for case in CASES:
        w, arrays = prepared(case)
        assert MatMulUnpackingTile().accepts(w, target), case
        for params in MatMulUnpackingTile().parameters(w, target)[:2]:
            calls.append(Call(MatMulUnpackingTile(), params, w, arrays))
            wanted.append((case, *expected(case, arrays)))
    for (case, want, total), (got,), c in zip(wanted, run_calls(calls, target), calls, strict=True):
        bound = 2.0**-24 * (case.k + 4) * total + 1e-6
        assert (np.abs(got - want) <= bound).all(), str(c)


FIXED = (
    Case(1, 70, 64, 16, 4, halves=True),
    Case(3, 33, 96, 32, 4, "bytes"),
    Case(17, 40, 256, 32, 4, bias=True),
    Case(5, 33, 1024, 256, 8),
    Case(2, 16, 128, 64, 8, "bytes", bias=True),
)


def fixed_calls(name: str, made: Callable[[Array], Array]) -> list[tuple[Case, Call]]:
    """Return calls of a target's tiles, with `made` of random rows."""
    found, target = [], vector_target(name)
    for case in FIXED:
        w, arrays = prepared(case)
        assert arrays[0] is not None
        arrays[0] = made(arrays[0])
        if not MatMulFixedPointTile().accepts(w, target):
            assert case.bits == 8  # whose products with bytes don't fit 16 bits in pairs
            continue
        for params in MatMulFixedPointTile().parameters(w, target)[:2]:
            found.append((case, Call(MatMulFixedPointTile(), params, w, arrays)))
    return found


def spread(x: Array) -> Array:
    """Return rows of very large and very small numbers."""
    return x * np.exp2(np.linspace(-100, 100, len(x)))[:, None].astype(np.float32)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("x86-64-avx512-vnni", lambda x: x),
        ("x86-64-avx512-vnni", spread),
        *(
            pytest.param(name, spread, marks=pytest.mark.slow)
            for name in (
                "x86-64-sse2",
                "x86-64-avx2",
                "x86-64-avx512",
                "x86-64-avx2-vnni",
                "aarch64-neon",
                "aarch64-neon-dotprod",
            )
        ),
    ],
)
def test_fixed_point_rows_err_no_more_than_floats(
    name: str, made: Callable[[Array], Array]
) -> None:
    calls = fixed_calls(name, made)
    for (case, c), (got,) in zip(
        calls, run_calls([c for _, c in calls], vector_target(name)), strict=True
    ):
        want, total = expected(case, [*c.inputs])
        assert (np.abs(got - want) <= 2.0**-24 * (3 * total + np.abs(want))).all(), str(c)


def test_fixed_point_rows_of_whole_numbers_are_exact() -> None:
    """Steps are powers of two: what floats add without error is added without error."""
    random = np.random.default_rng(3)
    calls = fixed_calls(
        "x86-64-avx512-vnni", lambda x: random.integers(-64, 65, x.shape).astype(np.float32) / 8
    )
    for _, c in calls:
        assert c.inputs[2] is not None
        c.inputs[2][:] = np.exp2(random.integers(-3, 4, c.inputs[2].shape))
    results = run_calls([c for _, c in calls], vector_target("x86-64-avx512-vnni"))
    for (case, c), (got,) in zip(calls, results, strict=True):
        if not case.bias:
            np.testing.assert_array_equal(got, expected(case, [*c.inputs])[0].astype(np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_fixed_point_rows_with_nan_or_infinity_are_nan(bad: float) -> None:
    def made(x: Array) -> Array:
        x[0, 7] = bad
        return x

    calls = fixed_calls("x86-64-avx512-vnni", made)
    results = run_calls([c for _, c in calls], vector_target("x86-64-avx512-vnni"))
    for (_, c), (got,) in zip(calls, results, strict=True):
        assert np.isnan(got[0]).all(), str(c)
        assert np.isfinite(got[1:]).all(), str(c)


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize(
    "name", ["x86-64-sse2", "x86-64-avx2", "x86-64-avx512", "host", "aarch64-neon"]
)
def test_vectors_are_chosen_for_many_rows_and_for_few(name: str, rounds: bool) -> None:
    target = get_target(name)
    for m in (1, 16, 512):
        w, _ = prepared(Case(m, 1536, 576, 32, 4))
        w = replace(w, op=replace(w.op, rounds=rounds))  # type: ignore[type-var]
        chosen = choose(Node(w.op, (), ("y",), ("n",)), w, target, ANY).candidate
        assert not chosen.kernel.portable, chosen.label


ROUNDED = (
    Case(1, 70, 64, 16, 4, halves=True),
    Case(3, 33, 75, 32, 4, "bytes"),
    Case(1, 16, 100, 64, 8, "bytes", bias=True),
    Case(9, 20, 37, 128, 8),
    Case(17, 40, 256, 32, 4, bias=True),
)


def in_bytes(case: Case, arrays: list[Array | None]) -> Array:
    """Return the product in float64 of rows that are rounded to blocks of bytes."""
    x, *rest = arrays
    assert x is not None
    room = -(-case.k // case.block) * case.block
    blocks = np.pad(x, ((0, 0), (0, room - case.k))).reshape(case.m, -1, case.block)
    largest = np.abs(blocks).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        factor = np.where(largest < 1e-30, np.float32(0), np.float32(127) / largest)
    steps = np.where(largest < 1e-30, 0, largest / np.float32(127)).astype(np.float64)
    rounded = (np.rint(blocks * factor) * steps).reshape(case.m, -1)[:, : case.k]
    return expected(case, [rounded, *rest])[0]


def rounding_calls(name: str) -> list[tuple[Case, list[Array | None], list[Call]]]:
    """Return for each case the call of the portable kernel and those of tiles."""
    found = []
    for case in ROUNDED:
        w, arrays = prepared(case)
        w = replace(w, op=replace(w.op, rounds=True))  # type: ignore[type-var]
        assert arrays[0] is not None
        arrays[0][0, : case.block] *= 1e-35
        sets = MatMulRoundingTile().parameters(w, vector_target(name))[:2]
        kernels = [(MatMulRounding(), {}), *((MatMulRoundingTile(), p) for p in sets)]
        calls = [Call(k, p, w, arrays) for k, p in kernels]  # type: ignore[arg-type]
        found.append((case, arrays, calls))
    return found


@pytest.mark.parametrize(
    "name",
    [
        "x86-64-avx512-vnni",
        *(
            pytest.param(t, marks=pytest.mark.slow)
            for t in (
                "x86-64-sse2",
                "x86-64-avx2",
                "x86-64-avx512",
                "x86-64-avx2-vnni",
                "aarch64-neon",
                "aarch64-neon-dotprod",
            )
        ),
    ],
)
def test_rounded_rows_give_the_same_bits_everywhere(name: str) -> None:
    cases = rounding_calls(name)
    results = iter(run_calls([c for _, _, calls in cases for c in calls], vector_target(name)))
    for case, arrays, calls in cases:
        (plain,), *others = (next(results) for _ in calls)
        assert len(others) >= 1
        for tile, (got,) in zip(calls[1:], others, strict=True):
            np.testing.assert_array_equal(got, plain, err_msg=str(tile))
        scale = np.abs(in_bytes(case, arrays)).max()
        assert np.abs(plain - in_bytes(case, arrays)).max() <= 1e-6 * scale
        assert np.abs(plain - expected(case, arrays)[0]).max() >= 1e-5 * scale


@pytest.mark.parametrize("digit", [-127.0, 127.0, -128.0 * 257 - 1, 127.0 * 65793])
@pytest.mark.parametrize("name", ["x86-64-avx2", pytest.param("x86-64-avx512",
                                                              marks=pytest.mark.slow)])  # fmt: skip
def test_no_sum_of_the_largest_weights_and_numbers_overflows(name: str, digit: float) -> None:
    """Bytes of -128 and 127, and those of fixed-point numbers, times weights of 15."""
    calls, target = [], vector_target(name)
    for block in (16, 32, 64, 128):
        for zero in ("", "bytes"):
            w, arrays = prepared(case := Case(3, 19, 256, block, 4, zero))
            x, q = arrays[:2]
            assert x is not None
            assert q is not None
            x[:], q[:] = digit, 255
            if arrays[3] is not None:
                arrays[3][:] = 0
            for kernel, rounds in ((MatMulRoundingTile(), True), (MatMulFixedPointTile(), False)):
                own = replace(w, op=replace(w.op, rounds=rounds))  # type: ignore[type-var]
                if kernel.accepts(own, target):
                    sets = kernel.parameters(own, target)
                    calls += [(case, Call(kernel, p, own, arrays)) for p in sets]
    assert {c.kernel.name for _, c in calls} == {"matmul_packed_bytes_tile",
                                                 "matmul_packed_fixed_tile"}  # fmt: skip
    for (case, c), (got,) in zip(calls, run_calls([c for _, c in calls], target), strict=True):
        want, _ = expected(case, [*c.inputs])
        np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=str(c))


@pytest.mark.parametrize(
    ("rows", "kernel"),
    [(1, "matmul_packed_fixed_tile"), (64, "matmul_packed_tile"),
     (dim(Symbol(0, "rows", 1, 64)), "matmul_packed_fixed_tile")],
)  # fmt: skip
def test_avx2_sums_pairs_of_a_word_and_floats_of_many_rows(rows: int, kernel: str) -> None:
    w, _ = prepared(Case(1, 576, 1536, 32, 4))
    x, *others = w.inputs
    types = (TensorType(DType.FLOAT, (rows, 1536)), *others)
    out = (TensorType(DType.FLOAT, (rows, 576)),)
    own = replace(w, op=replace(w.op, m=rows), inputs=types, outputs=out)  # type: ignore[type-var]
    node = Node(own.op, (), ("y",), ("n",))
    assert choose(node, own, get_target("x86-64-avx2"), ANY).candidate.kernel.name == kernel


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rounds", "kernel"), [
    (False, "matmul_packed_fixed_tile"), (True, "matmul_packed_bytes_tile"),
])  # fmt: skip
def test_where_all_wait_for_memory_few_rows_are_one_tile_that_computes_least(
    bits: int, rounds: bool, kernel: str
) -> None:
    target = get_target("x86-64-avx512-vnni", machine=get_machine("sapphirerapids"))
    n, k, block = 8192, 2048, 32
    for m in (1, 2, 3):
        op = MatMulPacked(m, n, k, block, bits, identity_epilogue(DType.FLOAT), rounds)
        weights = TensorType(DType.UINT8, (n, k // block, block * bits // 8))
        scales = TensorType(DType.FLOAT, (n, k // block))
        types = (TensorType(DType.FLOAT, (m, k)), weights, scales, None)
        known = (False, True, True, True)
        w = Workload(op, types, (TensorType(DType.FLOAT, (m, n)),), known)
        chosen = choose(Node(op, (), ("y",), ("n",)), w, target, ANY).candidate
        assert (chosen.kernel.name, chosen.params.mr) == (kernel, m), chosen.label


def test_rounded_rows_with_nan_or_infinity_are_nan() -> None:
    (case, arrays, calls), *_ = rounding_calls("x86-64-avx512-vnni")
    for bad in (np.nan, np.inf, -np.inf):
        assert arrays[0] is not None
        arrays[0][0, 7] = bad
        for (got,) in run_calls(calls, vector_target("x86-64-avx512-vnni")):
            assert np.isnan(got).all(), (case, bad)


@pytest.mark.parametrize("name", ["c99", "x86-64-avx512-vnni"])
def test_rows_are_rounded_where_the_operator_and_the_options_allow_it(name: str) -> None:
    target = get_target(name)
    w, _ = prepared(replace(ROUNDED[1], n=330))
    allowed = replace(w, op=replace(w.op, rounds=True))  # type: ignore[type-var]
    cases = ((w, ANY, "float32"), (allowed, ANY, "int8"), (allowed, Limits(exact=True), "float32"),
             (allowed, Limits(precisions=frozenset({"float32"})), "float32"))  # fmt: skip
    for workload, limits, precision in cases:
        node = Node(workload.op, (), ("y",), ("n",))
        assert choose(node, workload, target, limits).candidate.kernel.precision == precision


@pytest.mark.parametrize("m", [1, 40])
def test_threads_cut_rows_or_columns(m: int) -> None:
    target = vector_target("c99")
    w, _ = prepared(replace(CASES[0], m=m, n=1 << 12))
    found = partitions(w, Candidate(MatMulUnpackingTile()), replace(target, vector_bytes=32), 3)
    assert len(found) == 3
    assert sum(p.result.type.size for p in found) == m << 12
    for partition in found:
        part = partition.workload(w)
        part.op.check(part.inputs, part.outputs)
        begin = partition.operands[0 if m > 1 else 1].begin
        rows = partition.result.begin // (1 << 12) if m > 1 else partition.result.begin
        assert begin == rows * (64 if m > 1 else 4 * 8)


@pytest.mark.parametrize(
    ("target", "level", "k", "scale", "threads"),
    [("c99", 0, 64, np.float32, 1),
     pytest.param("host", 0, 1024, np.float32, 1, marks=pytest.mark.slow),
     pytest.param("host", 0, 256, np.float16, 2, marks=pytest.mark.slow),
     pytest.param("host", 4, 256, np.float16, 2, marks=pytest.mark.slow),
     pytest.param("c99", 4, 64, np.float16, 1, marks=pytest.mark.slow)],
)  # fmt: skip
def test_rows_that_only_the_run_counts(
    target: str, level: int, k: int, scale: type, threads: int, tmp_path: Path
) -> None:
    n, block, random = 170 * threads**3, 32, np.random.default_rng(0)
    given = {
        "q": random.integers(0, 256, (n, k // block, block // 2)).astype(np.uint8),
        "s": random.uniform(0.01, 0.1, (n, k // block)).astype(scale).astype(np.float32),
        "z": random.integers(0, 256, n * (k // block // 2)).astype(np.uint8),
    }
    sizes = {"x": k, "y": n}
    tensors = [onnx.helper.make_tensor_value_info(v, 1, [1, "s", w]) for v, w in sizes.items()]
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]

    def model_of(accuracy_level: int) -> onnx.ModelProto:
        node = onnx.helper.make_node(
            "MatMulNBits", ["x", "q", "s", "z"], ["y"], domain="com.microsoft", K=k, N=n, bits=4,
            block_size=block, accuracy_level=accuracy_level,
        )  # fmt: skip
        weights = [onnx.numpy_helper.from_array(a, name) for name, a in given.items()]
        graph = onnx.helper.make_graph([node], "g", tensors[:1], tensors[1:], weights)
        return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)

    onnx.save(model_of(level), tmp_path / "m.onnx")
    rounding, plain = (
        onnxruntime.InferenceSession(model_of(k).SerializeToString()) for k in (level, 0)
    )
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", input_shape=f"x:1,1~40,{k}", target=target,
                num_threads=threads)  # fmt: skip
    with atc.load(tmp_path / "net") as net:
        for rows in (1, 2, 7, 23, 24, 40):
            x = random.standard_normal((1, rows, k)).astype(np.float32)
            (wanted,), (unrounded,), got = (
                rounding.run(None, {"x": x}),
                plain.run(None, {"x": x}),
                net(x),
            )
            if level and rows > 23 and np.abs(got - wanted).max() > 1e-3:
                # AMX's tiles round to bfloat16 instead
                assert np.square(got - unrounded).sum() < np.square(wanted - unrounded).sum() / 2
            else:
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * k**0.5 / 8)
