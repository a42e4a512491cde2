"""Attention in bfloat16 and on AMX's tiles, emulated where there are none, against float64; weights
that are rounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_program import Call, counted, run_calls, vector_target

from atc.backends.cpu.amx.attention import FEW, FEW_SCORES, AttentionAmx, AttentionAmxSplit
from atc.backends.cpu.attention.bf16 import AttentionBf16
from atc.backends.cpu.attention.halves import AttentionHalves
from atc.backends.cpu.attention.tile import AttentionTile
from atc.backends.kernel import Kernel, Workload
from atc.ir.expr import Input, call, cast, const
from atc.ir.graph import Array, DType, TensorType
from atc.ir.ops import Attention, Epilogue
from atc.ir.view import View, dense

F = DType.FLOAT


@dataclass(frozen=True)
class Case:
    """Heads, queries, keys, depth, width; whether k is keys x depth; a mask is added to scores."""

    heads: int
    queries: int
    keys: int
    depth: int
    width: int
    by_keys: bool = True
    masked: bool = False
    transposed: bool = False
    """Whether q and v have their last two axes exchanged in memory."""
    window: tuple[int, int] | None = None
    """How many keys before and after key i a query i sees, by positions; None for all."""
    counted: tuple[str, ...] = ()
    """Extents that only the run knows, of `heads`, `queries` and `keys`."""

    @property
    def in_floats(self) -> bool:
        """Whether tiles leave it to registers."""
        few = self.queries < FEW or self.queries * self.keys < FEW_SCORES
        return few and not {"queries", "keys"}.isdisjoint(self.counted)

    def extents(self) -> tuple[int, int, int]:
        """Heads, queries and keys, as when compiling."""
        most = {"heads": 4, "queries": 320, "keys": 450}
        heads, queries, keys = (
            counted(getattr(self, name), name, high) if name in self.counted
            else getattr(self, name) for name, high in most.items()
        )  # fmt: skip
        return heads, queries, keys


CASES = {
    "whole": Case(2, 28, 64, 64, 32),
    "odd": Case(3, 5, 21, 7, 9, masked=True),
    "rows of keys": Case(1, 15, 33, 40, 16, by_keys=False),
    "transposed": Case(2, 3, 18, 5, 3, transposed=True),
    "one": Case(2, 1, 1, 1, 1),
    "wide": Case(1, 4, 70, 33, 100, masked=True),
    "many": Case(2, 75, 100, 72, 70, masked=True),
    "blocks": Case(1, 49, 130, 16, 24),
}

SEEN = {
    "causal": Case(2, 70, 70, 33, 40, window=(70, 0)),
    "with a past": Case(1, 40, 100, 64, 64, window=(100, 60)),
    "sliding": Case(1, 100, 100, 16, 70, window=(20, 3)),
    "after the keys": Case(1, 100, 40, 16, 16, window=(64, -60), masked=True),
}
"""What positions hide, with rows that see nothing."""


EXTENTS = (1, 3, 4, 15, 16, 17, 31, 32, 33, 64, 97, 129)
"""Extents of a run, below, at and above multiples of tiles."""

COUNTED = {
    **{f"{n} queries and 300 keys": Case(2, n, 300, 64, 64, counted=("queries",)) for n in EXTENTS},
    **{f"300 queries and {n} keys": Case(1, 300, n, 64, 40, counted=("keys",)) for n in EXTENTS},
    **{
        f"{n} of both": Case(3, n, n, 33, 64, masked=True, counted=("heads", "queries", "keys"))
        for n in (1, 16, 96, 97, 127, 161)
    },
    "batches": Case(3, 70, 70, 64, 64, counted=("heads",)),
    "rows of keys": Case(2, 100, 129, 40, 16, by_keys=False, counted=("queries", "keys")),
    "transposed": Case(2, 97, 101, 33, 64, transposed=True, counted=("queries", "keys")),
    **{
        f"a window of {n}": Case(
            2, n, n + past, 64, 40, masked=bool(past), window=(before, past),
            counted=("queries", "keys"),
        )
        for n, before, past in (
            (1, 200, 150), (30, 200, 260), (33, 20, 300), (160, 200, 0), (161, 9, 0)
        )
    },
    "a window of many": Case(1, 100, 160, 16, 70, window=(20, 3), counted=("queries",)),
}  # fmt: skip


def view(shape: tuple[int, ...], transposed: bool) -> View:
    """The view of a tensor, of one that lies with its last two axes exchanged too."""
    if not transposed:
        return dense(shape)
    *batch, rows, columns = shape
    strides = dense((*batch, columns, rows)).strides
    return View((*strides[:-2], strides[-1], strides[-2]))


def stored(array: Array, transposed: bool) -> Array:
    return np.ascontiguousarray(array.swapaxes(-1, -2) if transposed else array)


def prepared(
    case: Case, dtype: Any = ml_dtypes.bfloat16
) -> tuple[Workload, list[Array | None], Array]:
    """Return the workload, its operands and the result in float64 of operands rounded to a type."""
    rng = np.random.default_rng(case.keys)
    heads, queries, keys = case.extents()
    q, k, v = (
        rng.standard_normal((case.heads, a, b)).astype(np.float32)
        for a, b in ((case.queries, case.depth), (case.depth, case.keys), (case.keys, case.width))
    )
    mask = np.where(rng.random((case.queries, case.keys)) < 0.3, -np.inf, 0).astype(np.float32)
    mask[0, :-1] = -np.inf
    mask[0, -1] = 0
    mask[:, 0] = np.where(np.arange(case.queries) > 0, 0, mask[0, 0])
    scale = float(np.float32(case.depth**-0.5))
    scaled = call("Mul", Input(F, 0), const(scale, F))
    views: tuple[View, ...] = ()
    turned = (case.transposed, case.by_keys, case.transposed)
    operands: list[Array | None] = [stored(x, t) for x, t in zip((q, k, v), turned, strict=True)]
    if case.masked:
        scaled, views = call("Add", scaled, Input(F, 1)), (View((0, keys, 1)),)
        operands.append(mask)
    hidden = np.zeros((case.queries, case.keys), bool)
    if case.window:
        before, after = case.window
        key, query = (Input(DType.INT64, len(views) + k) for k in (1, 2))
        seen = [
            call("GreaterOrEqual", key, call("Sub", query, const(before, DType.INT64))),
            call("LessOrEqual", key, call("Add", query, const(after, DType.INT64))),
        ]
        scaled = call("Where", call("And", *seen), scaled, const(-np.inf, F))
        views += (View((0, 0, 1)), View((0, 1, 0)))
        operands += [None, None]
        far = np.arange(case.keys) - np.arange(case.queries)[:, None]
        hidden = (far < -before) | (far > after)
    shape, of_q = (heads, queries, case.width), (heads, queries, case.depth)
    of_k, of_v = (heads, case.depth, keys), (heads, keys, case.width)
    op = Attention(
        (heads,), queries, keys, case.depth, case.width,
        view(of_q, case.transposed), view(of_k, case.by_keys), view(of_v, case.transposed),
        dense(shape), Epilogue(scaled, views), Epilogue(Input(F, 0), ()),
        masked=case.window is not None,
    )  # fmt: skip
    shapes = (of_q, of_k, of_v, *[(queries, keys)] * case.masked, *[None] * (2 * bool(case.window)))
    types = tuple(None if s is None else TensorType(F, s) for s in shapes)
    w = Workload(op, types, (TensorType(F, shape),), (False,) * len(types))
    a, b, c = (x.astype(dtype).astype(np.float64) for x in (q, k, v))
    scores = np.where(hidden, -np.inf, a @ b * scale + (mask if case.masked else 0))
    most = np.maximum(scores.max(-1, keepdims=True), -1e30)
    weights = np.exp(scores - most)
    return w, operands, weights @ c / np.maximum(weights.sum(-1, keepdims=True), 1e-30)


KERNELS: dict[str, tuple[Kernel, str, Any, float]] = {
    "bf16": (AttentionBf16(), "x86-64-avx512-bf16", ml_dtypes.bfloat16, 3e-3),
    "tiles": (AttentionAmx(), "x86-64-amx", ml_dtypes.bfloat16, 3e-3),
    "split on tiles": (AttentionAmxSplit(), "x86-64-amx", np.float32, 2e-5),
}
"""Kernels, their targets, what operands are rounded to, and errors: weights are rounded, too."""


@pytest.mark.few(1)
@pytest.mark.parametrize("name", KERNELS)
def test_products_are_those_of_rounded_operands(name: str) -> None:
    check(name, CASES)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [name for name in KERNELS if "tiles" in name])
def test_tiles_meet_the_keys_that_positions_show(name: str) -> None:
    check(name, SEEN)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [name for name in KERNELS if "tiles" in name])
def test_tiles_take_extents_that_the_run_counts(name: str) -> None:
    check(name, COUNTED)


def check(name: str, cases: Mapping[str, Case]) -> None:
    """Run a kernel on all cases at once."""
    kernel, target_name, dtype, tolerance = KERNELS[name]
    target, calls, wanted = vector_target(target_name), [], []
    for case in cases.values():
        w, operands, expected = prepared(case, np.float32 if case.in_floats else dtype)
        w.op.check(w.inputs, w.outputs)
        assert kernel.accepts(w, target), case
        for params in kernel.parameters(w, target)[:2]:
            calls.append(Call(kernel, params, w, operands))
            wanted.append(expected)
    for call_, (got,), expected in zip(calls, run_calls(calls, target), wanted, strict=True):
        found = got.ravel()[: prod(expected.shape)].reshape(expected.shape)
        error = np.abs(found - expected).max()
        assert error < tolerance * np.abs(expected).max(), f"{call_}: {error}"


@pytest.mark.few(2)
@pytest.mark.parametrize("half", [DType.FLOAT16, DType.BFLOAT16], ids=lambda d: d.label)
@pytest.mark.parametrize("target_name", ["x86-64-avx512", "x86-64-avx2", "x86-64-sse2"])
def test_operands_of_16_bits_give_the_numbers_of_floats(target_name: str, half: DType) -> None:
    target, calls = vector_target(target_name), []
    for case in (CASES | SEEN).values():
        w, operands, _ = prepared(case)
        known = [None if x is None else x.astype(half.numpy) for x in operands[:3]]
        rest, y = operands[3:], w.outputs[0].shape
        result = Epilogue(cast(Input(F, 0), half), ())
        types = tuple(None if t is None else replace(t, dtype=half) for t in w.inputs[:3])
        for halves in (slice(0, 0), slice(0, 3), slice(1, 2)):
            given = [x if x is None else x.astype(np.float32) for x in known]
            given[halves] = known[halves]
            inputs = [*w.inputs]
            inputs[halves] = types[halves]
            made = replace(w, inputs=tuple(inputs))
            if halves.stop:
                made = replace(
                    made, op=replace(w.op, result=result), outputs=(TensorType(half, y),)
                )
            kernel = AttentionHalves() if halves.stop else AttentionTile()
            assert kernel.accepts(made, target), case
            params = replace(kernel.parameters(made, target)[-1], few=False)
            calls.append(Call(kernel, params, made, [*given, *rest]))
    results = [got for (got,) in run_calls(calls, target)]
    for k, (made, got) in enumerate(zip(calls, results, strict=True)):
        expected = results[k - k % 3].astype(half.numpy)
        found = got.view(half.numpy) if got.dtype.itemsize == 2 else got.astype(half.numpy)
        same = (x.astype(np.float32) for x in (found, expected))
        np.testing.assert_array_equal(*same, str(made))


ROUNDING: dict[str, tuple[Kernel, str]] = {
    "registers": (AttentionTile(), "x86-64-avx2"),
    "split on tiles": (AttentionAmxSplit(), "x86-64-amx"),
}
"""Kernels whose products keep weights of 11 bits, and a target."""


@pytest.mark.parametrize("name", ROUNDING)
def test_weights_are_rounded_before_they_are_divided(name: str) -> None:
    kernel, target_name = ROUNDING[name]
    target = vector_target(target_name)
    w, operands, _ = prepared(Case(1, 6, 40, 8, 40), np.float32)
    w = replace(w, op=replace(w.op, weights=DType.FLOAT16))
    operands[2] = np.eye(40, dtype=np.float32)[None]
    params = next(iter(kernel.parameters(w, target)), {})
    ((got,),) = run_calls([Call(kernel, params, w, operands)], target)
    weights = got / got.max(-1, keepdims=True)  # the largest one is 1 before
    halves = weights.astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(weights, halves, rtol=1e-6)
    scores = (operands[0].astype(np.float64) @ operands[1].swapaxes(1, 2)) * 8**-0.5
    exact = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(halves, exact, rtol=2**-11 + 1e-4)


@pytest.mark.parametrize("name", ROUNDING)
def test_no_weight_is_denormal(name: str) -> None:
    """Products with denormals take 150 cycles each: masks of -100 (Swin) make many."""
    kernel, target_name = ROUNDING[name]
    target = vector_target(target_name)
    w, operands, _ = prepared(Case(1, 6, 40, 8, 40), np.float32)
    operands[0] *= 30
    operands[2] = np.eye(40, dtype=np.float32)[None]
    params = next(iter(kernel.parameters(w, target)), {})
    ((got,),) = run_calls([Call(kernel, params, w, operands)], target)
    scores = (operands[0].astype(np.float64) @ operands[1].swapaxes(1, 2)) * 8**-0.5
    exact = np.exp(scores - scores.max(-1, keepdims=True))
    tiny = (exact > 0) & (exact < np.finfo(np.float32).tiny)
    assert tiny.any()
    assert not got[tiny].any()
    np.testing.assert_allclose(got, exact / exact.sum(-1, keepdims=True), rtol=0, atol=2e-4)


def test_split_products_of_infinities_are_those_of_floats() -> None:
    case, kernel, target = CASES["whole"], AttentionAmxSplit(), vector_target("x86-64-amx")
    w, operands, plain = prepared(case, np.float32)
    operands[0][0, 3, 5] = 3e38  # its scores leave float32, one key takes all
    operands[2][1, 9, 4] = np.inf
    ((got,),) = run_calls([Call(kernel, {}, w, operands)], target)
    assert np.isnan(got[0, 3]).all() or np.isin(got[0, 3], operands[2][0]).all()
    assert (got[1, :, 4] == np.inf).all()
    kept = np.ones(plain.shape, bool)
    kept[0, 3] = kept[1, :, 4] = False
    np.testing.assert_allclose(got[kept], plain[kept], rtol=0, atol=2e-5 * np.abs(plain).max())


@pytest.mark.parametrize("target", ["x86-64-avx512", "x86-64-avx2"])
def test_it_needs_the_instructions(target: str) -> None:
    w, _, _ = prepared(CASES["whole"])
    for kernel, *_ in KERNELS.values():
        assert not kernel.accepts(w, vector_target(target))
