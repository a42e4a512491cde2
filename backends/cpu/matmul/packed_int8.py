"""MatMulPacked summed as integers: blocks of INT8, or of fixed-point numbers, times packed weights.

Each block of a row of x becomes bytes once, in scratch; its exact sum with a column's weights, less
the zero point times the sum of the bytes, is scaled by both scales and added in float, block after
block. So all kernels that round give the same bits.

Where x may not be rounded to bytes, a block becomes fixed-point numbers of three bytes in steps of
one power of two: three sums of bytes take fewer instructions than floats made of the weights, and
numbers in steps of it are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atc.backends.cpu.matmul.cost import Ahead, asked_by_one_row, column_panels, row_tiles
from atc.backends.cpu.matmul.int8 import DOT_FEATURES, LEAN_FEATURES
from atc.backends.cpu.matmul.packed import UNPACKING
from atc.backends.cpu.matmul.packed_tile import PackedTiles, beside_memory
from atc.backends.cpu.matmul.portable import product_rate
from atc.backends.cpu.matmul.shared_panels import SharedParams
from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.machine import CALL
from atc.backends.render.expr import load
from atc.backends.render.loops import epilogue_lines
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Array, DType
from atc.ir.ops.quantize import MatMulPacked

WORD = 4
"""Bytes of a word: products that a step sums."""
WIDTHS = (4, 2, 1, 3)
"""Vectors of a panel."""
SPARE, SPARE_PAIRS, SPARE_SPLIT = 5, 4, 10
"""Registers beside sums and words: a mask, an operand, scales, and what a slow v_dot4 takes; where
sums are of pairs, these are few, as sums of floats wait in memory."""
ROUNDING = 4.0
"""Cycles to round a number of x."""
SPLITTING = 1.0
"""Cycles to make a number of x one of three bytes."""
JOINED = 5.0
"""Cycles to join three sums of a block, and to scale and add them."""
FEW = 4
"""Rows up to which sums of pairs take less time than floats: on a Zen 3 one takes 0.7 of it, 64
take 1.2. Where the run counts the rows, prompts wait so that a language model's words don't."""
LONGEST = 256
"""The longest block whose sums of digits times weights of 8 bits fit 32 bits."""
SPLIT, PAIRED = 3.0, 2.0
"""How much longer a v_dot4 of small numbers takes than one instruction, and sums of pairs."""
PAIRS = 4
"""Words of 4 bits whose sums of pairs a lane of 16 bits holds: 16 products of 15 and -128."""


def fits(w: Workload[MatMulPacked]) -> bool:
    """Return whether a workload has weights whose words this file knows."""
    op, zeros = w.op, w.inputs[3]
    words = op.bits in (4, 8) and op.block % 8 == 0 and not is_dynamic((op.n, op.k))
    return words and (zeros is None or zeros.dtype is DType.UINT8) and op.m != 0


def takes(w: Workload[MatMulPacked]) -> bool:
    """Return whether a workload may be rounded."""
    return w.op.rounds and fits(w)


def summed_in_pairs(op: MatMulPacked, target: Target) -> int:
    """Return the words whose products, with weights of 4 bits, are summed in lanes of 16 bits.

    That is where x86 lacks an instruction that sums four of bytes; 0 elsewhere, and for blocks that
    such parts don't fill.
    """
    words = op.block * op.bits // 32
    able = target.simd in ("avx2", "avx512") and not DOT_FEATURES & target.features
    able = able and op.bits == 4 and (words < PAIRS or words % PAIRS == 0)
    return min(words, PAIRS) if able else 0


def split(op: MatMulPacked, target: Target) -> float:
    """Return how much longer a sum of four products takes than one instruction."""
    if DOT_FEATURES & target.features:
        return 1.0
    return PAIRED if summed_in_pairs(op, target) else SPLIT


def scratch_parts(op: MatMulPacked, digits: int = 1, sums: int = 1) -> tuple[int, int, int]:
    """Return where in scratch, in bytes, the blocks' scales and sums and, behind all, more lie.

    A number has so many digits, a block so many sums.
    """
    scales = -(-op.m * op.blocks * op.block * digits // 64) * 64
    begin = scales + 4 * op.m * op.blocks
    return scales, begin, -(-(begin + 4 * op.m * op.blocks * sums) // 64) * 64


class MatMulRounding(Kernel[MatMulPacked]):
    """MatMulPacked of rounded rows in plain C."""

    name = "matmul_packed_bytes"
    op = MatMulPacked
    template = "cpu/matmul/packed_int8.c.j2"
    dynamic = True
    precision = "int8"

    def accepts(self, w: Workload[MatMulPacked], target: Target) -> bool:
        """Rows that may be rounded, weights of 4 or 8 bits."""
        return takes(w)

    def scratch(self, w: Workload[MatMulPacked], params: Params, target: Target) -> int:
        """Reserve the rounded rows, their scales and sums, and one row of unpacked weights."""
        op = w.op
        return scratch_parts(op)[2] + op.blocks * op.block

    def values(
        self, w: Workload[MatMulPacked], params: Params, target: Target
    ) -> dict[str, object]:
        """Return the unpacking of a byte."""
        op = w.op
        after, value = epilogue_lines(op.epilogue, w, "value", ["i", "j"], 4)
        return {
            "op": op, "parts": scratch_parts(op), "after": after, "value": value,
            "scale": load(w.input(2).dtype, "x2[at]"),
            "zero": str(1 << (op.bits - 1)) if w.inputs[3] is None else "x3[at]",
        }  # fmt: skip

    def cost(self, w: Workload[MatMulPacked], params: Params, target: Target) -> float:
        """Cycles: fewer than of the kernel that unpacks floats."""
        op = w.op
        return 0.8 * op.n * op.k * (op.m / product_rate(target) + UNPACKING)


def pack_nibbles(op: MatMulPacked, q: Array, width: int) -> Array:
    """Return weights as words [n / width][blocks * block / each][width], `each` weights in one.

    A word of 8 bits holds 4 that follow each other along the depth; one of 4 bits 8, the first 4 in
    the lower halves of its bytes. Columns past the last are zeros.
    """
    panels = -(-op.n // width)
    rows = q.astype(np.uint8).reshape(op.n, -1)
    if op.bits == 4:
        fields = np.stack([rows & 15, rows >> 4], -1).reshape(op.n, -1, 2, WORD)
        rows = (fields[:, :, 0] | (fields[:, :, 1] << 4)).reshape(op.n, -1)
    words = np.zeros((panels * width, rows.shape[1] // WORD, WORD), np.uint8)
    words[: op.n] = rows.reshape(op.n, -1, WORD)
    ordered = words.reshape(panels, width, -1, WORD).swapaxes(1, 2)
    return np.ascontiguousarray(ordered).reshape(-1)


class MatMulRoundingTile(PackedTiles):
    """MatMulPacked of rounded rows."""

    name = "matmul_packed_bytes_tile"
    template = "cpu/matmul/packed_int8_tile.c.j2"
    precision = "int8"
    digits = 1
    """Bytes of a number of x."""
    sums = 1
    """Sums of a block of x."""
    preparing = ROUNDING
    """Cycles to make digits of a number of x."""

    def accepts(self, w: Workload[MatMulPacked], target: Target) -> bool:
        """Rows that may be rounded."""
        return takes(w) and super().accepts(w, target)

    def high(self, w: Workload[MatMulPacked], nv: int, target: Target) -> int:
        """Rows, whose every vector has a sum of integers for each digit, beside words and their
        scales; sums of floats have registers, too, where there is one digit."""
        spare = SPARE if LEAN_FEATURES & target.features else SPARE_SPLIT
        spare = SPARE_PAIRS if summed_in_pairs(w.op, target) else spare
        each = self.digits if self.digits > 1 else 2
        return (target.vector_registers - spare - 2 * nv) // (each * nv)

    def pack(self, op: MatMulPacked, q: Array, width: int) -> Array:
        """Return the weights in words of four numbers, or of eight nibbles."""
        return pack_nibbles(op, q, width)

    def scratch(self, w: Workload[MatMulPacked], params: SharedParams, target: Target) -> int:
        """Reserve the rounded rows, their scales and sums."""
        return self.parts(w.op)[2] * params.partitions

    def parts(self, op: MatMulPacked) -> tuple[int, int, int]:
        """Return where in scratch, in bytes, scales and sums begin, and where they end."""
        return scratch_parts(op, self.digits, self.sums)

    def values(
        self, w: Workload[MatMulPacked], params: SharedParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles, and where the rounded rows lie."""
        op, zeros = w.op, w.inputs[3] is not None
        parameters = [
            "const int8_t *x", "const float *steps", "const int32_t *sums", "const uint8_t *words",
            f"const {w.input(2).dtype.c} *scales", *["const uint8_t *zeros"] * zeros,
        ]  # fmt: skip
        return {
            **self.tile_values(w, params, target, parameters), "zeros": zeros,
            "depth": op.blocks * op.block, "digits": self.digits, "parts": self.parts(op),
            "pairs": summed_in_pairs(op, target), "sums_of": self._sums_of,
        }  # fmt: skip

    def _sums_of(self, function: Mapping[str, Any]) -> list[str]:
        """Return the names of the sums of a tile's function."""
        ends = [f"_{d}" for d in range(self.digits)] if self.digits > 1 else [""]
        rows, vectors = range(function["tile"].rows), range(function["panel"].vectors)
        return [f"s{r}_{v}{end}" for r in rows for v in vectors for end in ends]

    def cost(self, w: Workload[MatMulPacked], params: SharedParams, target: Target) -> float:
        """Cycles of preparing x and of all tiles, and of waiting for memory."""
        op, tiles = w.op, 0.0
        for panel in column_panels(op.n, params.nv, lanes(target)):
            for tile in row_tiles(op.m, params.mr):
                block = self.block_cycles(op, tile.rows, panel.vectors, target)
                tiles += panel.count * tile.count * (CALL + op.blocks * block)
        return op.m * op.k * self.preparing + beside_memory(w, tiles, target.machine)

    def block_cycles(self, op: MatMulPacked, rows: int, vectors: int, target: Target) -> float:
        """Return the cycles of a block of so many rows by so many vectors of columns."""
        dot = 0.5 * split(op, target)
        sums, unpacking = rows * vectors, vectors * op.block / 8 * (2.0 if op.bits == 4 else 1.0)
        return op.block / WORD * max(sums * dot, 1.2) + unpacking + 2.5 * sums + 4


