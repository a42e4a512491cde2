"""Place every activation and scratch buffer of a program in one arena."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from atc.dims import is_data_dependent, max_value
from atc.memory.audit import audit_memory
from atc.memory.check import check_plan, check_stack
from atc.memory.drawing import arena_svg
from atc.memory.events import Event, Lane, events_of
from atc.memory.planner import Buffer, MemoryPlan, lower_bound, plan_arena, plan_no_reuse
from atc.program.states import memory_of
from atc.program.steps import (
    Branch,
    Call,
    CascadeLoop,
    Program,
    Repeat,
    Step,
    base_of,
)

ALIGNMENT = 64
"""Bytes: one cache line, one AVX-512 vector."""
ORDERS = 8
"""Greedy packings that the planner tries before it searches."""


@dataclass(frozen=True)
class Arena:
    """Offsets of each value and each call's scratch, in bytes from the arena's start.

    Values that live in a caller's buffer or in the weights have no offset.
    """

    offsets: Mapping[str, int]
    scratch: Mapping[str, int]
    """By the first output of the call."""
    buffers: tuple[Buffer, ...]
    plan: MemoryPlan
    steps: tuple[int, ...] = ()
    """The step of each call, in the order of `atc.program.steps.calls`."""
    bases: Mapping[str, str] = field(default_factory=dict)
    """The buffer that each value lies in."""
    guard: int = 0
    """Bytes at both ends of every buffer that belong to no value."""
    sizes: tuple[int, ...] = ()
    """With run-time extents: each buffer's bytes, from the lowest offset up."""
    below: tuple[tuple[int, ...], ...] = ()
    """The buffers of `sizes` that lie below each one and must not overlap it."""
    states: Mapping[str, int] = field(default_factory=dict)
    """Offsets of the states, which last from run to run, at the arena's start."""
    number: Mapping[str, int] = field(default_factory=dict)
    """The number in `sizes` of each value's buffer."""
    scratch_number: Mapping[str, int] = field(default_factory=dict)
    """The number in `sizes` of each call's scratch, by the call's first output."""
    io: Mapping[str, int] = field(default_factory=dict)
    """Offsets of inputs and outputs (by their bases), if the arena has room for them."""
    on_host: Mapping[str, int] = field(default_factory=dict)
    """Offsets of the values that are swapped out, in memory of their own on the host."""
    host_size: int = 0
    """The bytes of that memory."""

    def _repr_html_(self) -> str:
        """Return the picture of the plan that a notebook shows."""
        return arena_svg(self.buffers, self.plan)


def plan_memory(
    program: Program, *, reuse: bool = True, in_place: bool = True, guard: int = 0,
    tries: int = 12, alignment: int = ALIGNMENT, io: bool = False,
) -> Arena:
    """Return a checked memory plan; without `reuse` every buffer has its own place.

    With `in_place`, results may take over the storage of operands that die at their call, and those
    of cascades overlap it. `guard` bytes, a multiple of ALIGNMENT, are left free at both ends of
    every buffer. The planner tries `tries` packings. Every value lies at a multiple of `alignment`
    bytes, at most ALIGNMENT. With `io` there is room for inputs until they are last read, for
    outputs from their first write on.
    """
    events = list(events_of(program))
    outside = {*program.inputs, *program.constants, *program.output_bases, *program.on_host}
    lasting = {s.value: memory_of(program, s) for s in program.states}
    fixed = {*outside, *lasting}
    base = _merge_in_place(program, events, fixed) if reuse and in_place else {}

    def place(value: str) -> str:
        return base_of(program.base(value), base)

    uses, extents = _uses(program, events, place, fixed)
    placed = [
        _lived(name, max_value(extents[name]) + 2 * guard, alignment, own)
        for name, own in uses.items()
    ]
    shared = _io_buffers(program, events, alignment) if io else []
    placed += [(buffer, None) for buffer in shared]
    if reuse and in_place and not guard and not program.dims:
        placed = _with_overlaps(program, placed, place)
    buffers = [buffer for buffer, _ in placed]
    plan = _plan_lanes(placed, tries) if reuse else plan_no_reuse(buffers)
    states, plan = _with_states(program, plan, guard)
    last = events[-1].step if events else 0
    extents |= {v: _whole_lines(m.size + 2 * guard) - 2 * guard for v, m in lasting.items()}
    buffers += [Buffer(v, extents[v] + 2 * guard, 0, last, ALIGNMENT) for v in lasting]
    check_plan(buffers, plan)
    values = dict.fromkeys([*lasting, *_named(program, events)])
    bases = {v: place(v) for v in values if place(v) not in outside}
    begins = {
        v: plan.offsets[h] + guard + (lasting[h].lead if h in lasting else 0)
        for v, h in bases.items()
    }
    offsets = {v: at + max_value(program.byte_offset(v)) for v, at in begins.items()}
    scratch = {b.scratch_of: plan.offsets[b.name] + guard for b in buffers if b.scratch_of}
    rooms = {b.name: plan.offsets[b.name] for b in shared}
    inside = {
        v: rooms[h] + max_value(program.byte_offset(v))
        for v in (*values, *program.inputs) if (h := program.base(v)) in rooms
    }  # fmt: skip
    # Branches may write parts of a result that no call names.
    storages = {program.base(v): at for v, at in begins.items()}
    swapped = _plan_on_host(program, events, tries)
    beyond = {v: plan.size + at for v, at in swapped.offsets.items()}  # one address space
    every = {**storages, **offsets, **inside, **beyond}
    audit_memory(program, every, scratch, plan.size + swapped.size)
    steps = tuple(e.step for e in events if e.call is not None)
    arena = Arena(
        offsets, scratch, tuple(buffers), plan, steps, bases, guard, states=states, io=rooms,
        on_host=swapped.offsets, host_size=swapped.size,
    )  # fmt: skip
    return _with_sizes(arena, extents, reuse) if program.dims else arena


