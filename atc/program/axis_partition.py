"""Partition an axis of a call among threads when the network runs, by the extents that it then has.

A partition is the same kernel on fewer iterations of the outermost axis; it finds its operands,
and where its results go, so many elements further on. One C function does for all, which is why
the axis' extent may be known only at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from atc.backends.kernel import Candidate, Workload
from atc.backends.target import Target
from atc.dims import Symbol, Undecided, dim, max_value
from atc.ir.graph import TensorType
from atc.ir.ops import (
    Attention,
    Block,
    Conv,
    ConvBlocked,
    Map,
    MatMul,
    Pool,
    Reduce,
    Unblock,
)
from atc.ir.ops.quantize import MatMulPacked
from atc.ir.view import View
from atc.program.cuts import Cut, axes_of, cut
from atc.program.partition import LINE, alike

OWN = "own"
"""The iterations of a partition, in C."""


@dataclass(frozen=True)
class AxisPartition:
    """Partitions, at most so many, of `extent` iterations of an axis, in multiples of `unit`.

    `workload` is that of each. `steps` are the elements from an iteration to the next of each
    operand that is there, and of the result.
    """

    workload: Workload
    extent: int
    partitions: int
    unit: int
    steps: tuple[int, ...]


@dataclass(frozen=True)
class _Own(Symbol):
    """The extent of a partition, which its task computes."""

    @cached_property
    def text(self) -> str:
        return OWN


def axis_partition(
    w: Workload, candidate: Candidate, target: Target, threads: int
) -> AxisPartition | None:
    """Return how threads share the outermost axis of a call; None where they can't.

    Results are the same bits for any number of threads.
    """
    kernel = candidate.kernel
    if threads < 2 or len(w.outputs) != 1 or w.op.written or kernel.fallible:
        return None
    axes = _axes(w)
    axis = next((d for d, n in enumerate(axes) if n != 1), None)
    if axis is None or axes[axis] == 0 or not _may_cut(w, candidate, axis):
        return None
    own = dim(_Own(-1, OWN, 1, max_value(axes[axis])))
    try:
        first, second = (cut(w, axis, begin, own) for begin in (0, 1))
        if first is None or second is None:
            return None
        partition = _partition(w, first)
        if not (kernel.supports_extents(partition) and kernel.accepts(partition, target)):
            return None
        packed = kernel.packs(partition, candidate.params, target)
    except Undecided:
        return None
    steps = [b - a for a, b in zip(first.begins(w), second.begins(w), strict=True)]
    if any(steps[k] != 0 for k in packed):
        return None  # what lies elsewhere than in the model
    step = second.result.begin
    present = (s for s, t in zip(steps, w.inputs, strict=True) if t is not None)
    unit = LINE if step == 1 else 1  # no two threads write to one line of the cache
    return AxisPartition(partition, axes[axis], threads, unit, (*present, step))


def _axes(w: Workload) -> Sequence[int]:
    """Return the axes of which the outermost may be cut: not columns, channels or pixels."""
    match w.op:
        case MatMul() | MatMulPacked():
            return axes_of(w)[:-1]
        case Conv() | ConvBlocked() | Pool():
            return axes_of(w)[:1]
        case Block() | Unblock():
            return ()
    return axes_of(w)


def _may_cut(w: Workload, candidate: Candidate, axis: int) -> bool:
    """Return whether parts differ in where they read and write alone, and results in nothing."""
    op = w.op
    match op:
        case Map() | Reduce():
            return all(c.strides[axis] == 0 for c in op.coordinates)
        case MatMul():
            return axis < len(op.batch) or alike(candidate)
        case MatMulPacked():
            return alike(candidate)
        case Conv() | ConvBlocked():
            return len(w.inputs) == 2 + len(op.epilogue.views)
        case Pool():
            return len(w.inputs) == 1
        case Attention():
            views = (*op.scores.views, *op.result.views)
            shown = zip(views, w.inputs[3:], strict=True)
            positions = any(t is None and v.strides[axis] != 0 for v, t in shown)
            return not positions and (axis < len(op.batch) or alike(candidate))
    return True


def _partition(w: Workload, first: Cut) -> Workload:
    """Return the workload of a partition, wherever it begins."""
    op, partition = w.op, first.workload(w)
    if isinstance(op, Attention):
        return replace(partition, outputs=w.outputs)  # a batch's rows may lie between other ones'
    if not isinstance(op, Map):
        return partition
    (y,) = w.outputs
    size = partition.outputs[0].size
    inputs = tuple(
        TensorType(t.dtype, (size,)) if t is not None and _goes_along(view, op.shape, t, y) else t
        for view, t in zip(op.views, w.inputs, strict=True)
    )
    return replace(partition, inputs=inputs)


def _goes_along(view: View, shape: Sequence[int], type_: TensorType, y: TensorType) -> bool:
    """Return whether an operand is read where the result goes."""
    return type_.size == y.size and view.offset == 0 and view.is_dense(shape)
