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
            for base in dict.fromkeys(program.base(o) for o in call.node.outputs):
                writing.setdefault(base, []).append(k)
            for argument in call.arguments:
                last[program.base(argument)] = k
    for source, result in pairs:
        base = program.base(result)
        writers = writing.get(base, [])
        if len(writers) != 1 or program.base(source) != source or program.byte_offset(result):
            continue
        (at,) = writers
        one = program.steps[at]
        if last.get(source, -1) > at or not isinstance(one, Call) or one.slot is not None:
            continue
        reads = [a for a in one.arguments if program.base(a) == source]
        first = program.base(one.node.outputs[0]) == base
        if first and reads and all(a in one.in_place and not program.byte_offset(a) for a in reads):
            found.add(source)
    return frozenset(found)
