"""Programs: kernel calls in order, the storage of each value, packed constants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from atc.backends.flops import operations, traffic, work
from atc.backends.kernel_source import KernelSource
from atc.dims import Symbol, concrete, max_value, upper_bound
from atc.ir.graph import Alias, Array, Composite, Node, Slide, TensorType, original
from atc.program.axis_partition import AxisPartition
from atc.program.cascade import Stripe
from atc.select.select import Choice


@dataclass(frozen=True)
class Slot:
    """The part of a result that belongs to an iteration: `size` elements, counted from an end."""

    size: int
    trips: int
    backwards: bool


@dataclass(frozen=True)
class Call:
    """One kernel call. `arguments` are the values in the order of the C parameters."""

    node: Node
    choice: Choice
    source: KernelSource
    arguments: tuple[str, ...]
    in_place: tuple[str, ...]
    """Arguments whose storage the first output may take over."""
    also_in_place: tuple[tuple[str, str], ...] = ()
    """Arguments whose storage other outputs may take over, with the output."""
    slot: Slot | None = None
    """The part of the first output that is written, if not all of it is."""
    chosen: str = ""
    """The candidate among the choice's estimates, if this call's was made from it for threads."""
    share: float = 1.0
    """The part of the work of the choice's estimates that it does."""
    rows: float = 1.0
    """The part of its workload's rows that it computes."""
    partition: AxisPartition | None = None
    """The axis whose iterations threads share when the network runs, if they do."""
    gain: int = 1
    """Partitions are for several threads where this is above 0."""

    def overwritten_by(self, output: str) -> tuple[str, ...]:
        """Return the arguments whose storage an output may take over."""
        first = self.in_place if output == self.node.outputs[0] else ()
        return (*first, *(a for a, by in self.also_in_place if by == output))

    @property
    def candidate(self) -> str:
        """The label of the candidate that was chosen."""
        return self.chosen or self.choice.candidate.label

    @property
    def cost(self) -> float:
        """The estimated cost, 0 if there is no estimate."""
        return dict(self.choice.estimates).get(self.candidate, 0.0) * self.share

    @property
    def operations(self) -> int:
        """The additions and multiplications, for the largest shapes."""
        return round(operations(concrete(self.choice.workload)) * self.rows)

    @property
    def traffic(self) -> int:
        """The bytes of operands and results, for the largest shapes."""
        return round(traffic(concrete(self.choice.workload)) * self.rows)

    @property
    def work(self) -> float:
        """A rough, machine-independent time for the largest shapes, in bytes moved."""
        return work(concrete(self.choice.workload)) * self.rows


def with_rows(call: Call, choice: Choice, rows: int) -> Call:
    """Return the call of a kernel for so many rows of the workload that it was chosen for."""
    share = rows / choice.workload.outputs[0].shape[2]
    return replace(call, chosen=choice.candidate.label, share=share, rows=share)


@dataclass(frozen=True)
class Branch:
    """One of two lists of steps, chosen by the BOOL value `condition`."""

    node: Node
    condition: str
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]
    extents: tuple[tuple[int, int, int], ...] = ()
    """Extents that the branches write: each with its value in either branch."""
    guards: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """Extents that must be 0 where either branch is taken."""


@dataclass(frozen=True)
class Repeat:
    """Steps that run repeatedly: at most `trips` times (-1: any number) and at most `count`.

    Nothing runs if `start` is false; the loop ends once `going` is. These names are '' if there is
    no such value. `iteration` holds the number of the iteration.
    """

    node: Node
    trips: int
    count: str
    start: str
    iteration: str
    going: str
    body: tuple[Step, ...]
    collected: tuple[str, ...]
    """Results that the iterations write part by part."""
    trip_count: int = -1
    """An extent to which the loop writes the number of its iterations; -1 if there is none."""
    carried_extents: tuple[tuple[int, int, int], ...] = ()
    """Extents that change: each with its initial value, and that after an iteration."""
    strict: bool = False
    """Whether the run fails if the loop would go on after `trips` iterations."""
    guards: tuple[int, ...] = ()
    """Extents that must be 0 in every iteration."""

    @property
    def conditions(self) -> tuple[str, ...]:
        """The values read before each iteration."""
        return tuple(v for v in (self.count, self.start) if v)


