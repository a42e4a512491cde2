"""Tables of a library built with hooks: the values that its kernel calls read and write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from atc.dims import concrete
from atc.ir.graph import TensorType, model_name
from atc.ir.text import node_text
from atc.names import c_string
from atc.program.steps import Call, Program, calls

_LONGEST = 1000
"""The most characters of a name; with 4 bytes each, still a string that C99 compilers accept."""

_Key = tuple[str, TensorType]
"""The key of a value: a part of a result has the result's name and the part's type."""

INPUT, WEIGHT, INTERNAL, OUTPUT = range(4)
"""Where a value lives: the codes of the generated enum."""


@dataclass(frozen=True)
class ObservedValue:
    """A value as kernel calls have it. `name` is a C string."""

    name: str
    type: TensorType
    kind: int


@dataclass(frozen=True)
class ObservedStep:
    """A kernel call: C strings as in `codegen.profile`, and the values it reads, then writes."""

    nodes: str
    op: str
    kernel: str
    reads: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class Observed:
    """The tables of a program."""

    values: tuple[ObservedValue, ...]
    steps: tuple[ObservedStep, ...]


def observed(program: Program) -> Observed:
    """Return the tables of all kernel calls, in the order in which they are written."""
    numbers: dict[_Key, int] = {}
    steps = tuple(
        ObservedStep(
            c_string(node_text(call.node)[:_LONGEST]),
            c_string(call.node.op.kind),
            c_string(call.choice.candidate.label),
            len(call.arguments) - len(call.node.outputs),
            tuple(numbers.setdefault(v, len(numbers)) for v in _values(program, call)),
        )
        for call in calls(program.steps)
    )
    values = tuple(
        ObservedValue(c_string(model_name(name, program.aliases)[:_LONGEST]), concrete(type_), kind)
        for (name, type_), kind in zip(numbers, _kinds(program, numbers), strict=True)
    )
    return Observed(values, steps)


def output_numbers(program: Program) -> tuple[int, ...]:
    """Return the number of each output among the values, as `observed` counts them.

    An output that is written under another name or in another shape has the number of that value.
    """
    numbers: dict[_Key, int] = {}
    written: dict[str, int] = {}  # by base, the latest one
    for call in calls(program.steps):
        for value in _values(program, call):
            numbers.setdefault(value, len(numbers))
        types = call.choice.workload.outputs
        for key in zip(call.node.outputs, types, strict=True):
            written[program.base(key[0])] = numbers[key]
    return tuple(
        numbers.get((o, program.types[o]), written.get(program.base(o), k))
        for k, o in enumerate(program.outputs)
    )


def _values(program: Program, call: Call) -> Iterator[tuple[str, TensorType]]:
    """Yield a call's arguments with their types; a part of a result has that of the part."""
    results = dict(zip(call.node.outputs, call.choice.workload.outputs, strict=True))
    reads = len(call.arguments) - len(results)
    for k, name in enumerate(call.arguments):
        yield name, program.types[name] if k < reads else results[name]


def _kinds(program: Program, values: Iterable[tuple[str, TensorType]]) -> Iterator[int]:
    inputs, bases = {*program.inputs}, {*program.output_bases}
    for name, _ in values:
        if name in inputs:
            yield INPUT
        elif name in program.constants:
            yield WEIGHT
        else:
            yield OUTPUT if program.base(name) in bases else INTERNAL
