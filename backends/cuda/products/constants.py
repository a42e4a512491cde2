"""Constant operands of products on tensor cores, packed as rows along the depth.

Tiles of them are copied to shared memory as they are: nobody converts, transposes or waits there.
Of integers that are multiplied by some with a zero point, the sums of the rows lie behind them:
sum (a - zero) b = sum a b - zero sum b.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import ml_dtypes
import numpy as np

from atc.backends.cuda.products.tiles import Operand, Product
from atc.ir.graph import Array, row_major
from atc.ir.ops import Conv, ConvBlocked, MatMul
from atc.ir.view import gather_view

LARGEST = np.float32((2 - 2**-7) * 2.0**127)
"""The largest finite bfloat16."""

WORDS = "((const uint16_t *)(const void *)x1)"
"""The C of packed bfloat16."""


def with_sums(rows: Array) -> Array:
    """Return rows of bytes, and behind them the INT32 sum of each."""
    sums = rows.reshape(-1, rows.shape[-1]).sum(1, dtype=np.int32)
    spare = np.zeros(-rows.size % sums.itemsize, np.int8)
    parts = (rows.reshape(-1).view(np.int8), spare, sums.view(np.int8))
    return np.concatenate(parts).view(rows.dtype)


def sum_of(size: int, row: str) -> str:
    """Return the C of the sum of a row of constant input 1, which has `size` bytes in all rows."""
    place = -(-size // 4) * 4
    return f"((const int32_t *)(const void *)(x1 + {place}))[{row}]"


def less_zeros(product: Product, a_sums: str = "", b_sums: str = "") -> list[str]:
    """Return the C statements that take off `sum` what zero points add to sums of integers.

    `a_sums` and `b_sums` are C of sums over the depth; where there is none, what the other
    operand's zero point adds to it was taken off before.
    """
    a, b = product.a.zero, product.b.zero
    terms = [(zero, sums) for zero, sums in ((a, b_sums), (b, a_sums)) if zero and sums]
    if a and b:
        terms.append((a, f"(int32_t)({product.k}) * -({b})"))
    return [f"sum = t_less(sum, {zero}, {sums});" for zero, sums in terms]


def pitch_of(product: Product, step: int) -> int:
    """Return the elements of a packed row: whole steps of `step` numbers."""
    return -(-product.k // step) * step


def pack_rows(
    op: Conv | MatMul, product: Product, step: int, planes: int, by_taps: bool, constant: Array
) -> Array:
    """Return input 1 as [planes, *batch, rows, pitch], with zeros behind the depth.

    Filters may be `by_taps`, with the channels of each side by side. Floats are rounded to bfloat16
    (one plane) or split in two of them; with 0 planes numbers stay as they are.
    """
    pitch = pitch_of(product, step)
    if isinstance(op, MatMul):
        rows = rows_of(op, constant, pitch).reshape(-1, pitch)
    else:
        filters = np.moveaxis(constant, 1, -1) if by_taps else constant
        rows = _padded(filters.reshape(-1, product.k), pitch)
    if planes == 0:
        return rows
    return np.ascontiguousarray(np.stack(parts_of(rows, planes))).view(np.float32)


def rows_of(op: MatMul, b: Array, pitch: int) -> Array:
    """Return constant B as [batches, n, pitch], with zeros behind the depth."""
    kept = dict(packed_batch(op))
    batch = tuple(kept.get(k, 1) for k in range(len(op.batch)))
    full = gather_view(b, (*batch, op.k, op.n), op.b_view).reshape(-1, op.k, op.n)
    return _padded(full.transpose(0, 2, 1), pitch)


def _padded(rows: Array, pitch: int) -> Array:
    padded = np.zeros((*rows.shape[:-1], pitch), rows.dtype)
    padded[..., : rows.shape[-1]] = rows
    return padded


def parts_of(rows: Array, planes: int) -> list[Array]:
    """Return floats rounded to bfloat16, and for two planes what that leaves of them."""
    upper = _rounded(rows)
    if planes == 1:
        return [upper]
    with np.errstate(invalid="ignore", over="ignore"):
        rest = rows - upper.astype(np.float32)
    return [upper, _rounded(np.where(np.isfinite(rest), rest, np.float32(0)))]


def _rounded(rows: Array) -> Array:
    """Round floats to bfloat16; finite ones stay finite."""
    with np.errstate(over="ignore"):
        found = rows.astype(ml_dtypes.bfloat16)
        over = np.isinf(found.astype(np.float32)) & np.isfinite(rows)
        return np.where(over, np.copysign(LARGEST, rows).astype(found.dtype), found)


def packed_batch(op: MatMul) -> list[tuple[int, int]]:
    """Return the batch loops of packed constants: index and extent."""
    outer = zip(op.b_view.strides[:-2], op.batch, strict=True)
    return [(k, n) for k, (s, n) in enumerate(outer) if s != 0 and n > 1]


def packed_row(op: Conv | ConvBlocked | MatMul, product: Product) -> str:
    """Return the C of the number of a packed row."""
    if not isinstance(op, MatMul):
        return f"(g * {product.m} + i)" if product.batch else "i"
    batch = packed_batch(op)
    steps = row_major((*(n for _, n in batch), op.n))
    outer = [
        f"{product.batch[k][0]} * {step}" for (k, _), step in zip(batch, steps[:-1], strict=True)
    ]
    return f"({' + '.join((*outer, 'j'))})" if outer else "j"


def row_count(op: Conv | MatMul, product: Product, size: int) -> int:
    """Return the number of packed rows of input 1, of `size` elements."""
    if not isinstance(op, MatMul):
        return size // product.k
    return prod(n for _, n in packed_batch(op)) * op.n


def packed_rows(
    op: Conv | MatMul, product: Product, step: int, planes: int, size: int
) -> tuple[Operand, tuple[tuple[str, str], ...]]:
    """Return packed input 1, of `size` elements, as C, and where a chunk of each plane is."""
    pitch, row = pitch_of(product, step), packed_row(op, product)
    is_matmul = isinstance(op, MatMul)
    own, rows = (product.b if is_matmul else product.a), row_count(op, product, size)
    place = f"{row} * {pitch} + p"
    plain = replace(own, place=place, inside="", indices=(), along_rows=False, chunks=16)
    if planes == 0:
        return plain, (("x1", place),)
    places = [place, f"{place} + {rows * pitch}"][:planes]
    value = " + ".join(f"k_load_bf16({WORDS}[{each}])" for each in places)
    return replace(plain, computed=f"({value})"), tuple((WORDS, each) for each in places)
