"""Constant operands of products on tensor cores, packed as rows along the depth.

Tiles of them are copied to shared memory as they are: nobody converts, transposes or waits there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from atc.backends.cuda.products.boxes import packed_batch, rounded
from atc.backends.cuda.products.tiles import Operand, Product
from atc.ir.graph import Array, row_major
from atc.ir.ops import Conv, MatMul
from atc.ir.view import gather_view

WORDS = "((const uint16_t *)(const void *)x1)"
"""The C of packed bfloat16."""


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
    if isinstance(op, MatMul):
        kept = dict(packed_batch(op))
        batch = tuple(kept.get(k, 1) for k in range(len(op.batch)))
        full = gather_view(constant, (*batch, op.k, op.n), op.b_view)
        matrix = full.reshape(-1, op.k, op.n).transpose(0, 2, 1).reshape(-1, op.k)
    else:
        filters = np.moveaxis(constant, 1, -1) if by_taps else constant
        matrix = filters.reshape(-1, product.k)
    rows = np.zeros((len(matrix), pitch_of(product, step)), constant.dtype)
    rows[:, : product.k] = matrix
    if planes == 0:
        return rows
    upper = rounded(rows)
    parts = [upper]
    if planes > 1:
        with np.errstate(invalid="ignore", over="ignore"):
            rest = rows - upper.astype(np.float32)
        parts.append(rounded(np.where(np.isfinite(rest), rest, np.float32(0))))
    return np.ascontiguousarray(np.stack(parts)).view(np.float32)


def packed_rows(
    op: Conv | MatMul, product: Product, step: int, planes: int, size: int
) -> tuple[Operand, tuple[tuple[str, str], ...]]:
    """Return packed input 1, of `size` elements, as C, and where a chunk of each plane is."""
    pitch = pitch_of(product, step)
    if isinstance(op, MatMul):
        batch, index = packed_batch(op), "j"
        steps = row_major((*(n for _, n in batch), op.n, pitch))
        outer = zip(batch, steps[:-2], strict=True)
        begin = [*(f"{product.batch[k][0]} * {s}" for (k, _), s in outer), f"{index} * {pitch}"]
        own, rows = product.b, op.n
        for _, n in batch:
            rows *= n
    else:
        row = f"(g * {product.m} + i)" if product.batch else "i"
        begin, own, rows = [f"{row} * {pitch}"], product.a, size // product.k
    place = " + ".join((*begin, "p"))
    plain = replace(own, place=place, inside="", indices=(), along_rows=False, chunks=16)
    if planes == 0:
        return plain, (("x1", place),)
    places = [place, f"{place} + {rows * pitch}"][:planes]
    value = " + ".join(f"k_load_bf16({WORDS}[{each}])" for each in places)
    return replace(plain, computed=f"({value})"), tuple((WORDS, each) for each in places)
