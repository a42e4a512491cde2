"""MatMul of bytes in AMX's tiles: exact INT32 sums of u8 x s8, 32 x 32 results a block.

As `amx.matmul`, with four bytes of a row of A in the place of a pair; zero points as in
`cpu.matmul.int8`, whose words of packed B are these tiles' rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from atc.backends.cpu.amx.matmul import (
    Elements,
    Shape,
    Text,
    TiledMatMul,
    knows_matrices,
    shape_of,
)
from atc.backends.cpu.amx.products import LINE
from atc.backends.cpu.amx.row_blocks import SIDE
from atc.backends.cpu.matmul.int8 import BYTES, WORD, operand_type, pack_int8x4, zeros
from atc.backends.cpu.matmul.int8_text import BytesEpilogueFunctions, has_typed_epilogue
from atc.backends.kernel import Pack, Params, Workload
from atc.backends.target import Target
from atc.ir.graph import Array, DType
from atc.ir.ops import MatMul

BYTE_WORDS = Elements("uint8_t", "int8_t", "int32_t", 1, 64, "TILE_DOT_U8S8", "v_i32_load")
"""Unsigned bytes times signed ones, summed exactly."""
COPIED = 6.0
"""Cycles to copy a row of A of a step."""


class MatMulAmxBytes(TiledMatMul):
    """MatMul of bytes by constant ones in tiles."""

    name = "matmul_amx_bytes"
    template = "cpu/amx/matmul_int8.c.j2"
    headers = ("tiles",)
    elements = BYTE_WORDS

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """Bytes, dense rows of A, symmetric constant B, and an epilogue in vectors."""
        op = w.op
        types = {None if t is None else t.dtype for t in w.inputs[:2]}
        able = {"amx_tile", "amx_int8"} <= target.features and types <= BYTES
        if not able or op.accumulator is not DType.INT32 or 0 in (*op.loops, op.k):
            return False
        p, q = zeros(w)
        known = w.constant[1] and knows_matrices(w) and q == 0 and 0 <= p < 256
        return known and op.a_view.strides[-1] == 1 and has_typed_epilogue(op.epilogue, w, 2)

    def packs(self, w: Workload[MatMul], params: Params, target: Target) -> Mapping[int, Pack]:
        """Tiles of B in the order of use, behind what the columns' sums start with."""
        shape = self.shape(w, target)
        return {1: lambda b: pack_byte_tiles(w, shape, b)}

    def shape(self, w: Workload[MatMul], target: Target) -> Shape:
        """Return how a product is cut; sums start with numbers where A has a zero point."""
        starts = 4 * -(-w.op.n // SIDE) * SIDE if _started(w) else 0
        return shape_of(w, BYTE_WORDS, target, starts)

    def text(self, w: Workload[MatMul], outer: tuple[str, ...]) -> Text:
        """Functions know what sums start with."""
        finish, started = BytesEpilogueFunctions(w.op.epilogue, outer, 2, w=w), _started(w)
        own = (("const int32_t *", "starts"),) * started
        return Text(finish, BYTE_WORDS, own, started)

    def placing(self, op: MatMul) -> float:
        """Copy a row."""
        return COPIED

    def values(self, w: Workload[MatMul], params: Params, target: Target) -> dict[str, object]:
        """Sizes and texts, and whether bytes of A are made unsigned."""
        signed = operand_type(w, 0) is DType.INT8
        return {**super().values(w, params, target), "place": "copy_rows", "signed": signed}


def _started(w: Workload[MatMul]) -> bool:
    """Return whether A has a zero point."""
    return zeros(w)[0] != 0


def pack_byte_tiles(w: Workload[MatMul], shape: Shape, b: Array) -> Array:
    """Return constant B as bytes [*batch][INT32 starts [n], tiles].

    The tiles are [n / 32][k / 64][2 tiles][16 words][16 columns][4], filled up with zeros; the
    starts are there where A's zero point isn't 0.
    """
    words = pack_int8x4(w, b, SIDE)
    starts, rest = words[:, : shape.starts], words[:, shape.starts :]
    words = rest.reshape(len(rest), shape.panels, -1, SIDE, WORD)
    room = shape.steps * LINE // WORD - words.shape[2]
    padded = np.pad(words, ((0, 0), (0, 0), (0, room), (0, 0), (0, 0)))
    split = padded.reshape(len(rest), shape.panels, shape.steps, 16, 2, 16, WORD)
    tiles = split.transpose(0, 1, 2, 4, 3, 5, 6).reshape(len(rest), -1)
    return np.ascontiguousarray(np.concatenate([starts, tiles], 1))


KERNELS = (MatMulAmxBytes(),)
