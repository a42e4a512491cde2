"""A program as the templates see it: C names for all values, declarations, the calls in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from atc.codegen.interface import Port
from atc.codegen.project_options import PLAIN, Instrumentation
from atc.codegen.spans import life_of, spans_of
from atc.codegen.steps import StepWriter
from atc.codegen.tasks import Task
from atc.codegen.uses import Uses, extent_text
from atc.dims import concrete, is_data_dependent
from atc.ir.graph import model_name
from atc.memory.arena import Arena
from atc.names import OF_DEVICES, OF_RANGES, OF_STRIPES, comment, tensor_identifiers
from atc.program.placement import uses_device
from atc.program.states import memory_of
from atc.program.steps import CascadeLoop, Program, touched, walk


@dataclass(frozen=True)
class Plan:
    """A program, its memory, and where its constants begin in the weights."""

    program: Program
    arena: Arena
    weights: Mapping[str, int]


@dataclass(frozen=True)
class Local:
    """A pointer of the run function into the arena or the weights."""

    c_name: str
    c_type: str
    offset: int | str
    comment: str


@dataclass(frozen=True)
class Schedule:
    """The values of the templates for one program."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    constants: tuple[Local, ...]
    values: tuple[Local, ...]
    groups: tuple[tuple[str, ...], ...]
    """The lines of each step of the run function."""
    uses: Uses
    tasks: tuple[Task, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The body of the run function."""
        return tuple(line for group in self.groups for line in group)


def make_schedule(
    plan: Plan, network: str, around: Instrumentation = PLAIN,
    writer: Callable[..., StepWriter] = StepWriter,
) -> Schedule:  # fmt: skip
    """Name every value once and write the calls, and what is done `around` them."""
    program, arena, weights = plan.program, plan.arena, plan.weights
    striped = any(isinstance(step, CascadeLoop) for step in walk(program.steps))
    used = [
        *[OF_RANGES] * bool(program.dims), *[OF_STRIPES] * striped,
        *[OF_DEVICES] * uses_device(program),
    ]  # fmt: skip
    names = tensor_identifiers([*program.inputs, *program.outputs], network, used)
    split = len(program.inputs)
    spans = spans_of(program)
    inputs = tuple(
        Port(v, n, concrete(program.types[v]), f"input_{k}", v in spans, program.types[v].shape)
        for k, (v, n) in enumerate(zip(program.inputs, names[:split], strict=True))
    )
    outputs = tuple(
        Port(
            model_name(v, program.aliases), n, concrete(program.types[v]), f"output_{k}",
            extents=program.types[v].shape,
        )  # fmt: skip
        for k, (v, n) in enumerate(zip(program.outputs, names[split:], strict=True))
    )
    constants = tuple(
        Local(f"w{k}", program.types[v].dtype.c, at, f"{comment(v)} {program.types[v]}")
        for k, (v, at) in enumerate(weights.items())
    )
    idle = {*arena.states}.difference(v for step in walk(program.steps) for v in touched(step))
    named = [
        v for v in arena.offsets if v not in idle and not is_data_dependent(program.byte_offset(v))
    ]
    uses = Uses()
    values = tuple(
        Local(
            f"t{k}", program.types[v].dtype.c, _place(plan, uses, v),
            life_of(program, v, *spans[program.base(v)], lasts=program.base(v) in arena.states),
        )  # fmt: skip
        for k, v in enumerate(named)
    )  # where others begin is found at every call
    pointers = {
        **{p.name: p.c_name for p in inputs},
        **{base: p.c_name for base, p in zip(program.output_bases, outputs, strict=True)},
        **{v: c.c_name for v, c in zip(weights, constants, strict=True)},
        **{v: c.c_name for v, c in zip(named, values, strict=True)},
    }
    own = writer(
        program, arena, pointers, around.timed, around.observed, around.checks is not None,
        around.logged, network.upper(), uses,
    )  # fmt: skip
    groups = own.groups()
    return Schedule(inputs, outputs, constants, values, groups, uses, tuple(own.tasks))


def _place(plan: Plan, uses: Uses, value: str) -> int | str:
    """Return the offset of a value in the arena, as C where the run decides it.

    It may depend on the dims, or on how far the state that the value lies in has moved on.
    """
    program, arena = plan.program, plan.arena
    base, offset = arena.bases.get(value), program.byte_offset(value)
    found = [(k, s) for k, s in enumerate(program.states) if s.value == base]
    number, state = found[0] if found else (0, None)
    moved = f" + ctx->moved[{number}]" if state is not None and state.room else ""
    if value not in arena.number:
        return f"{arena.offsets[value]}{moved}" if moved else arena.offsets[value]
    uses.places = True
    begin = f"at[{arena.number[value]}]{moved}"
    lead = memory_of(program, state).lead if state is not None else 0
    further = arena.guard + lead + offset
    return f"{begin} + {extent_text(uses, further)}" if arena.guard or lead or offset else begin
