"""Portable kernel of Recurrent: one row and direction at a time, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from atc.backends.cpu.expr import address, literal, render_expr
from atc.backends.kernel import Kernel, Pack, Params, Workload
from atc.backends.target import Target
from atc.ir import Array, DType
from atc.ops import Cell, Recurrent
from atc.view import View

COLUMNS = 16
"""Units whose products are summed together: one cache line of floats."""


def padded(columns: int, width: int) -> int:
    """Return a number of columns rounded up to whole panels."""
    return -(-columns // width) * width


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


def products(op: Recurrent, width: int = COLUMNS) -> list[Product]:
    """Return the products of one step; the last gate's is apart where a reset h enters it."""
    if op.cells[0].reset is None:
        return [Product("h", 0, op.gates * op.hidden, 0, 0)]
    most = (op.gates - 1) * op.hidden
    size = padded(most, width)
    return [Product("h", 0, most, 0, 0), Product("reset", most, op.hidden, size * op.hidden, size)]


def shares(op: Recurrent, width: int = COLUMNS) -> int:
    """Return how many elements the results of a step's products take, in whole panels."""
    return sum(padded(p.columns, width) for p in products(op, width))


def pack_panels(op: Recurrent, r: Array, width: int = COLUMNS) -> Array:
    """Return R [D, H, G * H] as zero-padded panels [D][products][columns / width][H][width]."""
    directions, units = len(op.cells), op.hidden
    flat = r.reshape(directions, units, op.gates * units)
    parts = []
    for product in products(op, width):
        size = padded(product.columns, width)
        wide = np.zeros((directions, units, size), r.dtype)
        wide[..., : product.columns] = flat[..., product.first : product.first + product.columns]
        split = wide.reshape(directions, units, size // width, width)
        parts.append(np.moveaxis(split, 1, 2).reshape(directions, -1))
    return np.concatenate(parts, 1)


class RecurrentRows(Kernel):
    """Any Recurrent in plain C; constant weights are packed into column panels."""

    name = "recurrent"
    op = Recurrent
    template = "cpu/recurrent.c.j2"
    dynamic = True

    def scratch(self, w: Workload, params: Params, target: Target) -> int:
        """The recurrent shares of one row, its reset h, and h in bytes."""
        op = w.op
        assert isinstance(op, Recurrent)
        floats = (shares(op) + op.hidden) * w.outputs[0].dtype.itemsize
        return floats + (op.hidden if op.scales else 0)

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
        return {
            "op": op, "type": w.outputs[0].dtype.c, "nb": COLUMNS, "packed": packed,
            "weight": "int8_t" if op.scales else w.outputs[0].dtype.c,
            "scales": [literal(s, DType.FLOAT) for s in op.scales],
            "products": products(op), "shares": shares(op),
            "weights": (shares(op) if packed else op.gates * op.hidden) * op.hidden,
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


def places(op: Recurrent, d: int) -> dict[str, str]:
    """Return the C indices of direction d's first element in each tensor, at row b and step t."""
    directions, units, width = len(op.cells), op.hidden, op.gates * op.hidden
    row, step = (directions, op.steps) if op.batch_major else (1, 1)
    first = d if op.batch_major else d * op.batch
    state = View((row * units,), first * units)
    share = (1, step) if op.batch_major else (op.batch, 1)
    out = (directions, op.steps * directions) if op.batch_major else (directions * op.batch, 1)
    return {
        "state": address(state, ["b"]),
        "share": address(View(tuple(s * directions * width for s in share), d * width), ["t", "b"]),
        "out": address(View(tuple(s * units for s in out), first * units), ["t", "b"]),
    }


def _direction(op: Recurrent, w: Workload, d: int, cell: Cell) -> dict[str, object]:
    """Return what the template needs of one direction: addresses and rendered expressions."""
    read = _reader(op, d)
    reset_lines, reset = render_expr(cell.reset, read, "r") if cell.reset else ([], "")
    lines: list[str] = []
    if cell.memory is not None:
        lines, memory = render_expr(cell.memory, read, "m")
        lines.append(f"const {w.outputs[0].dtype.c} memory = {memory};")
    shared, hidden = render_expr(cell.hidden, read, "v")
    return {
        "d": d, "reverse": cell.reverse, "reset_lines": reset_lines, "reset": reset,
        "lines": [*lines, *shared], "memory": cell.memory is not None, "hidden": hidden,
        **places(op, d),
    }  # fmt: skip


def place_of(op: Recurrent, d: int, k: int, width: int = COLUMNS) -> tuple[str, int]:
    """Return the array and the offset in it where Input(k) of direction d's cell lies at unit 0.

    The new memory has no place but a name, `memory`.
    """
    gates, units = op.gates, op.hidden
    if k < gates:
        return "given", k * units
    if k < 2 * gates:
        first = (k - gates) * units
        part = next(p for p in reversed(products(op, width)) if first >= p.first)
        return "recurrent", part.result + first - part.first
    names = ("h", "c", "memory")
    if k < op.state + len(names):
        return names[k - op.state], 0
    return "x2", (d * op.vectors + k - op.state - len(names)) * units


def _reader(op: Recurrent, d: int) -> Callable[[int], str]:
    """Return how C reads Input(k) of the cell's expressions at unit j."""

    def read(k: int) -> str:
        array, offset = place_of(op, d, k)
        if array == "memory":
            return array
        return f"{array}[{offset} + j]" if offset else f"{array}[j]"

    return read


KERNELS = (RecurrentRows(),)
