"""The values that are complete in memory after each step of a run, for code that inspects them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atc.ir.graph import TensorType, is_own, original
from atc.memory.arena import Arena
from atc.program.steps import Call, CascadeLoop, Program, Step


@dataclass(frozen=True)
class StepValue:
    """A result of a node of the model, `offset` bytes from the begin of a buffer.

    `names` are those that the model may have for it, `type` is as in memory. `buffer` is 0 for the
    arena, 1 and up for the outputs.
    """

    node: str
    names: tuple[str, ...]
    type: TensorType
    step: int
    buffer: int
    offset: int


def step_values(program: Program, arena: Arena) -> Iterator[StepValue]:
    """Yield the results of a network of one shape, in the order of its steps.

    What lies in a state that moves on is left out where its place isn't fixed, or it has moved.
    """
    last = len(program.steps) - 1
    sliding = {s.value for s in program.states if s.slide}
    roomy = {s.value for s in program.states if s.room}
    for number, step in enumerate(program.steps):
        call = _last(step)
        if call is None or not call.node.origin:
            continue
        types = call.choice.workload.outputs
        for name, type_ in zip(call.node.outputs, types, strict=True):
            if arena.bases.get(name, name) in (sliding if number == last else roomy):
                continue
            place = _place(program, arena, name)
            names = tuple(v for v in _names(program, name) if not is_own(v))
            packed = program.types[name] != type_  # as the next kernel reads it, in no known order
            if place is not None and names and not packed:
                yield StepValue(call.node.origin[-1], names, type_, number, *place)


def _last(step: Step) -> Call | None:
    """Return the call that completes the result of a step."""
    match step:
        case Call(slot=None):
            return step
        case CascadeLoop():
            return step.calls[-1]
    return None


def _place(program: Program, arena: Arena, name: str) -> tuple[int, int] | None:
    """Return the buffer of a value and the offset in it; None if it's in neither."""
    base, offset = program.base(name), program.byte_offset(name)
    if base in program.output_bases:
        return 1 + program.output_bases.index(base), offset
    if name in arena.offsets:
        return 0, arena.offsets[name]
    return (0, arena.offsets[base] + offset) if base in arena.offsets else None


def _names(program: Program, name: str) -> Iterator[str]:
    """Yield the names of a value and of those that share all of its memory."""
    yield original(name, program.aliases)
    if program.base(name) == name:
        for other in program.storage:
            same = program.base(other) == name and not program.byte_offset(other)
            if same and program.types[other].nbytes == program.types[name].nbytes:
                yield original(other, program.aliases)
