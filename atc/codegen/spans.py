"""The numbered steps of a program, and the live range of each storage."""

from __future__ import annotations

from atc.names import comment
from atc.program.steps import Program, touched, walk


def life_of(
    program: Program, value: str, first: int, last: int, *, lasts: bool = False
) -> str:
    """Return the comment of a buffer; some last from run to run."""
    life = "from run to run" if lasts else f"steps {first}-{last}"
    return f"{comment(value)} {program.types[value]}, {life}"


def spans_of(program: Program) -> dict[str, tuple[int, int]]:
    """Return the first and last step that reads or writes each storage."""
    spans: dict[str, tuple[int, int]] = {}
    for number, step in enumerate(walk(program.steps)):
        for value in touched(step):
            storage = program.base(value)
            spans[storage] = (spans.get(storage, (number, 0))[0], number)
    return spans
