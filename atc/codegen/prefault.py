"""Prefaulting: the pages that `init` touches, as a system may map one only at its first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atc.codegen.schedule import Plan
from atc.ir.ops.data import Gather
from atc.program.steps import Branch, Call, CascadeLoop, Fork, Parallel, Program, Repeat, Step

PAGE = 4096
"""Bytes between touches: no system has smaller pages."""

MOST = 64 << 20
"""The most bytes of an arena that are touched if its size is only a bound of what runs need."""

_GAP = 16 * PAGE
"""Unread bytes from which two ranges are not merged."""


def prefault_ranges(plans: Sequence[Plan]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of the weights, [begin, end), that every run of any program reads.

    Those that branches and gathers read are left out: an embedding table need not be in memory for
    a few of its rows. So are weights of less than two pages.
    """
    sets = [_read(plan.program, plan.weights) for plan in plans]
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(set.intersection(*sets)):
        if merged and begin - merged[-1][1] <= _GAP:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return tuple(merged) if sum(b - a for a, b in merged) >= 2 * PAGE else ()


def _read(program: Program, offsets: Mapping[str, int]) -> set[tuple[int, int]]:
    """Return the ranges of the constants that are read as a whole."""
    names = {
        name for call in _certain(program.steps) if not isinstance(call.node.op, Gather)
        for name in call.arguments if name in offsets
    }  # fmt: skip
    return {(offsets[n], offsets[n] + program.constants[n].nbytes) for n in names}


def _certain(steps: Sequence[Step]) -> list[Call]:
    """Return the calls that always run."""
    found: list[Call] = []
    for step in steps:
        match step:
            case Call():
                found.append(step)
            case CascadeLoop() | Parallel() | Fork():
                found += step.calls
            case Repeat():
                found += _certain(step.body)
            case Branch():
                pass
    return found
