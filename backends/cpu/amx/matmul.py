"""MatMul in AMX's tiles: bf16, or bf16x3, three products of numbers split into two bfloat16.

A block of 32 x 32 results is four tiles. A is rounded or split into scratch when the network runs,
B when compiling where it is constant. bf16x3 leaves out the product of both lower parts and sums
the small products first; where a result isn't finite, its row is recomputed in plain float, for
parts of an infinity times parts of a number make NaN. A block's epilogue waits until the next
block's products run beside it.

Blocks, order and prefetch as measured on Sapphire Rapids with hand-made code; this was never timed.
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
    SPILLED,
    STREAM,
    end_cycles,
    far_cycles,
    l2_share,
    splitting,
)
from atc.backends.cpu.matmul.bf16 import is_float_product, kept_batch, packed_base
from atc.backends.cpu.matmul.cost import largest_divisor
from atc.backends.cpu.matmul.operands import read_mode
from atc.backends.cpu.matmul.text import EpilogueFunctions, wrapped
from atc.backends.kernel import Kernel, Pack, Params, Workload
from atc.backends.render.bfloat16 import in_parts
from atc.backends.render.expr import address
from atc.backends.render.loops import loop_names
from atc.backends.render.vector_expr import vector_epilogue
from atc.backends.target import Target
from atc.ir.graph import Array
from atc.ir.ops import MatMul
from atc.ir.view import View, dense, gather_view

SIDE, STEP = 32, 32
"""Rows and columns of a block of results, and the depth of a step of products."""
DEEP, DEPTH_BLOCK = 1024, 768
"""The depth above which it is blocked in bf16x3, and the largest block."""
NEAR = 4096
"""Floats that a single block of rows, which streams B once, asks for in advance."""
TRANSPOSED, GATHERED = 64.0, 300.0
"""Cycles to transpose a tile of a panel of B, and to read a tile's numbers one by one."""
ROW_END, BLOCK_END = 12.0, 90.0
"""Cycles to finish a row of a block, and to store its tiles and begin another."""


