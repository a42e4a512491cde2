"""Results that may overwrite an input: state that a step replaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from atc.program.steps import Call, Program, calls


def replaceable(
    inputs: Sequence[str], outputs: Sequence[str], able: Mapping[int, tuple[int, ...]]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return the inputs that the first output may overwrite, and those of others with the output.

    The kernel is `able` to let outputs overwrite inputs, by their numbers; each time that a call
    reads a value it must be so.
    """
    found = []
    for k, output in enumerate(outputs):
        places = able.get(k, ())
        elsewhere = {name for i, name in enumerate(inputs) if i not in places}
        found += [(inputs[i], output) for i in places if inputs[i] and inputs[i] not in elsewhere]
    first = tuple(name for name, output in found if output == outputs[0])
    return first, tuple(pair for pair in found if pair[1] != outputs[0])


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