def _with_sizes(arena: Arena, extents: Mapping[str, int], reuse: bool) -> Arena:
    """Return the arena with what places its buffers in a run that decides their extents."""
    order = sorted(arena.buffers, key=lambda b: (arena.plan.offsets[b.name], b.name))
    below = stacked(order, arena.plan, reuse=reuse)
    check_stack(order, below, reuse=reuse)
    number = {b.name: k for k, b in enumerate(order)}
    return replace(
        arena, sizes=tuple(extents[b.name] + 2 * arena.guard for b in order), below=below,
        number={v: number[arena.bases[v]] for v in arena.offsets},
        scratch_number={b.scratch_of: number[b.name] for b in order if b.scratch_of},
    )  # fmt: skip


def _lived(
    name: str, size: int, alignment: int, uses: Sequence[Event]
) -> tuple[Buffer, Lane | None]:
    """Return a buffer, and the lane that its life is one of."""
    first, last, lane = _life(uses)
    call = uses[0].call
    scratch_of = call.node.outputs[0] if call and name == _scratch_key(call) else ""
    return Buffer(name, size, first, last, alignment, scratch_of), lane


def _named(program: Program, events: Sequence[Event]) -> list[str]:
    """Return the values that calls name, and the bases of those that begin where the data say.

    These are written at an offset from their base.
    """
    named = dict.fromkeys(v for e in events for v in (*e.writes, *e.reads))
    moving = [program.base(v) for v in named if is_data_dependent(program.byte_offset(v))]
    return [*named, *moving]


def _uses(
    program: Program, events: Sequence[Event], place: Callable[[str], str], fixed: Set[str]
) -> tuple[dict[str, list[Event]], dict[str, int]]:
    """Return the events of each buffer, of values that aren't `fixed` and of scratch, and its size.
    """
    uses: dict[str, list[Event]] = {}
    extents: dict[str, int] = {}
    for event in events:
        if event.call is not None and event.call.source.scratch:
            key = _scratch_key(event.call)
            extents[key], uses[key] = event.call.source.scratch, [event]
        for value in (*event.reads, *event.writes):
            if (storage := place(value)) not in fixed:
                extents[storage] = program.types[storage].nbytes
                uses.setdefault(storage, []).append(event)
    return uses, extents


