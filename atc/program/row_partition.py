"""Partition the rows of images among threads, where that is faster than partitioning channels.

A core then reads what it wrote itself, except for the rows next to another one's, and all weights;
with some of the channels it reads all of the image, most of which others wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from atc.backends.kernel import Candidate, Stripable, Workload
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.ops import ConvBlocked, Pool
from atc.program.partition import ESTIMATED, Slice, Worth, is_long

WEIGHTS = 9 / 8
"""The rate at which a core reads weights, relative to the third-level cache's rate for a tile."""
OTHERS = 5 / 6
"""The rate at which a core reads what another one has written, relative to the same."""

Rows = tuple[tuple[int, int], ...]
"""Begin and end of each thread's rows."""


def rows_of_threads(
    w: Workload, candidate: Candidate, target: Target, threads: int, cut: Sequence[Slice],
    worth: Worth = ESTIMATED,
) -> tuple[Candidate, Rows] | None:
    """Return a candidate that computes stripes of rows, and the rows of each thread.

    None if the kernel can't, or if the partitions of the call are faster otherwise.
    """
    if threads < 2 or not isinstance(w.op, ConvBlocked | Pool) or not is_long(w, target, worth):
        return None
    if is_dynamic(w):
        return None
    kernel, y = candidate.kernel, w.outputs[0]
    if not isinstance(kernel, Stripable) or len(y.shape) != 5:
        return None
    params = kernel.striped_params(w, candidate.params, target, 0, 0)
    if params is None or kernel.scratch(w, params, target):
        return None
    rows = _divided(kernel.stripe_ends(w, params, target), threads)
    if len(rows) < 2:
        return None
    longest = max(end - begin for begin, end in rows)
    time = kernel.cost(w, params, target) * longest / y.shape[2]
    extra = 1 - 1 / threads  # reads, as a part of those of one core
    time += extra * sum(t.nbytes for t in w.inputs[1:2] if t) / (WEIGHTS * target.machine.far_rate)
    if time >= _time_of(w, candidate, target, cut, extra):
        return None
    return Candidate(kernel, params), rows


def _time_of(
    w: Workload, candidate: Candidate, target: Target, cut: Sequence[Slice], extra: float
) -> float:
    """Return the estimated cycles of partitions, or of the whole call if there are none."""
    if not cut:
        return candidate.kernel.cost(w, candidate.params, target)
    rate = OTHERS * target.machine.far_rate
    costs = (p.candidate.kernel.cost(p.workload(w), p.candidate.params, target) for p in cut)
    return max(costs) + extra * sum(t.nbytes for t in w.inputs[:1] if t) / rate


def _divided(ends: Sequence[int], threads: int) -> Rows:
    """Return ranges of rows of about equal size that end at some of `ends`."""
    wanted = [ends[-1] * k / threads for k in range(1, threads)]
    stops = {min(ends, key=lambda end: abs(end - each)) for each in wanted}
    return tuple(pairwise((0, *sorted(stops | {ends[-1]}))))
