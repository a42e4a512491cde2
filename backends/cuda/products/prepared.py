"""Preparation of products by warpgroups: a launch that fills scratch, behind the parts of tiles.

The second operand, arranged for the copy engine, where that can't read it and it isn't constant;
the sums of rows that zero points multiply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from atc.backends.cuda.kernel import unravel
from atc.backends.cuda.products.boxes import CHUNK, Form, Matrix, packed_depth
from atc.backends.cuda.products.constants import packed_batch, packed_row
from atc.backends.cuda.products.tiles import Operand, Product
from atc.backends.cuda.products.views import transposed
from atc.backends.kernel import Workload
from atc.ir.graph import DType, row_major
from atc.ir.ops import MatMul


@dataclass(frozen=True)
class Prepared:
    """The bytes that are made, those that are read, and how many threads can work at a time."""

    bytes: int
    read: int
    threads: int


@dataclass(frozen=True)
class RowSums:
    """INT32 sums over the depth of an operand's rows.

    They are those of `count` rows, over the loops `indices`, from byte `begin` on; `row` is the C
    of a row's number.
    """

    operand: Operand
    count: int
    indices: tuple[tuple[str, int], ...]
    row: str
    begin: int

    def element(self, begin: int) -> str:
        """Return the C of a row's sum, where what is prepared begins at a byte of scratch."""
        place = f"(const unsigned char *)scratch + {begin + self.begin}"
        return f"((const int32_t *)(const void *)({place}))[{self.row}]"

    def values(self, begin: int) -> dict[str, object]:
        """Return what the template sums."""
        return {
            "element": self.operand.element, "text": self.operand.text, "count": self.count,
            "indices": unravel("row", self.indices), "begin": begin + self.begin,
            "own": self.operand.indices,
        }  # fmt: skip


def scratch_argument(w: Workload) -> int:
    """Return the index of scratch among a kernel's arguments: behind inputs and outputs."""
    return sum(t is not None for t in (*w.inputs, *w.outputs))


def size_of(matrix: Matrix) -> int:
    """Return the bytes of a packed or arranged operand."""
    return matrix.step * matrix.rows * prod(n for _, _, n in matrix.batch)


def row_sums(op: MatMul, product: Product, constant: bool, begin: int) -> list[RowSums]:
    """Return the sums that zero points multiply, but those of a `constant` second operand."""
    found = list[RowSums]()
    a, b, columns = product.a, product.b, transposed(op.b_view)
    sides = [(a, b, "i", op.a_view, op.m)]
    if not constant:
        sides.append((b, a, "j", columns, op.n))
    for operand, other, index, view, extent in sides:
        if not other.zero:
            continue
        outer = zip(product.batch, view.strides, strict=False)
        loops = (*(loop for loop, stride in outer if stride != 0), (index, extent))
        steps = row_major([n for _, n in loops])
        row = " + ".join(
            f"{v} * {s}" if s != 1 else v for (v, _), s in zip(loops, steps, strict=True)
        )
        found.append(RowSums(operand, prod(n for _, n in loops), loops, row, begin))
        begin += DType.INT32.itemsize * found[-1].count
    return found


def prepared(
    w: Workload, operands: tuple[int, int], form: Form, arranged: Matrix | None,
    sums: Sequence[RowSums],
) -> Prepared | None:  # fmt: skip
    """Return what is made of the operands; None: nothing is."""
    if arranged is None and not sums:
        return None
    rows = sum(s.count for s in sums)
    size = size_of(arranged) if arranged else 0
    read = operands if sums else operands[1:]
    return Prepared(
        size + DType.INT32.itemsize * rows, sum(w.input(k).nbytes for k in read),
        max(size // (_numbers(form) * form.bytes * max(1, form.planes)), 32 * rows),
    )  # fmt: skip


def _numbers(form: Form) -> int:
    """Return how many numbers of a row a thread arranges at a time."""
    return 16 if form.planes else CHUNK // form.bytes


def arrangement(
    w: Workload, operand: int, op: MatMul, form: Form, product: Product, pitch: int, begin: int
) -> dict[str, object]:
    """Return how the second operand is arranged; neighbouring threads read neighbours."""
    count, b = _numbers(form), product.b
    row = packed_depth(op, form) // max(1, form.planes)
    outer = [(product.batch[k][0], n) for k, n in packed_batch(op)]
    inner = [("j", op.n), ("part", row // count)]
    loops = [*outer, *(inner[::-1] if b.along_rows else inner)]
    return {
        "type": w.input(operand).dtype.c, "numbers": count, "operand": b,
        "indices": unravel("at", loops), "count": prod(n for _, n in loops),
        "value": b.value if form.planes else b.element, "begin": begin,
        "row": packed_row(op, product), "pitch": pitch,
    }  # fmt: skip
