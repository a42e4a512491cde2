"""States of a program: which of them a call may replace in place, when nothing reads them later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atc.ir.graph import TensorType
from atc.program.steps import State, Step, base_of, calls, touched, walk


def carried(
    pairs: Sequence[tuple[str, str]], steps: Sequence[Step], types: Mapping[str, TensorType],
    storage: Mapping[str, str],
) -> tuple[State, ...]:  # fmt: skip
    """Return the states of pairs of a value and the result that replaces it for the next run.

    The next value is the result itself if that may be computed in the state's memory, else a copy
    of it, made when all steps are done.
    """
    return tuple(
        State(
            value, result if may_replace(value, result, steps, types, storage) else f"{value}#next"
        )
        for value, result in pairs
    )


def may_replace(
    value: str, result: str, steps: Sequence[Step], types: Mapping[str, TensorType],
    storage: Mapping[str, str],
) -> bool:  # fmt: skip
    """Return whether one call writes all of a result after the last read of a value."""
    writers = [
        (k, call)
        for k, step in enumerate(steps)
        for call in calls([step])
        if any(base_of(o, storage) == result for o in call.node.outputs)
    ]
    if result in storage or len(writers) != 1:
        return False
    at, call = writers[0]
    if steps[at] is not call or call.node.outputs[0] != result or call.slot is not None:
        return False
    later = (name for step in walk(steps[at + 1 :]) for name in touched(step))
    if any(base_of(name, storage) == value for name in later):
        return False
    return all(
        types[name].nbytes == types[result].nbytes and name in call.in_place
        for name in call.arguments
        if base_of(name, storage) == value
    )
