"""Results that may overwrite an input: state that a step replaces."""

from __future__ import annotations

from collections.abc import Iterable

from atc.program.steps import Call, Program, calls


def in_place(program: Program, pairs: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the inputs, of pairs with an output, in whose memory the output may be written.

    It may if one call writes all of the output, its result can take over that operand's storage,
    and no later call reads the input.
    """
    found = set()
    writing: dict[str, list[int]] = {}
    last: dict[str, int] = {}
    for k, step in enumerate(program.steps):
        for call in calls([step]):
            for home in dict.fromkeys(program.home(o) for o in call.node.outputs):
                writing.setdefault(home, []).append(k)
            for argument in call.arguments:
                last[program.home(argument)] = k
    for source, result in pairs:
        home = program.home(result)
        writers = writing.get(home, [])
        if len(writers) != 1 or program.home(source) != source or program.shift(result):
            continue
        (at,) = writers
        one = program.steps[at]
        if last.get(source, -1) > at or not isinstance(one, Call) or one.slot is not None:
            continue
        reads = [a for a in one.arguments if program.home(a) == source]
        first = program.home(one.node.outputs[0]) == home
        if first and reads and all(a in one.in_place and not program.shift(a) for a in reads):
            found.add(source)
    return frozenset(found)