@dataclass(frozen=True)
class CascadeLoop:
    """A cascade of calls: each computes the rows of its result that the next one needs.

    `stripes` are by stripe and call. A call's first argument is the result of the call before, a
    few rows of which are in a rolling buffer: those still needed are moved to its begin.
    """

    node: Node
    calls: tuple[Call, ...]
    stripes: tuple[tuple[Stripe, ...], ...]
    lead: int | None = None
    """Bytes that its result has to begin before the first call's first argument, if it may
    overwrite that; see `Cascade.lead`."""


def rows_of(call: Call, choice: Choice, begin: int, end: int) -> CascadeLoop:
    """Return a call of some rows of the result that its kernel was chosen for."""
    rows = with_rows(call, choice, end - begin)
    return CascadeLoop(call.node, (rows,), ((Stripe(begin, end, 0, 0),),))


@dataclass(frozen=True)
class Parallel:
    """Tasks that threads may run at the same time: slices of a node's work, or of a cascade's."""

    node: Node
    partitions: tuple[Call | CascadeLoop, ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of all partitions."""
        return tuple(calls(self.partitions))


@dataclass(frozen=True)
class Fork:
    """Lists of steps that threads may run at the same time: no list reads what another writes."""

    branches: tuple[tuple[Call | CascadeLoop, ...], ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of all branches."""
        return tuple(call for branch in self.branches for call in calls(branch))


@dataclass(frozen=True)
class Copy:
    """A value's copy to page-locked memory of the host, or from there back to the device.

    It begins here and runs beside the steps that follow, until its `Wait`.
    """

    source: str
    result: str
    to_host: bool


@dataclass(frozen=True)
class Wait:
    """The end of a copy: what follows may read its result, and write where its source was."""

    copy: Copy


Step = Call | Branch | Repeat | CascadeLoop | Parallel | Fork | Copy | Wait


@dataclass(frozen=True)
class State:
    """Memory that lasts from run to run: a run finds `value` in it and leaves `next` there.

    Results of a run may lie there before: `former` ones, each of which the one behind replaces in
    place. One that slides moves on after each run, as long as there is `room`, in bytes, behind it;
    or it is `anchored`: the program's last steps move it back, and addresses never change.
    """

    value: str
    next: str
    former: tuple[str, ...] = ()
    slide: Slide | None = None
    room: int = 0
    anchored: bool = False


def base_of(value: str, storage: Mapping[str, str]) -> str:
    """Return the value whose memory `value` lives in, by `storage`."""
    while value in storage:
        value = storage[value]
    return value


@dataclass(frozen=True)
class Program:
    """Steps over values.

    `storage` maps values that live in another one's memory to that one, `byte_offsets` to the
    bytes in it before them, if these aren't 0.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, Array]
    storage: Mapping[str, str]
    composites: tuple[Composite, ...] = ()
    byte_offsets: Mapping[str, int] = field(default_factory=dict)
    dims: tuple[Symbol, ...] = ()
    """The extents that are known only at run time."""
    guards: tuple[int, ...] = ()
    """Expressions of the extents that must be 0."""
    aliases: Mapping[str, Alias] = field(default_factory=dict)
    """The values that are others under another name, in another layout, or recomputed."""
    states: tuple[State, ...] = ()
    """The values that are kept from run to run; none are inputs or outputs."""
    lengths: tuple[tuple[int, int], ...] = ()
    """The extents of states, and the value of each in the next run."""

    def base(self, value: str) -> str:
        """Return the value whose memory `value` lives in."""
        return base_of(value, self.storage)

    @property
    def on_host(self) -> tuple[str, ...]:
        """The values that are in page-locked memory of the host, copied there from the device."""
        return tuple(s.result for s in self.steps if isinstance(s, Copy) and s.to_host)

    @property
    def output_bases(self) -> tuple[str, ...]:
        """The values whose memory the outputs live in, one each."""
        return tuple(self.base(output) for output in self.outputs)

    def byte_offset(self, value: str) -> int:
        """Return the bytes between the begin of a value's base and its own."""
        offset = self.byte_offsets.get(value, 0)
        while value in self.storage:
            value = self.storage[value]
            offset += self.byte_offsets.get(value, 0)
        return offset

    def most_bytes(self, value: str) -> int:
        """Return the most bytes of a value that begins as far behind its base as it may.

        What ends with its base is shorter, the later it begins.
        """
        offset = self.byte_offset(value)
        end = offset + self.types[value].nbytes
        return min(max_value(end), upper_bound(end)) - max_value(offset)


def swap_text(step: Copy | Wait, program: Program) -> str:
    """Return what is copied, or waited for, in words."""
    copy = step.copy if isinstance(step, Wait) else step
    value = original(copy.source, program.aliases)
    text = f"swap '{value[:200]}' {'out' if copy.to_host else 'in'}"
    return f"{text}: its end" if isinstance(step, Wait) else text


def forked_steps(parts: Sequence[Sequence[Step]]) -> list[Step]:
    """Return the steps of branches: a fork if more than one of them has any."""
    branches = tuple(
        tuple(step for step in part if isinstance(step, Call | CascadeLoop))
        for part in parts if part
    )
    if len(branches) < 2:
        return [step for part in parts for step in part]
    assert sum(map(len, branches)) == sum(map(len, parts)), "a branch holds calls only"
    return [Fork(branches)]


def most_branches(steps: Sequence[Step]) -> int:
    """Return the most branches of any fork, 1 if there is none."""
    return max((len(step.branches) for step in walk(steps) if isinstance(step, Fork)), default=1)


def walk(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield all steps in the order in which they are written and numbered."""
    for step in steps:
        yield step
        match step:
            case Branch():
                yield from walk(step.then)
                yield from walk(step.otherwise)
            case Repeat():
                yield from walk(step.body)
            case Fork():
                for branch in step.branches:
                    yield from branch


def has_bounded_loops(program: Program) -> bool:
    """Return whether a loop ends the run where it exceeds its declared bound."""
    return any(isinstance(step, Repeat) and step.strict for step in walk(program.steps))


def touched(step: Step) -> tuple[str, ...]:
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
        case Copy():
            return step.source, step.result
        case Wait():
            return touched(step.copy)
        case Fork():
            return ()  # its own steps follow


def calls(steps: Iterable[Step]) -> Iterator[Call]:
    """Yield all calls, those of branches and loops included."""
    for step in walk(steps):
        match step:
            case Call():
                yield step
            case CascadeLoop() | Parallel():
                yield from step.calls


def call_sources(program: Program) -> Iterator[list[int | str]]:
    """Yield the sources of each call's operands: the number of the call that wrote it, or an input.

    Constants are left out; if several calls write a value, its source is the latest one.
    """
    makers: dict[str, int | str] = {name: name for name in program.inputs}
    for number, call in enumerate(calls(program.steps)):
        yield list(dict.fromkeys(_makers(call, program, makers)))
        makers.update((program.base(o), number) for o in call.node.outputs)


def _makers(call: Call, program: Program, makers: dict[str, int | str]) -> Iterator[int | str]:
    for name in call.arguments[: len(call.arguments) - len(call.node.outputs)]:
        base = program.base(name)
        maker = makers.get(name, makers.get(base, makers.get(original(base, program.aliases))))
        if name not in program.constants and maker is not None:
            yield maker