class MatMulAmx(Kernel[MatMul]):
    """float MatMul in tiles, one product of bfloat16."""

    name = "matmul_amx_bf16"
    op = MatMul
    template = "cpu/amx/matmul.c.j2"
    portable = False
    bitwise_reproducible = True
    precision = "bf16"
    headers = ("bf16", "tiles")
    planes = 1

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """Floats, and an epilogue in vectors."""
        able = {"amx_tile", "amx_bf16"} <= target.features and is_float_product(w)
        return able and vector_epilogue(w.op.epilogue, w, target, 2)

    def packs(self, w: Workload[MatMul], params: Params, target: Target) -> Mapping[int, Pack]:
        """Tiles of constant B in the order of use."""
        op, planes = w.op, self.planes
        deep = _shape(w, planes, target).deep
        return {1: lambda b: pack_tiles(op, b, planes, deep)} if w.constant[1] else {}

    def scratch(self, w: Workload[MatMul], params: Params, target: Target) -> int:
        """Reserve a block of A's rows, two of results, a panel of B, and sums of depth blocks."""
        return 4 * _shape(w, self.planes, target).room

    def values(self, w: Workload[MatMul], params: Params, target: Target) -> dict[str, object]:
        """Sizes, how both operands are read, the order of a step, and the epilogue."""
        op, mode, shape = w.op, read_mode(w), _shape(w, self.planes, target)
        batch = loop_names("b", op.batch)
        outer = [v for v, _ in batch]
        finish = EpilogueFunctions(op.epilogue, tuple(outer), 2)
        bk, bn = op.b_view.strides[-2:]
        lines = -(-shape.step // 16 // shape.largest)
        return {
            "batch": batch, "op": op, "mode": mode, "planes": self.planes, "shape": shape,
            "text": _Text(finish, op.n, self.planes), "orders": step_orders(self.planes, lines),
            "lines": lines, "ahead": NEAR if shape.largest == 1 else 0,
            "each": -(-SIDE // shape.deep),
            "epilogues": finish.functions(op.n >= 16, op.n % 16 != 0),
            "a_base": address(View(op.a_view.strides[:-2], op.a_view.offset), outer),
            "am": op.a_view.strides[-2], "ak": op.a_view.strides[-1], "bk": bk, "bn": bn,
            "b_base": packed_base(op, outer, shape.panels * shape.steps * shape.step)
            if mode == "packed" else address(View(op.b_view.strides[:-2], op.b_view.offset), outer),
            "y_base": address(View(dense(op.loops).strides[:-2]), outer),
            "rest": op.k - (shape.steps - 1) * STEP,
        }  # fmt: skip

    def cost(self, w: Workload[MatMul], params: Params, target: Target) -> float:
        """Cycles of products, splitting both operands, epilogues, and waiting for memory."""
        op, mode, shape = w.op, read_mode(w), _shape(w, self.planes, target)
        blocks, machine = -(-op.m // SIDE) * shape.panels, target.machine
        step = {1: 4, 2: 12}[self.planes] * PRODUCT + SIDE * 64 * self.planes / REACHED
        cycles = blocks * (shape.steps * step + 2 * SIDE * end_cycles(w))
        packed = shape.panels * shape.steps * shape.step * 4
        if mode == "packed":
            reread = sum(b.count for b in shape.blocks) - 1 if packed > l2_share(machine) else 0
            cycles += packed / FIRST + reread * packed / STREAM
        else:
            cycles += shape.panels * shape.steps * panel_cycles(mode, self.planes)
            cycles += op.k * op.n * 4 / SPILLED if op.k * op.n * 4 > l2_share(machine) else 0.0
        split = splitting(self.planes) + (0.0 if op.a_view.strides[-1] == 1 else GATHERED / 2)
        a = op.m * op.k * 4
        cycles += op.m * shape.steps * split
        cycles += a / FIRST if w.constant[0] else far_cycles(machine, a)
        return COMPARED * prod(op.batch) * (cycles + 600.0)


class MatMulAmxSplit(MatMulAmx):
    """float MatMul in tiles, three products of split parts."""

    name = "matmul_amx_bf16x3"
    precision = "bf16x3"
    planes = 2


def panel_cycles(mode: str, planes: int) -> float:
    """Return the cycles to split a step of a panel of B, 32 x 32 numbers, by how they lie."""
    pairs = SIDE * (splitting(planes) + planes)
    return pairs + {"rows": 0.0, "columns": 2 * planes * TRANSPOSED}.get(mode, 4 * GATHERED)


@dataclass(frozen=True)
class RowBlock:
    """`count` blocks of `rows` rows of A from row `first`: `whole` tiles of 32, one of `rest`."""

    first: int
    count: int
    rows: int

    @property
    def padded(self) -> int:
        """Rows with those that fill the last tile."""
        return -(-self.rows // 16) * 16

    @property
    def whole(self) -> int:
        """Blocks of 32 rows, two tiles each."""
        return -(-self.rows // SIDE) - self.single

    @property
    def single(self) -> int:
        """Whether the last block is one tile."""
        return int(0 < self.rows % SIDE <= 16)


def row_blocks(m: int, row: int, target: Target) -> tuple[RowBlock, ...]:
    """Cut m rows of so many bytes in scratch into equal blocks and one of what is left.

    A block is multiplied by all of B before the next rows are split: a cache holds it meanwhile.
    """
    count = -(-m * row // l2_share(target.machine))
    rows = min(m, -(-m // count // SIDE) * SIDE)
    cut = [(0, m // rows, rows), (m // rows * rows, 1, m % rows)]
    return tuple(RowBlock(first, times, n) for first, times, n in cut if n)


@dataclass(frozen=True)
class _Shape:
    """Steps of the depth, of a block of it, panels of 32 columns, floats of a step of packed B,
    blocks of rows, and where the parts of scratch begin (in floats)."""

    steps: int
    deep: int
    panels: int
    step: int
    blocks: tuple[RowBlock, ...]
    largest: int
    """Blocks of 32 rows that share a panel of B."""
    padded: int
    """Rows of A in scratch."""
    sums: int
    panel: int
    kept: int
    room: int


def _shape(w: Workload[MatMul], planes: int, target: Target) -> _Shape:
    op = w.op
    steps, panels = -(-op.k // STEP), -(-op.n // SIDE)
    deep = steps
    if planes == 2 and op.k > DEEP and w.constant[1]:
        deep = largest_divisor(steps, DEPTH_BLOCK // STEP)
        deep = deep if 2 * deep * STEP >= DEPTH_BLOCK else steps
    blocks = row_blocks(op.m, steps * planes * 64, target)
    rows, padded = blocks[0].rows, blocks[0].padded
    a = steps * padded * planes * 16
    panel = 0 if w.constant[1] else steps * planes * 512
    kept = 0 if deep == steps else panels * -(-rows // SIDE) * SIDE * SIDE
    after = a + 2 * SIDE * SIDE
    return _Shape(
        steps, deep, panels, planes * 512, blocks, -(-rows // SIDE), padded, sums=a, panel=after,
        kept=after + panel, room=after + panel + kept,
    )  # fmt: skip


def pack_tiles(op: MatMul, b: Array, planes: int, deep: int) -> Array:
    """Return constant B [*batch, k, n] as tiles of pairs.

    [*batch][k / deep][n / 32][deep / 32][lower, upper][2 tiles][16 pairs][16 columns]; pair j of a
    step is of the numbers j and 16 + j. Only the upper, rounded to nearest, where planes is 1.
    """
    batch, steps, panels = kept_batch(op), -(-op.k // STEP), -(-op.n // SIDE)
    full = gather_view(b, (*batch, op.k, op.n), op.b_view)
    padded = np.zeros((prod(batch), steps * STEP, panels * SIDE), np.float32)
    padded[:, : op.k, : op.n] = full.reshape(-1, op.k, op.n)
    shape = (planes, -1, steps // deep, deep, 2, 16, panels, 2, 16)
    ordered = np.stack(in_parts(padded, planes)).reshape(shape).transpose(1, 2, 6, 3, 0, 7, 5, 8, 4)
    return np.ascontiguousarray(ordered).view(np.float32)[..., 0]


_ONE = "A0 W0 00 W1 01 A1 10 11"
_THREE = "A0 W0 00 W1 01 A1 10 11 W2 00 W3 01 10 11 A2 00 01 A3 10 11"


def step_orders(planes: int, lines: int) -> dict[int, list[tuple[str, int, int]]]:
    """Return a step's instructions by row tiles: (kind, i, j), each load before its first product.

    A i is row tile i % 2 of plane i // 2, W i column tile i % 2 of plane i // 2. After each product
    come its share of the `lines` of the next panel: bursts would jam what the tiles wait for.
    """
    found = {}
    for tiles in (1, 2):
        order: list[tuple[str, int, int]] = []
        words = (_ONE if planes == 1 else _THREE).split()
        kept = [x for x in words if not (tiles == 1 and _of_second(x))]
        products = sum(x[0].isdigit() for x in kept)
        done = asked = 0
        for word in kept:
            if word[0] in "AW":
                order.append((word[0], int(word[1]), 0))
                continue
            order.append(("dot", int(word[0]), int(word[1])))
            done += 1
            while asked < lines * done // products:
                order.append(("ask", asked, 0))
                asked += 1
        found[tiles] = order
    return found


def _of_second(word: str) -> bool:
    """Return whether an instruction is of the second row tile."""
    return word[0] == "1" or (word[0] == "A" and int(word[1]) % 2 == 1)


@dataclass(frozen=True)
class _Text:
    """The C of the functions' heads and calls."""

    finish: EpilogueFunctions
    n: int
    planes: int

    @property
    def _names(self) -> list[str]:
        """Variables of a call that the epilogue and the exact rows read, under the same names."""
        outer = [v for v in self.finish.places if v in self.finish.outer]
        exact = ["all_a", "all_b"] * (self.planes == 2)
        return [*exact, *outer, "all_y", *self.finish.extras]

    @property
    def _parameters(self) -> list[str]:
        outer = [v for v in self.finish.places if v in self.finish.outer]
        exact = ["const float *all_a", "const float *all_b"] * (self.planes == 2)
        _, memory = self.finish.parameters
        return [*exact, *(f"ptrdiff_t {v}" for v in outer), "float *all_y", *memory[1:]]

    @property
    def given(self) -> str:
        """The last arguments of every call."""
        return ", ".join(self._names)

    def head(self, start: str, *parameters: str) -> str:
        """Return a function's head with these parameters and what the epilogue needs."""
        return wrapped(start, [*parameters, *self._parameters])

    def multiply(self, tiles: int, shared: bool, blocked: bool) -> str:
        """Return the head of the function that multiplies a block of so many row tiles."""
        parameters = ["const float *a", "const float *b", "ptrdiff_t step"]
        parameters += ["const float *next"] * shared + ["const float *before"] * blocked
        start = f"static K_NOINLINE void multiply_{tiles}("
        return self.head(start, *parameters, "float *sums", "waiting *w")

    def value(self, vector: int, part: int = 0) -> str:
        """Return the C value of a row's vector of results, or of the first lanes of it."""
        load = f"v_load(sums{f' + {16 * vector}' if vector else ''})"
        return self.finish.value(load, 0, 16 * vector, part)


KERNELS = (MatMulAmx(), MatMulAmxSplit())
