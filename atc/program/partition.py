"""Partition a kernel call into equal shares of work that threads may run at the same time.

A partition is the same kernel with the same parameters on a shorter outermost axis of the result:
it writes a contiguous range of memory, and every result is computed in the same order of
operations whatever the number of partitions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from atc.backends.flops import operations, traffic
from atc.backends.kernel import Candidate, Splittable, Workload
from atc.backends.target import Target
from atc.dims import Dim, concrete, is_dynamic
from atc.ir.ops import (
    Attention,
    Block,
    Conv,
    ConvBlocked,
    Map,
    MatMul,
    Normalize,
    Reduce,
    Softmax,
    Unblock,
)
from atc.ir.ops.quantize import MatMulPacked
from atc.program.cuts import Cut, axes_of, cut

LINE = 64
"""Elements that are never separated: at least a cache line."""
WORTH = 12000
"""Cycles of a call below which another thread costs more than it saves."""
WORTH_PHASE = 1500
"""The same for a phase of a call: its threads, which wait for each other, are awake already."""
BYTES_PER_CYCLE = 16
"""The bandwidth of a call that only moves data."""

_OF_LOOPS = (Map, Reduce, MatMul, MatMulPacked, Softmax, Normalize)
"""Ops whose partitions may begin at any element: no two threads write to one line of the cache."""


@dataclass(frozen=True)
class Worth:
    """The calls worth more than one thread: long ones, or with `always` all of them.

    Calls that only copy are worth it from `copies` elements on, if that is given.
    """

    always: bool = False
    copies: int | None = None


ESTIMATED = Worth()


@dataclass(frozen=True)
class Slice(Cut):
    """A part of a call, and the candidate that computes it."""

    candidate: Candidate


def partitions(
    w: Workload, candidate: Candidate, target: Target, threads: int, worth: Worth = ESTIMATED
) -> tuple[Slice, ...]:
    """Return the partitions for so many threads; none if the call is short or can't be partitioned.

    Where the run decides extents, these are filters of a convolution: `axis_partition` cuts others.
    """
    if is_dynamic(w) and not isinstance(w.op, Conv | ConvBlocked):
        return ()
    if threads < 2 or len(w.outputs) != 1 or not is_long(w, target, worth):
        return ()
    found = _cut(w, candidate, threads)
    if len(found) < 2 or not all(candidate.kernel.accepts(c.workload(w), target) for c in found):
        return ()
    slices = (Slice(c.op, c.operands, c.result, candidate) for c in found)
    return tuple(_fitted(each, w, target) for each in slices)


def _cut(w: Workload, candidate: Candidate, threads: int) -> list[Cut]:
    """Cut the outermost axis of the result into parts of about equal size, if that can be."""
    axes, axis = axes_of(w), _outermost(w)
    if axis is None or (isinstance(w.op, Conv | ConvBlocked) and axis > 1 and not alike(candidate)):
        return []
    one = cut(w, axis, 0, 1)
    if one is None:
        return []
    lone = isinstance(w.op, _OF_LOOPS) and one.result.type.size == 1
    found = (cut(w, axis, b, e - b) for b, e in _ranges(axes[axis], threads, LINE if lone else 1))
    return [each for each in found if each is not None]


def _outermost(w: Workload) -> int | None:
    """Return the outermost axis of a result, if it can be partitioned when compiling."""
    op, axes = w.op, axes_of(w)
    if isinstance(op, Attention):  # queries, where heads lie side by side
        size, strides = w.outputs[0].size, op.y_view.strides
        return next((d for d, n in enumerate(axes) if n > 1 and strides[d] * n == size), None)
    axis = next((d for d, n in enumerate(axes) if n != 1), None)
    return None if axis is None or isinstance(axes[axis], Dim) or axes[axis] == 0 else axis


def alike(candidate: Candidate) -> bool:
    """Return whether a row's results don't depend on how many rows there are."""
    return candidate.kernel.portable or candidate.kernel.bitwise_reproducible


def shared(
    w: Workload, candidate: Candidate, target: Target, threads: int, worth: Worth = ESTIMATED
) -> Candidate:
    """Return a candidate whose call threads share, if it is long and its kernel supports that."""
    if threads < 2 or not is_long(w, target, worth):
        return candidate
    kernel = candidate.kernel
    if not isinstance(kernel, Splittable):
        return candidate
    largest = concrete(w)
    for params in kernel.shared_params(w, candidate.params, target, threads):
        work_split = kernel.work_split(largest, params, target)
        least = 0 if worth.always or work_split.phases == 1 else work_split.phases * WORTH_PHASE
        if work_split.partitions > 1 and cycles(largest, target) > least:
            return replace(candidate, params=params)
    return candidate


def _fitted(partition: Slice, w: Workload, target: Target) -> Slice:
    """Return a partition with parameters of its own, if that doesn't change results."""
    kernel, own = partition.candidate.kernel, partition.workload(w)
    if not kernel.bitwise_reproducible:
        return partition
    sets = kernel.parameters(own, target)
    if partition.candidate.params in sets:
        return partition
    return replace(partition, candidate=Candidate(kernel, sets[0]))


def is_long(w: Workload, target: Target, worth: Worth = ESTIMATED) -> bool:
    """Return whether a call, of its largest shapes, is long enough for another thread to save more
    than it costs."""
    return gain(concrete(w), target, worth) > 0


def gain(w: Workload, target: Target, worth: Worth = ESTIMATED) -> int:
    """Return an extent that is above 0 where a call is long enough for several threads."""
    if worth.copies is not None and is_copy(w):
        return w.outputs[0].size - worth.copies + 1
    if worth.always:
        return 1
    return _work(w, target) - WORTH * _units(target)


def is_copy(w: Workload) -> bool:
    """Return whether a call only moves elements."""
    return isinstance(w.op, Block | Unblock) or (isinstance(w.op, Map) and w.op.is_movement)


def cycles(w: Workload, target: Target) -> float:
    """Return an estimate of a call's cycles."""
    return _work(w, target) / _units(target)


def _work(w: Workload, target: Target) -> int:
    """Return a call's cycles in parts, of which `_units` are a cycle: an extent, if w has some."""
    return operations(w) * BYTES_PER_CYCLE + traffic(w) * _at_once(target)


def _units(target: Target) -> int:
    return _at_once(target) * BYTES_PER_CYCLE


def _at_once(target: Target) -> int:
    """Return the operations of a cycle."""
    return 4 * max(target.vector_bytes // 4, 1)


def _ranges(extent: int, threads: int, step: int = 1) -> list[tuple[int, int]]:
    """Return the begin and end of parts of about equal size that begin at multiples of `step`."""
    units = -(-extent // step)
    count = min(threads, units)
    ends = [min((k + 1) * units // count * step, extent) for k in range(count)]
    return list(zip([0, *ends], ends, strict=False))
