"""Requests of few queries for keys and values before these are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.backends.cpu.matmul.cost import AHEAD, NEAR_LINES
from atc.backends.machine import CACHE_LINE, Machine
from atc.dims import is_dynamic
from atc.ir.ops import Attention


@dataclass(frozen=True)
class KeyRequests:
    """A key in `step` is asked for `distance` keys before it is read, and its values at once.

    `lines` are the elements of it whose lines are asked for. `next` is the C of how far the next
    batch's keys are, which are asked for as values are read: 0 at the last one, empty where none
    are.
    """

    distance: int
    step: int
    lines: range
    next: str


def key_requests(op: Attention, batch: Sequence[str], machine: Machine) -> KeyRequests:
    """Return what a decoder's word asks for; `batch` are the variables of its loops."""
    near = machine.near_lines
    ahead, key = NEAR_LINES if near else AHEAD, 4 * op.depth
    lines = range(0, op.depth if near else 1, CACHE_LINE // 4)
    distance, step = max(1, ahead.distance // key), max(1, ahead.step // key)
    return KeyRequests(distance, step, lines, _next(op, batch) if near else "")


def _next(op: Attention, batch: Sequence[str]) -> str:
    """Return how far the keys are that follow a batch's, of the innermost axis that has its own."""
    strides = op.k_view.strides[:-2]
    axis = max((d for d, stride in enumerate(strides) if stride != 0), default=None)
    if axis is None or op.depth != op.width or is_dynamic((strides[axis], op.batch[axis])):
        return ""
    return f"{batch[axis]} < {op.batch[axis] - 1} ? {strides[axis]} : 0"
