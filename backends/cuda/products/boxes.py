"""Layouts of operands of products for the copy engine (TMA), as they are or packed; their boxes.

The engine reads boxes of tensors whose strides are multiples of 16 bytes, and writes rows of 128
bytes, swizzled, to shared memory. Constants with another layout are packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from atc.backends.cuda.products.constants import packed_batch, packed_row, parts_of, rows_of
from atc.backends.cuda.products.tiles import Operand, Product
from atc.backends.kernel import TensorMap
from atc.ir.graph import Array, DType, row_major
from atc.ir.ops import MatMul
from atc.ir.view import View

ROW, CHUNK = 128, 16
"""Bytes of a tile's row, and the alignment of tensors' strides."""

ATOM = 64
"""Rows of a warpgroup, and elements in a row of a transposed tile."""


@dataclass(frozen=True)
class Form:
    """A kind of product: the function that emulates it, its types in PTX, the bytes of an element.

    `type` is the driver's number of the first operand's stored type, which has `stored` bytes.
    Floats are converted to `planes` bfloat16 in registers; other types are multiplied as they are
    (`planes` is 0).
    """

    function: str
    types: str
    bytes: int
    type: int
    stored: int
    planes: int = 0

    @property
    def deep(self) -> int:
        """The depth of an instruction: 32 bytes."""
        return 32 // self.bytes

    @property
    def depth(self) -> int:
        """The depth of a step: a row of 128 bytes of the second operand, with all planes."""
        return ROW // self.bytes // max(1, self.planes)

    @property
    def instructions(self) -> int:
        """The instructions of a step for one plane."""
        return self.depth // self.deep


BFLOAT16 = 9
"""The driver's number of the type."""

STORED = {
    (DType.FLOAT16, DType.FLOAT16): Form("t_f16", "f32.f16.f16", 2, 6, 2),
    (DType.BFLOAT16, DType.BFLOAT16): Form("t_bf16", "f32.bf16.bf16", 2, BFLOAT16, 2),
    (DType.INT8, DType.INT8): Form("t_s8s8", "s32.s8.s8", 1, 0, 1),
    (DType.UINT8, DType.INT8): Form("t_u8s8", "s32.u8.s8", 1, 0, 1),
    (DType.INT8, DType.UINT8): Form("t_s8u8", "s32.s8.u8", 1, 0, 1),
    (DType.UINT8, DType.UINT8): Form("t_u8u8", "s32.u8.u8", 1, 0, 1),
}
"""Products of operands as they are stored."""

SHORTENED = Form("t_tf32", "f32.tf32.tf32", 4, 11, 4)
"""Floats that the copy engine rounds to TF32."""

ROUNDED = Form("t_bf16", "f32.bf16.bf16", 2, 7, 4, planes=1)
SPLIT = Form("t_bf16", "f32.bf16.bf16", 2, 7, 4, planes=2)
"""Floats rounded to bfloat16, and as sums of two; three of the four products are summed."""


@dataclass(frozen=True)
class Matrix:
    """An operand in memory: rows along the depth, or `transposed`; elements of `bytes` bytes.

    `rows` and `depth` are its extents; `step` is the stride in bytes between rows, or between
    depths where it is transposed; `batch` has the batch loops: index, stride in bytes, extent.
    """

    argument: int
    rows: int
    depth: int
    step: int
    begin: int
    batch: tuple[tuple[int, int, int], ...]
    transposed: bool
    type: int
    bytes: int
    packed: bool = False


@dataclass(frozen=True)
class Side:
    """An operand's part of a stage: its boxes, and the offsets that an instruction needs.

    `load` is the function that brings a box; `tile` and `step` are variables that its places are
    derived from, and that change with the tile and with the step.
    """

    name: str
    bytes: int
    map: TensorMap
    loads: tuple[tuple[int, tuple[str, ...]], ...]
    group: int
    leading: int
    along: int
    transposed: bool
    load: str = "w_load"
    tile: tuple[tuple[str, str], ...] = ()
    step: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """All of the C of its boxes' places, to find the names in it."""
        places = (c for _, where in self.loads for c in where)
        return " ".join((*places, *(c for _, c in (*self.tile, *self.step))))


