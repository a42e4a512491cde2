"""MatMul of bytes in AMX's tiles: exact INT32 sums of u8 x s8, 32 x 32 results a block.

As `amx.matmul`, with four bytes of a row of A in the place of a pair; zero points as in
`cpu.matmul.int8`, whose words of packed B are these tiles' rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from atc.backends.cpu.amx.cost import (
    COMPARED,
    FIRST,
    PRODUCT,
    REACHED,
    STREAM,
    end_cycles,
    far_cycles,
    l2_share,
)
from atc.backends.cpu.amx.matmul import NEAR, SIDE, RowBlock, row_blocks, step_orders
from atc.backends.cpu.matmul.bf16 import packed_base
from atc.backends.cpu.matmul.int8 import BYTES, WORD, operand_type, pack_int8x4, zeros
from atc.backends.cpu.matmul.int8_text import BytesEpilogueFunctions, has_typed_epilogue
from atc.backends.cpu.matmul.text import wrapped
from atc.backends.kernel import Kernel, Pack, Params, Workload
from atc.backends.render.expr import address
from atc.backends.render.loops import loop_names
from atc.backends.target import Target
from atc.ir.graph import Array, DType
from atc.ir.ops import MatMul
from atc.ir.view import View, dense

STEP = 64
"""The depth of a step of products."""
TILES = 2048
"""Bytes of a step of packed B: two tiles."""
COPIED = 6.0
"""Cycles to copy a row of A of a step."""


class MatMulAmxBytes(Kernel[MatMul]):
    """MatMul of bytes by constant ones in tiles."""

    name = "matmul_amx_bytes"
    op = MatMul
    template = "cpu/amx/matmul_int8.c.j2"
    portable = False
    bitwise_reproducible = True
    headers = ("tiles",)

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """Bytes, dense rows of A, symmetric constant B, and an epilogue in vectors."""
        op = w.op
        types = {None if t is None else t.dtype for t in w.inputs[:2]}
        able = {"amx_tile", "amx_int8"} <= target.features and types <= BYTES
        if not able or op.accumulator is not DType.INT32 or 0 in (*op.loops, op.k):
            return False
        p, q = zeros(w)
        known = w.constant[1] and q == 0 and 0 <= p < 256
        return known and op.a_view.strides[-1] == 1 and has_typed_epilogue(op.epilogue, w, 2)

    def packs(self, w: Workload[MatMul], params: Params, target: Target) -> Mapping[int, Pack]:
        """Tiles of B in the order of use, behind what the columns' sums start with."""
        shape = _shape(w, target)
        return {1: lambda b: pack_byte_tiles(w, shape, b)}

    def scratch(self, w: Workload[MatMul], params: Params, target: Target) -> int:
        """Reserve a block of A's rows, and two blocks of results."""
        shape = _shape(w, target)
        return shape.sums + 2 * 4 * SIDE * SIDE

    def values(self, w: Workload[MatMul], params: Params, target: Target) -> dict[str, object]:
        """Sizes, how A is read, the order of a step, and the epilogue."""
        op, (p, _), shape = w.op, zeros(w), _shape(w, target)
        batch = loop_names("b", op.batch)
        outer = tuple(v for v, _ in batch)
        finish = BytesEpilogueFunctions(op.epilogue, w, outer, 2)
        lines = -(-TILES // 64 // shape.largest)
        return {
            "batch": batch, "op": op, "shape": shape, "started": p != 0, "lines": lines,
            "text": _Text(finish, p != 0), "orders": step_orders(1, lines),
            "ahead": 4 * NEAR if shape.largest == 1 else 0, "each": -(-SIDE // shape.steps),
            "epilogues": finish.functions(op.n >= 16, op.n % 16 != 0),
            "signed": operand_type(w, 0) is DType.INT8, "a_type": operand_type(w, 0).c,
            "a_base": address(View(op.a_view.strides[:-2], op.a_view.offset), [*outer]),
            "am": op.a_view.strides[-2], "b_base": packed_base(op, outer, shape.packed),
            "y_base": address(View(dense(op.loops).strides[:-2]), [*outer]),
            "y_type": finish.result.c, "rest": op.k - (shape.steps - 1) * STEP,
        }  # fmt: skip

    def cost(self, w: Workload[MatMul], params: Params, target: Target) -> float:
        """Cycles of products, copying A, epilogues, and waiting for memory."""
        op, shape = w.op, _shape(w, target)
        blocks = -(-op.m // SIDE) * shape.panels
        step = 4 * PRODUCT + SIDE * 64 / REACHED
        cycles = blocks * (shape.steps * step + 2 * SIDE * end_cycles(w))
        large = shape.packed > l2_share(target.machine)
        reread = sum(b.count for b in shape.blocks) - 1 if large else 0
        cycles += shape.packed / FIRST + reread * shape.packed / STREAM
        cycles += op.m * shape.steps * COPIED + far_cycles(target.machine, op.m * op.k)
        return COMPARED * prod(op.batch) * (cycles + 600.0)


@dataclass(frozen=True)
class _Shape:
    """Steps of the depth, panels of 32 columns, blocks of rows, and sizes in bytes: of packed B's
    starts and of a batch of it, and of A in scratch, behind which sums lie."""

    steps: int
    panels: int
    blocks: tuple[RowBlock, ...]
    largest: int
    """Blocks of 32 rows that share a panel of B."""
    starts: int
    packed: int
    sums: int


def _shape(w: Workload[MatMul], target: Target) -> _Shape:
    op, (p, _) = w.op, zeros(w)
    steps, panels = -(-op.k // STEP), -(-op.n // SIDE)
    blocks = row_blocks(op.m, steps * STEP, target)
    starts = 4 * panels * SIDE if p else 0
    return _Shape(
        steps, panels, blocks, -(-blocks[0].rows // SIDE), starts,
        starts + panels * steps * TILES, steps * blocks[0].padded * STEP,
    )  # fmt: skip


def pack_byte_tiles(w: Workload[MatMul], shape: _Shape, b: Array) -> Array:
    """Return constant B as bytes [*batch][INT32 starts [n], tiles].

    The tiles are [n / 32][k / 64][2 tiles][16 words][16 columns][4], filled up with zeros; the
    starts are there where A's zero point isn't 0.
    """
    words = pack_int8x4(w, b, SIDE)
    starts, rest = words[:, : shape.starts], words[:, shape.starts :]
    words = rest.reshape(len(rest), shape.panels, -1, SIDE, WORD)
    room = shape.steps * STEP // WORD - words.shape[2]
    padded = np.pad(words, ((0, 0), (0, 0), (0, room), (0, 0), (0, 0)))
    split = padded.reshape(len(rest), shape.panels, shape.steps, 16, 2, 16, WORD)
    tiles = split.transpose(0, 1, 2, 4, 3, 5, 6).reshape(len(rest), -1)
    return np.ascontiguousarray(np.concatenate([starts, tiles], 1))


@dataclass(frozen=True)
class _Text:
    """The C of the functions' heads and calls."""

    finish: BytesEpilogueFunctions
    started: bool

    @property
    def given(self) -> str:
        """The last arguments of every call: variables of the same names."""
        outer = [v for v in self.finish.places if v in self.finish.outer]
        return ", ".join([*["starts"] * self.started, *outer, "all_y", *self.finish.extras])

    def head(self, start: str, *parameters: str) -> str:
        """Return a function's head with these parameters and what the epilogue needs."""
        own = ["const int32_t *starts"] * self.started
        own += [f"ptrdiff_t {v}" for v in self.finish.places if v in self.finish.outer]
        own += [f"{self.finish.result.c} *all_y", *self.finish.operands]
        return wrapped(start, [*parameters, *own])

    def multiply(self, tiles: int, shared: bool) -> str:
        """Return the head of the function that multiplies a block of so many row tiles."""
        parameters = ["const uint8_t *a", "const int8_t *b", "ptrdiff_t step"]
        parameters += ["const int8_t *next"] * shared
        start = f"static K_NOINLINE void multiply_{tiles}("
        return self.head(start, *parameters, "int32_t *sums", "waiting *w")

    def store(self, vector: int, part: int = 0) -> str:
        """Return the statement that finishes and stores a row's vector, or some lanes of it."""
        at = f" + {16 * vector}" if vector else ""
        value = f"v_i32_load(sums{at})"
        if self.started:
            value = f"v_i32_add({value}, v_i32_load(starts + j{at}))"
        return self.finish.store(f"y{at}", value, 0, 16 * vector, part)


KERNELS = (MatMulAmxBytes(),)
