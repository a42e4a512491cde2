"""Portable kernel of MatMul: row-panel products in C99, constant B packed into column panels."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from atc.backends.cpu.matmul.cost import while_fetching
from atc.backends.cpu.matmul.operands import gathered_b, is_packed, kept_batch, packed_base
from atc.backends.kernel import Kernel, Pack, Params, Workload
from atc.backends.render.expr import address, load
from atc.backends.render.loops import epilogue_lines, loop_names
from atc.backends.render.reduction import multiply_add
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.ir.graph import Array
from atc.ir.ops import MatMul
from atc.ir.view import dense

COLUMNS = 16
"""Columns computed together: one cache line of floats."""
PRODUCTS, RATE = 10.0, 9.0
"""Multiply-adds, and bytes of B, per cycle of a loop that compilers make vectors of."""
WIDE, NARROW = 6.0, 1.5
"""The former where the sums are two vectors, or four: GCC keeps them in memory at -O2, and the
four wait for each other's stores."""
SMALL = 0.15
"""The former on a small core, which takes one instruction after the other."""


def pack_columns(op: MatMul, b: Array, nb: int, kb: int | None = None) -> Array:
    """Return constant B [*batch, k, n] (read through its view) as panels [*batch, n / nb, k, nb].

    Blocks of `kb` of the depth lie one behind the other: [*batch, k / kb, n / nb, kb, nb]. Batches
    that B broadcasts over are kept once.
    """
    full, batch = gathered_b(op, b), kept_batch(op.batch, op.b_view)
    whole, rest = divmod(op.n, nb)
    panels = np.zeros((*batch, whole + (rest > 0), op.k, nb), full.dtype)
    split = full[..., : whole * nb].reshape(*batch, op.k, whole, nb)
    panels[..., :whole, :, :] = np.moveaxis(split, -2, -3)
    if rest:
        panels[..., whole, :, :rest] = full[..., whole * nb :]
    if kb is None:
        return panels
    blocks = panels.reshape(*panels.shape[:-2], op.k // kb, kb, nb)
    return np.ascontiguousarray(np.moveaxis(blocks, -3, -4))


class MatMulRows(Kernel[MatMul]):
    """Any MatMul in plain C: a row of A times a panel of B, accumulated in a small array."""

    name = "matmul_rows"
    op = MatMul
    template = "cpu/matmul/portable.c.j2"
    dynamic = True

    def packs(self, w: Workload[MatMul], params: Params, target: Target) -> Mapping[int, Pack]:
        """Pack constant B into panels."""
        op = w.op
        if not is_packed(w):
            return {}
        return {1: lambda b: pack_columns(op, b, COLUMNS)}

    def panel_columns(self, w: Workload[MatMul], params: Params, target: Target) -> int:
        """Return as many as are accumulated at a time."""
        return COLUMNS if is_packed(w) else 0

    def values(self, w: Workload[MatMul], params: Params, target: Target) -> dict[str, object]:
        """Addresses of both operands and the epilogue."""
        op = w.op
        x0, x1 = w.input(0), w.input(1)
        batch = loop_names("b", op.batch)
        outer = [v for v, _ in batch]
        packed = is_packed(w)
        b_place = address(op.b_view, [*outer, "p", "(j0 + j)"])
        if packed:
            b_place = _packed_place(op, outer)
        a_place = address(op.a_view, [*outer, "i", "p"])
        b_value = _centred(load(x1.dtype, f"x1[{b_place}]"), op.b_zero)
        after, value = epilogue_lines(op.epilogue, w, "acc[j]", [*outer, "i", "(j0 + j)"], 2)
        return {
            "batch": batch, "op": op, "nb": COLUMNS, "acc": op.accumulator.c, "packed": packed,
            "a": _centred(load(x0.dtype, f"x0[{a_place}]"), op.a_zero),
            "step": multiply_add(op.accumulator, "acc[j]", "a", b_value),
            "after": after, "value": value,
            "target": address(dense(op.loops), [*outer, "i", "(j0 + j)"]),
        }  # fmt: skip

    def cost(self, w: Workload[MatMul], params: Params, target: Target) -> float:
        """Cycles of the multiplications of whole panels, more where none are packed."""
        op = w.op
        factor = 1 if is_packed(w) else 2 if op.b_view.strides[-1] == 1 else 8
        products = op.m * op.k * -(-op.n // COLUMNS) * COLUMNS * factor
        rate = SMALL if target.bytes_last else product_rate(target)
        nbytes = op.k * op.n * 4
        cycles = max(products / rate, nbytes / RATE)
        if w.constant[1] and lanes(target) > 1:  # beside kernels in vectors, that count on it, too
            cycles = while_fetching(target.machine, cycles, nbytes)
        return prod(op.batch) * cycles


def product_rate(target: Target) -> float:
    """Return the multiply-adds per cycle, as measured of a target's own vectors."""
    if target.vector_bytes == 4:  # the compiler knows of vectors that the target doesn't name
        return PRODUCTS
    return NARROW if target.vector_bytes <= 16 else WIDE


def _centred(value: str, zero: int) -> str:
    return f"({value} - {zero})" if zero > 0 else f"({value} + {-zero})" if zero else value


def _packed_place(op: MatMul, outer: list[str]) -> str:
    """Return the C index of B[p, j0 + j] in the panels that `pack_columns` makes."""
    size = op.k * COLUMNS * -(-op.n // COLUMNS)
    base = packed_base(op.batch, op.b_view, outer, size)
    inner = f"j0 * {op.k} + p * {COLUMNS} + j"
    return f"{base} + {inner}" if base != "0" else inner


KERNELS = (MatMulRows(),)