def matrix_of(
    op: MatMul, argument: int, view: View, rows: int, form: Form
) -> Matrix | None:
    """Return an operand as the copy engine can read it; None if it can't.

    `view` is over (*batch, rows, depth). 16-bit operands may be transposed.
    """
    *outer, across, along = view.strides
    type_, size = form.type, form.stored
    transposed = across == 1 and form.bytes == 2 and along != 1
    step, unit = (along, across) if transposed else (across, along)
    batch = [(k, s, n) for k, (s, n) in enumerate(zip(outer, op.batch, strict=True))
             if s != 0 and n > 1]  # fmt: skip
    steps = [step, *(s for _, s, _ in batch)]
    aligned = all(s * size % CHUNK == 0 for s in (*steps, view.offset))
    if unit != 1 or not aligned or min(steps) <= 0 or len(batch) > 3:
        return None
    return Matrix(
        argument, rows, op.k, step * size, view.offset * size,
        tuple((k, s * size, n) for k, s, n in batch), transposed, type_, size,
    )  # fmt: skip


def packed_depth(op: MatMul, form: Form) -> int:
    """Return the elements of a row of a packed operand."""
    each = {0: CHUNK // form.bytes, 1: 16, 2: 32}[form.planes]
    return -(-op.k // each) * each * max(1, form.planes)


def packed_matrix(op: MatMul, argument: int, form: Form) -> Matrix:
    """Return the second operand as `pack` arranges it."""
    row, batch = packed_depth(op, form), packed_batch(op)
    depth = row if form.planes else op.k
    steps = row_major((*(n for _, n in batch), op.n, row))
    size, type_ = form.bytes, form.type if not form.planes else BFLOAT16
    outer = tuple(
        (k, s * size, n) for (k, n), s in zip(batch, steps[:-2], strict=True)
    )
    return Matrix(argument, op.n, depth, row * size, 0, outer, False, type_, size, packed=True)


ORDER = np.array([0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15])
"""Which of 16 elements is at each position; `w_position` in warpgroup.h is the inverse."""


def pack(op: MatMul, form: Form, b: Array) -> Array:
    """Return constant B as [*batch, n, depth]; floats as bfloat16, in the order of registers.

    Of floats that are split in two, each 32 upper parts are followed by the 32 lower ones.
    """
    row = packed_depth(op, form) // max(1, form.planes)
    rows = rows_of(op, b, row)
    if not form.planes:
        return rows
    parts = parts_of(rows, form.planes)
    ordered = [p.reshape(*p.shape[:2], -1, 16)[..., ORDER] for p in parts]
    if form.planes > 1:
        ordered = [p.reshape(*rows.shape[:2], -1, 32) for p in ordered]
    whole = np.stack(ordered, 3).reshape(*rows.shape[:2], -1)
    return np.ascontiguousarray(whole).view(np.float32)


def packed_operand(op: MatMul, form: Form, product: Product) -> Operand:
    """Return the packed second operand as C of row j and depth p."""
    begin = f"{packed_row(op, product)} * {packed_depth(op, form)}"
    if not form.planes:
        return replace(product.b, place=f"{begin} + p", indices=(), chunks=1)
    words = "((const uint16_t *)(const void *)x1)"
    within = "w_position(p)" if form.planes == 1 else "p / 32 * 64 + w_position(p % 32)"
    value = f"k_load_bf16({words}[{begin} + {within}])"
    if form.planes > 1:
        value = f"({value} + k_load_bf16({words}[{begin} + {within} + 32]))"
    return replace(product.b, place="j", computed=value)


def side_of(
    name: str, first: str, rows: int, own: Matrix, batch: Sequence[str], depth: int
) -> Side:  # fmt: skip
    """Return how a tile of `rows` rows of an operand is loaded, one step's depth at a time."""
    each = ROW // own.bytes
    outer = tuple(f"(int){batch[k]}" for k, _, _ in own.batch)
    strides = (own.step, *(s for _, s, _ in own.batch))
    extents = tuple(n for _, _, n in own.batch)
    ones = (1,) * len(extents)
    if own.transposed:
        box = depth * ROW
        loads = [(k * box, (f"(int)({plus(first, k * each)})", f"step * {depth}", *outer))
                 for k in range(rows // each)]  # fmt: skip
        shape, size = (own.rows, own.depth, *extents), (each, depth, *ones)
    else:
        box = rows * ROW
        loads = [(k * box, (plus(f"step * {depth}", k * each), f"(int)({first})", *outer))
                 for k in range(depth // each)]  # fmt: skip
        shape, size = (own.depth, own.rows, *extents), (each, rows, *ones)
    map_ = TensorMap(name, own.argument, own.begin, own.type, shape, strides, size)
    return Side(
        name, len(loads) * box, map_, tuple(loads),
        ATOM // each * box if own.transposed else ATOM * ROW,
        box if own.transposed else 0, 16 * ROW if own.transposed else 32, own.transposed,
    )  # fmt: skip


def plus(text: str, more: int) -> str:
    """Return the C of a sum."""
    return f"{text} + {more}" if more else text