def _with_overlaps(
    program: Program, placed: Sequence[tuple[Buffer, Lane | None]], place: Callable[[str], str]
) -> list[tuple[Buffer, Lane | None]]:
    """Return the buffers, those of cascades' results allowed to overlap operands that die there."""
    known = {b.name: b for b, lane in placed if lane is None}

    def whole(value: str) -> Buffer | None:
        """Return the buffer that is a value and no more."""
        found = known.get(place(value), known.get(program.base(value)))
        same = found is not None and found.size == program.types[value].nbytes
        return found if same and not program.byte_offset(value) else None

    over: dict[str, tuple[str, int]] = {}
    for loop in _cascades(program.steps):
        first, *others = (a for call in loop.calls for a in call.arguments)
        x, y = whole(first), whole(loop.node.outputs[0])
        if loop.lead is None or x is None or y is None or x.last != y.first or x is y:
            continue
        if all(place(a) != place(first) for a in others):
            over[y.name] = x.name, loop.lead
    return [
        (replace(b, over=over[b.name][0], lead=over[b.name][1]) if b.name in over else b, lane)
        for b, lane in placed
    ]


def _cascades(steps: Iterable[Step]) -> Iterator[CascadeLoop]:
    """Yield the cascades of steps that one thread runs, in branches and loops, too."""
    for step in steps:
        match step:
            case CascadeLoop():
                yield step
            case Branch():
                yield from _cascades((*step.then, *step.otherwise))
            case Repeat():
                yield from _cascades(step.body)
            case _:
                pass


def _io_buffers(
    program: Program, events: Sequence[Event], alignment: int
) -> list[Buffer]:
    """Return the buffers of inputs, live before all steps, and of outputs, live after them.
    """
    uses: dict[str, list[Event]] = {}
    for event in events:
        for value in (*event.reads, *event.writes):
            uses.setdefault(program.base(value), []).append(event)
    end = max((e.lane.last if e.lane else e.step for e in events), default=0)
    found = []
    for name in program.inputs:
        last = _whole_forks(uses[name])[1] if name in uses else 0
        found.append(Buffer(name, max_value(program.types[name].nbytes), 0, last, alignment))
    for name in dict.fromkeys(program.output_bases):
        first = _whole_forks(uses[name])[0] if name in uses else 0
        found.append(Buffer(name, max_value(program.types[name].nbytes), first, end, alignment))
    return found


def _plan_on_host(program: Program, events: Sequence[Event], tries: int) -> MemoryPlan:
    """Return the places of swapped values: from the copy there until the last copy back."""
    uses: dict[str, list[Event]] = {value: [] for value in program.on_host}
    for event in events:
        for value in (*event.reads, *event.writes):
            if value in uses:
                uses[value].append(event)
    buffers = [
        Buffer(v, max_value(program.types[v].nbytes), own[0].step, own[-1].step, ALIGNMENT)
        for v, own in uses.items()
    ]
    plan = _packed(buffers, tries)
    check_plan(buffers, plan)
    return plan


def _with_states(
    program: Program, plan: MemoryPlan, guard: int
) -> tuple[dict[str, int], MemoryPlan]:
    """Return where the states lie, before all that is planned, and the plan after them."""
    offsets: dict[str, int] = {}
    size = 0
    for state in program.states:
        offsets[state.value] = size + guard
        size += _whole_lines(memory_of(program, state).size + 2 * guard)
    moved = {name: offset + size for name, offset in plan.offsets.items()}
    whole = replace(
        plan, offsets={**{v: at - guard for v, at in offsets.items()}, **moved},
        size=plan.size + size, lower_bound=plan.lower_bound + size,
    )  # fmt: skip
    return offsets, whole


