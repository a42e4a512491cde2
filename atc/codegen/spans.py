"""The steps of a program as they are numbered, and between which of them a storage lives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from atc.names import comment
from atc.program.steps import Branch, Call, CascadeLoop, Fork, Parallel, Program, Repeat, Step


def life_of(
    program: Program, value: str, first: int, last: int, *, lasts: bool = False
) -> str:
    """Return what the comment of a buffer says of it; some last from run to run."""
    life = "from run to run" if lasts else f"steps {first}-{last}"
    return f"{comment(value)} {program.types[value]}, {life}"


def spans_of(program: Program) -> dict[str, tuple[int, int]]:
    """Return the first and last step that reads or writes each storage."""
    spans: dict[str, tuple[int, int]] = {}
    for number, step in enumerate(_walk(program.steps)):
        for value in _touched(step):
            storage = program.home(value)
            spans[storage] = (spans.get(storage, (number, 0))[0], number)
    return spans


def _touched(step: Step) -> tuple[str, ...]:
    """Return the values that a step itself reads or writes."""
    match step:
        case Call():
            return step.arguments
        case Branch():
            return (step.condition,)
        case Repeat():
            own = (*step.conditions, *step.collected, step.iteration, step.going)
            return tuple(v for v in own if v)
        case CascadeLoop() | Parallel():
            return tuple(a for call in step.calls for a in call.arguments)
        case Fork():
            return ()  # its own steps follow


def _walk(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield all steps in the order in which they are written and numbered."""
    for step in steps:
        yield step
        match step:
            case Branch():
                yield from _walk(step.then)
                yield from _walk(step.otherwise)
            case Repeat():
                yield from _walk(step.body)
            case Fork():
                for branch in step.branches:
                    yield from branch
