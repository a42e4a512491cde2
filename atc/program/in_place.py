"""Which results may be written where an input lies: state that a step replaces."""

from __future__ import annotations

from collections.abc import Iterable

from atc.program.steps import Call, Program, calls


def in_place(program: Program, pairs: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the inputs, of pairs with an output, in whose memory the output may be written.

    It may if one call writes all of the output, which lets its result take over that operand's
    storage, and no call after it reads the input.
    """
    found = set()
    for source, result in pairs:
        home = program.home(result)
        writers = [
            k for k, step in enumerate(program.steps)
            for call in calls([step])
            if any(program.home(o) == home for o in call.node.outputs)
        ]  # fmt: skip
        readers = [
            k for k, step in enumerate(program.steps)
            if any(program.home(a) == source for call in calls([step]) for a in call.arguments)
        ]  # fmt: skip
        if len(writers) != 1 or program.home(source) != source or program.shift(result):
            continue
        (at,) = writers
        call = program.steps[at]
        if max(readers, default=-1) > at or not isinstance(call, Call) or call.slot is not None:
            continue
        reads = [a for a in call.arguments if program.home(a) == source]
        first = program.home(call.node.outputs[0]) == home
        if first and reads and all(a in call.in_place and not program.shift(a) for a in reads):
            found.add(source)
    return frozenset(found)
