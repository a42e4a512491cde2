"""Checked builds: what a library verifies before and after each kernel call.

Memory that no value lives in is filled with poison before a call and has to be unchanged after it;
values that a call doesn't write have to keep their checksums; results must have no NaN, no infinity
and nothing beyond a limit. Buffers have guard zones, so that there is such memory beside each of
them. For one value, by its number, each call that writes or reads it is logged on standard error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from atc.codegen.hooks import Observed, observed
from atc.errors import UnsupportedError, chain_text
from atc.ir.graph import DType, TensorType
from atc.ir.text import node_text
from atc.memory.arena import Arena
from atc.names import c_string
from atc.options.values import Checks
from atc.program.steps import Call, Program, call_sources, calls

GUARD = 64
"""Bytes of a guard zone on either side of a buffer."""

_LONGEST = 200
"""The most characters of a name, as a message has several."""

FLOATS: Mapping[DType, str] = {
    DType.FLOAT: "f32", DType.DOUBLE: "f64", DType.FLOAT16: "f16", DType.BFLOAT16: "bf16",
}  # fmt: skip


@dataclass(frozen=True)
class CheckedBuffer:
    """Bytes of the arena, without their guards, and the steps of their live range."""

    name: str
    offset: int
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class CheckedValue:
    """A tensor of floats: its name as a C string, the enumerator of its type, its elements."""

    name: str
    type: str
    size: int
    index: int = 0
    """Its index among the results of its call, or among the inputs."""


@dataclass(frozen=True)
class CheckedStep:
    """A kernel call: C strings, its step in the plan, the buffers and floats that it writes."""

    nodes: str
    kernel: str
    path: str
    time: int
    buffers: tuple[int, ...]
    values: tuple[CheckedValue, ...]


@dataclass(frozen=True)
class Checked:
    """The tables of a checked build; buffers are in the order of their offsets."""

    what: Checks
    inputs: tuple[CheckedValue, ...]
    buffers: tuple[CheckedBuffer, ...]
    steps: tuple[CheckedStep, ...]
    seen: Observed
    """All values by their numbers, and those of each call: one of them can be watched."""

    @property
    def memory(self) -> bool:
        """Whether there is memory to check."""
        return self.what.memory and bool(self.buffers)

    @property
    def results(self) -> bool:
        """Whether there are results whose numbers are checked."""
        return self.what.numbers and any(s.values for s in self.steps)

    @property
    def arguments(self) -> tuple[CheckedValue, ...]:
        """The inputs whose numbers are checked."""
        return self.inputs if self.what.numbers else ()


def checked(program: Program, arena: Arena, what: Checks) -> Checked:
    """Return the tables for a program whose arena was planned with guards.

    Raises UnsupportedError for dynamic shapes, with which buffers have no fixed offsets.
    """
    if program.dims:
        raise UnsupportedError(
            "checked builds take no ranges of shapes", where="--sanity_check",
            hint="pin the inputs with --input_shape to the shapes that go wrong",
        )  # fmt: skip
    buffers = sorted(arena.buffers, key=lambda b: (arena.plan.offsets[b.name], b.first, b.name))
    # Calls are at 1, 2, ..., states from 0.
    places = {b.name: k for k, b in enumerate(buffers) if not b.scratch_of}
    scratch = {b.scratch_of: k for k, b in enumerate(buffers) if b.scratch_of}
    table = tuple(
        CheckedBuffer(
            _text(b.scratch_of or b.name), arena.plan.offsets[b.name] + arena.guard,
            b.size - 2 * arena.guard, 0 if b.name in arena.states else b.first + 1, b.last + 1,
        )
        for b in buffers
    )  # fmt: skip
    steps = tuple(
        CheckedStep(
            _text(node_text(call.node)),
            _text(call.choice.candidate.label), path, time + 1,
            tuple(_written(call, arena, places, scratch)),
            tuple(_floats(call.node.outputs, call.choice.workload.outputs)),
        )
        for call, time, path in zip(
            calls(program.steps), arena.steps, _paths(program, what.path), strict=True
        )
    )  # fmt: skip
    inputs = tuple(_floats(program.inputs, [program.types[i] for i in program.inputs]))
    return Checked(what, inputs, table, steps, observed(program))


def _paths(program: Program, wanted: bool) -> Iterator[str]:
    """Yield, for each call, how its first operand was computed, as a C string; NULL if unwanted.

    That is the chain of calls from an input, each named by the first of its nodes.
    """
    chains: list[list[str]] = []
    for call, read in zip(calls(program.steps), call_sources(program), strict=True):
        first = read[0] if read else ""
        before = chains[first] if isinstance(first, int) else [first] if first else []
        chains.append([*before, call.node.origin[0] if call.node.origin else node_text(call.node)])
        yield _text(chain_text(before)) if wanted and before else "NULL"


def _written(
    call: Call, arena: Arena, places: Mapping[str, int], scratch: Mapping[str, int]
) -> Iterator[int]:
    """Yield the numbers of the buffers that a call may write."""
    yield from dict.fromkeys(places[arena.bases[o]] for o in call.node.outputs if o in arena.bases)
    if call.source.scratch:
        yield scratch[call.node.outputs[0]]


def _floats(names: Sequence[str], types: Sequence[TensorType]) -> Iterator[CheckedValue]:
    for k, (name, type_) in enumerate(zip(names, types, strict=True)):
        if type_.dtype in FLOATS and type_.size:
            yield CheckedValue(_text(name), FLOATS[type_.dtype], type_.size, k)


def _text(name: str) -> str:
    return c_string(name[:_LONGEST])
