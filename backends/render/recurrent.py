"""Where the elements of a recurrent layer's tensors are."""

from __future__ import annotations

from atc.backends.render.expr import address
from atc.ir.ops import Recurrent
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