def _whole_lines(size: int) -> int:
    """Return bytes rounded up, so that whatever follows them is aligned."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _life(events: Sequence[Event]) -> tuple[int, int, Lane | None]:
    """Return the live range of a buffer that is used at these events: in one branch of a fork, or
    else during the whole of each fork.
    """
    lane = events[0].lane
    if all(e.lane == lane for e in events):
        return events[0].step, events[-1].step, lane
    return *_whole_forks(events), None


def _whole_forks(events: Sequence[Event]) -> tuple[int, int]:
    """Return when the first of events is, and the last; in a fork that is the whole of it."""
    first = min(e.lane.first if e.lane else e.step for e in events)
    return first, max(e.lane.last if e.lane else e.step for e in events)


def _packed(buffers: Sequence[Buffer], tries: int) -> MemoryPlan:
    """Return the smallest of `tries` packings: those of the greedy orders, then of the search."""
    return plan_arena(buffers, orders=tries, iterations=max(tries - ORDERS, 0))


def _plan_lanes(placed: Iterable[tuple[Buffer, Lane | None]], tries: int) -> MemoryPlan:
    """Return a plan in which each branch of a fork has an area of its own for its buffers."""
    outside: list[Buffer] = []
    inside: dict[Lane, list[Buffer]] = {}
    for buffer, lane in placed:
        (outside if lane is None else inside.setdefault(lane, [])).append(buffer)
    if not inside:
        return _packed(outside, tries)
    plans = {lane: _packed(buffers, tries) for lane, buffers in inside.items()}
    for lane, buffers in inside.items():
        check_plan(buffers, plans[lane])
    areas = {
        lane: Buffer(f"{lane.first}#branch{lane.branch}", p.size, lane.first, lane.last, ALIGNMENT)
        for lane, p in plans.items()
    }
    whole = _packed([*outside, *areas.values()], tries)
    check_plan([*outside, *areas.values()], whole)
    offsets = {b.name: whole.offsets[b.name] for b in outside}
    for lane, own in plans.items():
        begin = whole.offsets[areas[lane].name]
        offsets |= {name: begin + offset for name, offset in own.offsets.items()}
    least = [replace(area, size=plans[lane].lower_bound) for lane, area in areas.items()]
    return replace(whole, offsets=offsets, lower_bound=lower_bound([*outside, *least]))


def stacked(
    order: Sequence[Buffer], plan: MemoryPlan, *, reuse: bool
) -> tuple[tuple[int, ...], ...]:
    """Return which buffers each one lies above, of those that it may not share bytes with.

    `order` ascends by offset. A buffer lies above the topmost before it at every step of its life;
    whatever else lives then is below that one.
    """
    if not reuse:
        return tuple((k - 1,) if k else () for k in range(len(order)))
    tops: list[tuple[int, int]] = [(0, -1)]
    """Steps from which on another buffer is the topmost so far, with its number; -1 for none."""
    below: list[tuple[int, ...]] = []
    for k, b in enumerate(order):
        if not b.size:
            below.append(())
            continue
        begin = bisect_right(tops, b.first, key=_step) - 1
        end = bisect_right(tops, b.last, key=_step)
        met = tops[begin:end]
        kept = [tops[begin]] if tops[begin][0] < b.first else []
        after = end < len(tops) and tops[end][0] == b.last + 1
        rest = [] if after else [(b.last + 1, met[-1][1])]
        tops[begin:end] = [*kept, (b.first, k), *rest]
        own = sorted({top for _, top in met if top >= 0})
        implied = {i for j in own for i in below[j]}
        below.append(tuple(j for j in own if j not in implied))
    return tuple(below)


def _step(top: tuple[int, int]) -> int:
    return top[0]


def _scratch_key(call: Call) -> str:
    return f"{call.node.outputs[0]}#scratch"  # fresh names hold a number after the last #


def _merge_in_place(
    program: Program, events: Sequence[Event], outside: set[str]
) -> dict[str, str]:
    """Return results that take over the storage of an operand that dies at their call."""
    last: dict[str, int] = {}
    first_write: dict[str, int] = {}
    writers: dict[str, int] = {}
    for event in events:
        for value in event.reads:
            last[program.base(value)] = event.step
        for value in event.writes:
            storage = program.base(value)
            last[storage] = max(last.get(storage, 0), event.step)
            first_write.setdefault(storage, event.step)
            writers[storage] = writers.get(storage, 0) + 1
    base: dict[str, str] = {}

    def place(value: str) -> str:
        return base_of(program.base(value), base)

    for event in events:
        if event.call is None:
            continue
        result = program.base(event.writes[0])
        if result in outside or writers[result] > 1 or result in base:
            continue
        for operand in event.call.in_place:
            storage = place(operand)
            same = program.types[storage].nbytes == program.types[result].nbytes
            if storage in outside or last[storage] != event.step or not same:
                continue
            others = [a for a in event.reads if a not in event.call.in_place]
            if storage == result or any(place(a) == storage for a in others):
                continue  # also read elsewhere by the same call
            base[result] = storage
            last[storage] = last[result]
            break
    return base
