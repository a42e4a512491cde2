"""Leaves weights packed that only themselves are quantized: their products unpack them.

A float matrix times constants that were dequantized from 4 bits, or for few rows from 8, becomes a
MatMulPacked, whose weights take as much memory as the model's own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from atc.dims import is_dynamic, max_value
from atc.ir.graph import Array, DType, Node
from atc.ir.ops import MatMul
from atc.ir.ops.quantize import MatMulPacked
from atc.ir.view import View, gather_view
from atc.passes.quantized.matching import Integers
from atc.passes.rewriting import Rewriting

Floats = npt.NDArray[np.float32]
BLOCKS = (256, 128, 64, 32, 16)
"""Numbers of a column that share a scale, the longest first."""
FEW_ROWS = 16
"""Rows up to which reading weights takes longer than multiplying with them."""


def packed_product(state: Rewriting, node: Node, op: MatMul) -> Node | None:
    """Return the product with packed weights, if B was dequantized from few bits."""
    grid, x = state.graph.quantization.get(node.inputs[1]), state.types[node.inputs[0]]
    if grid is None or state.constant(node.inputs[1]) is None or x.dtype is not DType.FLOAT:
        return None
    if is_dynamic((op.n, op.k)) or 0 in (*op.loops, op.k) or not _plain(op):
        return None
    shape, view = state.types[node.inputs[1]].shape, View(op.b_view.strides[-2:], op.b_view.offset)
    integers = gather_view(grid.integers.reshape(shape), (op.k, op.n), view).T
    spread = np.ascontiguousarray(np.broadcast_to(grid.scale, shape))
    scales = gather_view(spread, (op.k, op.n), view).T.astype(np.float32)
    block = next((b for b in BLOCKS if _blocked(scales, b)), 0)
    rows = x.size // op.k
    if block == 0 or not (np.isfinite(scales).all() and (scales > 0).all()):
        return None
    blocks = _in_blocks(integers.astype(np.int64), block)
    bits = 4 if _width(blocks) < 16 else 8
    if _width(blocks) > 255 or (bits == 8 and max_value(rows) > FEW_ROWS):
        return None
    q, zeros = _packed(blocks, bits)
    name = node.inputs[1]
    names = (
        state.add_constant(q, f"{name}.packed"),
        state.add_constant(np.ascontiguousarray(scales[:, ::block]), f"{name}.scale"),
        "" if zeros is None else state.add_constant(zeros, f"{name}.zero"),
    )
    new = MatMulPacked(rows, op.n, op.k, block, bits, op.epilogue)
    return Node(new, (node.inputs[0], *names, *node.inputs[2:]), node.outputs, node.origin)


def _plain(op: MatMul) -> bool:
    """Require A to be a dense matrix of rows, B the same in all batches, and the epilogue alike."""
    shared = not any(op.b_view.strides[:-2])
    alone = not op.batch or not op.epilogue.views
    dense = op.a_view.offset == 0 and op.a_view.is_dense((*op.batch, op.m, op.k))
    return op.accumulator is DType.FLOAT and shared and alone and dense


def _blocked(scales: Floats, block: int) -> bool:
    """Return whether scales [n, k] are the same throughout each block."""
    first = np.repeat(scales[:, ::block], block, 1)[:, : scales.shape[1]]
    return bool((scales == first).all())


def _in_blocks(integers: Integers, block: int) -> Integers:
    """Return [n, k] as [n, blocks, block]; what fills up the last block is 0."""
    padded = np.pad(integers, ((0, 0), (0, -integers.shape[1] % block)))
    return padded.reshape(len(integers), -1, block)


def _width(blocks: Integers) -> int:
    """Return the largest difference inside a block, 0 counted in."""
    return int((np.maximum(blocks.max(-1), 0) - np.minimum(blocks.min(-1), 0)).max())


def _packed(blocks: Integers, bits: int) -> tuple[Array, Array | None]:
    """Return the bytes of blocks, and their zero points where the middle isn't right for all."""
    middle, most = 1 << (bits - 1), (1 << bits) - 1
    zeros = np.full(blocks.shape[:2], middle)
    outside = ((blocks + middle < 0) | (blocks + middle > most)).any(-1)
    zeros[outside] = -np.minimum(blocks.min(-1), 0)[outside]
    fields = (blocks + zeros[..., None]).astype(np.uint8)
    q = fields if bits == 8 else fields[..., ::2] | (fields[..., 1::2] << 4)
    return np.ascontiguousarray(q), zeros.astype(np.uint8) if outside.any() else None
