"""Recurrent layers as C: the addresses of their tensors' elements, and the cells' expressions."""

from __future__ import annotations

from collections.abc import Callable

from atc.backends.render.expr import address, render_expr
from atc.ir.graph import DType
from atc.ir.ops import Cell, Recurrent
from atc.ir.view import View


def places(op: Recurrent, d: int) -> dict[str, object]:
    """Return the C indices of direction d's first element in each tensor, at row b and step t."""
    directions, units, width = len(op.cells), op.hidden, op.gates * op.hidden
    row, step = (directions, op.steps) if op.batch_major else (1, 1)
    first = d if op.batch_major else d * op.batch
    share = (1, step) if op.batch_major else (op.batch, 1)
    out = (directions, op.steps * directions) if op.batch_major else (directions * op.batch, 1)
    return {
        "state": address(View((row * units,), first * units), ["b"]),
        "row": address(View((row,), first), ["b"]),
        "share": address(View(tuple(s * directions * width for s in share), d * width), ["t", "b"]),
        "out": address(View(tuple(s * units for s in out), first * units), ["t", "b"]),
    }


def formulas(cell: Cell, dtype: DType, read: Callable[[int], str]) -> dict[str, object]:
    """Return the rendered expressions of one direction's cell, whose Input(k) `read` gives in C."""
    reset_lines, reset = render_expr(cell.reset, read, "r") if cell.reset else ([], "")
    lines: list[str] = []
    if cell.memory is not None:
        lines, memory = render_expr(cell.memory, read, "m")
        lines.append(f"const {dtype.c} memory = {memory};")
    shared, hidden = render_expr(cell.hidden, read, "v")
    return {
        "reverse": cell.reverse, "reset_lines": reset_lines, "reset": reset,
        "lines": [*lines, *shared], "memory": cell.memory is not None, "hidden": hidden,
    }  # fmt: skip