class MatMulFixedPointTile(MatMulRoundingTile):
    """MatMulPacked of rows of fixed-point numbers."""

    name = "matmul_packed_fixed_tile"
    precision = "float32"
    digits, sums, preparing = 3, 2, SPLITTING

    def accepts(self, w: Workload[MatMulPacked], target: Target) -> bool:
        """Weights whose sums with bytes are few instructions, whole blocks of whole vectors."""
        op, width = w.op, lanes(target)
        if op.k % op.block or op.block % width or op.block > LONGEST:
            return False
        few = op.bits < 8 or bool(DOT_FEATURES & target.features)
        return few and fits(w) and PackedTiles.accepts(self, w, target)

    def parameters(self, w: Workload[MatMulPacked], target: Target) -> Sequence[SharedParams]:
        """Tiles that fill the registers; where sums are of pairs, for few rows or any."""
        many = not is_dynamic(w.op.m) and w.op.m > FEW
        return () if many and summed_in_pairs(w.op, target) else super().parameters(w, target)

    def ahead(self, target: Target) -> Ahead:
        """Ask for more lines than kernels that wait for memory all the time."""
        return asked_by_one_row(target.machine, computes=True)

    def exact(self, params: SharedParams) -> bool:
        """Numbers far below the largest one of their block lose digits."""
        return False

    def block_cycles(self, op: MatMulPacked, rows: int, vectors: int, target: Target) -> float:
        """Return the cycles of a block, three sums of bytes for each of floats."""
        dots = target.machine.fma_rate(target.vector_bytes) / split(op, target)
        sums, unpacking = rows * vectors, vectors * op.block / 8 * (1.0 if op.bits == 4 else 0.5)
        return op.block / WORD * sums * self.digits / dots + unpacking + JOINED * sums


KERNELS = (MatMulRounding(), MatMulRoundingTile(), MatMulFixedPointTile())
