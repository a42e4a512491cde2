"""Portable kernel of Recurrent: one row and direction at a time, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from atc.backends.cpu.expr import render_expr
from atc.backends.kernel import Kernel, Pack, Params, Workload
from atc.backends.target import Target
from atc.expr import Expr
from atc.ir import Array
from atc.ops import Cell, Recurrent

COLUMNS = 16
"""Units whose products are summed together: one cache line of floats."""


def padded(columns: int) -> int:
    """Return a number of columns rounded up to whole panels."""
    return -(-columns // COLUMNS) * COLUMNS


@dataclass(frozen=True)
class Product:
    """A product of h, or of the reset h, with the recurrent weights of some gates."""

    operand: str
    first: int
    columns: int
    weights: int
    """Elements before its panels in a direction's packed weights."""
    result: int
    """Elements before its result in the scratch."""


def products(op: Recurrent) -> list[Product]:
    """Return the products of one step; the last gate's is apart where a reset h enters it."""
    if op.cells[0].reset is None:
        return [Product("h", 0, op.gates * op.hidden, 0, 0)]
    most = (op.gates - 1) * op.hidden
    return [
        Product("h", 0, most, 0, 0),
        Product("reset", most, op.hidden, padded(most) * op.hidden, padded(most)),
    ]


def pack_panels(op: Recurrent, r: Array) -> Array:
    """Return R [D, H, G * H] as zero-padded panels [D][products][columns / 16][H][16]."""
    directions, units = len(op.cells), op.hidden
    flat = r.reshape(directions, units, op.gates * units)
    parts = []
    for product in products(op):
        size = padded(product.columns)
        wide = np.zeros((directions, units, size), r.dtype)
        wide[..., : product.columns] = flat[..., product.first : product.first + product.columns]
        split = wide.reshape(directions, units, size // COLUMNS, COLUMNS)
        parts.append(np.moveaxis(split, 1, 2).reshape(directions, -1))
    return np.concatenate(parts, 1)


class RecurrentRows(Kernel):
    """Any Recurrent in plain C; constant weights are packed into column panels."""

    name = "recurrent"
    op = Recurrent
    template = "cpu/recurrent.c.j2"

    def scratch(self, w: Workload, params: Params, target: Target) -> int:
        """The recurrent shares of one row, and its reset h."""
        op = w.op
        assert isinstance(op, Recurrent)
        shares = sum(padded(p.columns) for p in products(op))
        return (shares + op.hidden) * w.outputs[0].dtype.itemsize

    def packs(self, w: Workload, params: Params, target: Target) -> Mapping[int, Pack]:
        """Pack constant weights."""
        op = w.op
        assert isinstance(op, Recurrent)
        return {1: lambda r: pack_panels(op, r)} if w.constant[1] else {}

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """Addresses of the operands, and each direction's formulas."""
        op = w.op
        assert isinstance(op, Recurrent)
        packed = w.constant[1]
        steps = products(op)
        size = sum(padded(p.columns) for p in steps) * op.hidden
        return {
            "op": op, "type": w.outputs[0].dtype.c, "nb": COLUMNS, "packed": packed,
            "products": steps, "shares": sum(padded(p.columns) for p in steps),
            "weights": size if packed else op.gates * op.hidden * op.hidden,
            "panel": COLUMNS * op.hidden if packed else COLUMNS,
            "stride": COLUMNS if packed else op.gates * op.hidden,
            "directions": [_direction(op, w, d, cell) for d, cell in enumerate(op.cells)],
            "vectors": w.inputs[2] is not None, "lengths": w.inputs[3] is not None,
            "initial": [w.inputs[i] is not None for i in (4, 5)],
            "sequence": f"y{len(w.outputs) - 1}",
        }  # fmt: skip

    def cost(self, w: Workload, params: Params, target: Target) -> float:
        """Scalar work: one unit per multiplication."""
        op = w.op
        assert isinstance(op, Recurrent)
        return float(op.steps * op.batch * len(op.cells) * op.gates * op.hidden**2)


def _direction(op: Recurrent, w: Workload, d: int, cell: Cell) -> dict[str, object]:
    """Return what the template needs of one direction: row indices and rendered expressions."""
    directions = len(op.cells)
    row = f"b * {directions} + {d}" if op.batch_major else f"{d * op.batch} + b"
    step = f"b * {op.steps} + t" if op.batch_major else f"t * {op.batch} + b"
    if op.batch_major:
        out = f"({step}) * {directions} + {d}"
    else:
        out = f"(t * {directions} + {d}) * {op.batch} + b"
    read = _reader(op, d)
    lines: list[str] = []
    dtype = w.outputs[0].dtype.c

    def computed(expr: Expr | None, prefix: str) -> str:
        if expr is None:
            return ""
        shared, value = render_expr(expr, read, prefix)
        lines.extend(shared)
        return value

    reset_lines, reset = render_expr(cell.reset, read, "r") if cell.reset else ([], "")
    memory = computed(cell.memory, "m")
    if memory:
        lines.append(f"const {dtype} memory = {memory};")
    hidden = computed(cell.hidden, "v")
    return {
        "d": d, "row": row, "share": f"({step}) * {directions} + {d}", "out": out,
        "reverse": cell.reverse, "reset_lines": reset_lines, "reset": reset, "lines": lines,
        "memory": bool(memory), "hidden": hidden,
    }  # fmt: skip


def _reader(op: Recurrent, d: int) -> Callable[[int], str]:
    """Return how C reads Input(k) of the cell's expressions at unit j."""
    gates, units = op.gates, op.hidden
    places = products(op)

    def read(k: int) -> str:
        if k < gates:
            return _at("given", k * units)
        if k < 2 * gates:
            first = (k - gates) * units
            part = next(p for p in reversed(places) if first >= p.first)
            return _at("recurrent", part.result + first - part.first)
        names = ("h[j]", "c[j]", "memory")
        if k < op.state + len(names):
            return names[k - op.state]
        return _at("x2", (d * op.vectors + k - op.state - len(names)) * units)

    return read


def _at(array: str, offset: int) -> str:
    return f"{array}[{offset} + j]" if offset else f"{array}[j]"


KERNELS = (RecurrentRows(),)
