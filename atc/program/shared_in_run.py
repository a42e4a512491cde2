"""Calls that threads share by the extents of a run: partitions of panels, or of an axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from atc.backends.kernel import Candidate
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.program.axis_partition import OWN, axis_partition
from atc.program.partition import Worth, gain, is_long
from atc.program.steps import Call
from atc.select.select import Choice


def shared_in_run(
    choice: Choice, whole: Candidate, target: Target, threads: int, worth: Worth,
    make: Callable[[Choice], Call],
) -> Call | None:  # fmt: skip
    """Return the call of a workload whose extents a run decides, which threads share; None if they
    don't.

    `whole` is the candidate with parameters that say how threads share it, if its kernel does;
    `make` makes a call. It takes several threads where a run's extents are worth that.
    """
    w, candidate = choice.workload, choice.candidate
    if threads < 2 or not is_dynamic(w) or not is_long(w, target, worth):
        return None
    long = gain(w, target, worth)
    if whole != candidate:
        call = make(replace(choice, candidate=whole))
        return replace(call, chosen=candidate.label, gain=long)
    cut = axis_partition(w, candidate, target, threads)
    if cut is None:
        return None
    call = make(replace(choice, workload=cut.workload))
    if not any(OWN in text for text in call.source.dims):
        return None
    scratch = candidate.kernel.scratch(w, candidate.params, target)
    each = -(-scratch // target.alignment) * target.alignment
    source = replace(call.source, scratch=each * threads)
    return replace(call, choice=choice, source=source, partition=cut, gain=long)
