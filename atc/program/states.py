"""States of a program: their memory, and which of them a call may replace in place."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from atc.backends.target import Target
from atc.ir.graph import Graph, Node, Slide, TensorType
from atc.ir.ops.data import MoveRows, RowsMoved
from atc.ir.view import View, simplify_loops
from atc.program.steps import (
    Call,
    Fork,
    Program,
    State,
    Step,
    base_of,
    calls,
    touched,
    walk,
)

ALIGNMENT = 64
"""Bytes of which the begin of an anchored state's result is a multiple, as of any other value."""

MOVED_AT_ONCE = 32
"""States that one step moves back, at most."""


@dataclass(frozen=True)
class StateMemory:
    """The memory of a state, in bytes: in a first run it's found `lead` bytes behind the begin.

    What is kept for the next run are `runs` of bytes, each of which two loops count: extents and
    strides; in a first run the first begins `first` bytes behind the memory's begin. After a run
    all is `step` bytes further, or before where that is negative; `moved` bytes are moved back
    where that is more than the room.
    """

    size: int
    run: int
    loops: tuple[tuple[int, int], tuple[int, int]] = ((1, 0), (1, 0))
    lead: int = 0
    first: int = 0
    step: int = 0
    moved: int = 0
    room: int = 0

    @property
    def kept(self) -> int:
        """The bytes of the state, as the model has it."""
        return self.run * prod(extent for extent, _ in self.loops)

    @property
    def whole(self) -> bool:
        """Whether nothing else lies in it."""
        return self.kept == self.size


def memory_of(program: Program, state: State) -> StateMemory:
    """Return what a state's memory is like."""
    type_, slide = program.types[state.value], state.slide
    if slide is None:
        return StateMemory(type_.nbytes, type_.nbytes)
    memory = _sliding(type_, slide, state.room)
    if not state.anchored:
        return memory
    more = -memory.lead % ALIGNMENT
    return replace(
        memory, size=memory.size + more, lead=memory.lead + more, first=memory.first + more,
        step=0, moved=0,
    )  # fmt: skip


def _sliding(type_: TensorType, slide: Slide, room: int) -> StateMemory:
    one = type_.dtype.itemsize
    step, whole = one * slide.step, type_.nbytes
    loops = [(n, one * stride) for n, stride in zip(slide.loops, slide.strides, strict=True)]
    run = one
    if loops and loops[-1][1] == one:
        run *= loops.pop()[0]
    outer, inner = [*[(1, 0)] * (2 - len(loops)), *loops]
    if step < 0:  # what is new comes before what is kept, and that may reach beyond the input
        kept = one + one * sum((n - 1) * k for n, k in zip(slide.loops, slide.strides, strict=True))
        first, whole = room - step, max(whole, kept - step)
        return StateMemory(room + whole, run, (outer, inner), room, first, step, kept, room)
    lead = one * slide.behind
    size = lead + whole + room
    return StateMemory(size, run, (outer, inner), lead, 0, step, lead + whole - step, room)


def moves_back(states: Sequence[State], types: Mapping[str, TensorType]) -> Iterator[Node]:
    """Yield the nodes that move back what a run keeps of anchored states, for the next one."""
    every = [s for s in states if s.anchored]
    for k in range(0, len(every), MOVED_AT_ONCE):
        some = every[k : k + MOVED_AT_ONCE]
        moves = tuple(_rows_moved(types[s.value], s.slide) for s in some if s.slide)
        yield Node(MoveRows(moves), tuple(s.next for s in some), tuple(map(_place, some)), ())


def moved_back(state: State) -> State:
    """Return a state as the steps that move back those that are anchored leave it."""
    if not state.anchored:
        return state
    return replace(state, next=_place(state), former=(*state.former, state.next))


def _place(state: State) -> str:
    return f"{state.value}#moved"


def _rows_moved(type_: TensorType, slide: Slide) -> RowsMoved:
    """Return where a state lies that slides: rows of it in those of its result."""
    axes = sorted(zip(slide.strides, slide.loops, strict=True), reverse=True)
    strides, extents = zip(*axes, strict=True) if axes else ((), ())
    loops, (view,) = simplify_loops(extents, [View(strides)])
    rows = [*zip(loops, view.strides, strict=True)]
    length = rows.pop()[0] if rows and rows[-1][1] == 1 else 1
    ((count, pitch),) = rows or [(1, type_.size)]
    return RowsMoved(-slide.behind, count, pitch, length, slide.step)


def state_type(program: Program, state: State) -> TensorType:
    """Return the type that a state has in the model, or that of the buffer in which it grows."""
    type_ = program.types[state.value]
    return TensorType(type_.dtype, state.slide.shape) if state.slide else type_


def carried(
    graph: Graph, steps: Sequence[Step], types: Mapping[str, TensorType],
    storage: Mapping[str, str], target: Target,
) -> tuple[State, ...]:  # fmt: skip
    """Return the states of a graph whose steps these are.

    The next value is the graph's result if that may be computed in the state's memory, else a copy
    of it, made when all steps are done. Those that slide have room for some runs, none on small
    cores; on a GPU they are anchored, as all windows are moved by one launch, and graphs and what
    is read 16 bytes at a time want addresses that don't change.
    """
    found = []
    for given, computed in graph.states:
        value, result = graph.inputs[given], graph.outputs[computed]
        slide = graph.slides.get(value)
        fixed = target.bare or bool(target.device)
        space = _room(types[value], slide) if slide and not fixed else 0
        former: tuple[str, ...] = ()
        if may_replace(value, result, steps, types, storage):
            former = _former(value, result, steps, types, storage, graph.outputs)
        else:
            result = f"{value}#next"
        anchored = slide is not None and bool(target.device)
        found.append(State(value, result, former, slide, space, anchored))
    return tuple(found)


def _former(
    value: str, result: str, steps: Sequence[Step], types: Mapping[str, TensorType],
    storage: Mapping[str, str], outputs: Collection[str],
) -> tuple[str, ...]:  # fmt: skip
    """Return the results that may lie in a state's memory one after another, before the last.

    Each is read where it's replaced, in place, and never again.
    """
    found = [result]
    while True:
        (call,) = (c for c in calls(steps) if found[0] in c.node.outputs)
        later = _later(steps, call)
        assert later is not None
        read = {base_of(n, storage) for step in later for n in touched(step)} | {*outputs}
        before = next(
            (
                name for name in call.overwritten_by(found[0])
                if name not in read and types[name].nbytes == types[value].nbytes
                and all(base_of(a, storage) != name or a == name for a in call.arguments)
                and may_replace(value, name, steps, types, storage)
            ),
            None,
        )  # fmt: skip
        if before is None:
            return tuple(found[:-1])
        found.insert(0, before)


def _room(type_: TensorType, slide: Slide) -> int:
    """Return the bytes that a state may move on by before it's moved back.

    With half of its size that costs two more steps' bytes a run.
    """
    step = abs(slide.step)
    return max(type_.size // (2 * step), 1) * step * type_.dtype.itemsize


def _later(steps: Sequence[Step], call: Call) -> list[Step] | None:
    """Return the steps that may run beside a call or run after it; None in control flow."""
    for k, step in enumerate(steps):
        after = list(walk(steps[k + 1 :]))
        if step is call:
            return after
        if isinstance(step, Fork):
            for branch in step.branches:
                if (own := _later(branch, call)) is not None:
                    others = (other for other in step.branches if other is not branch)
                    return [*own, *(s for other in others for s in walk(other)), *after]
    return None


def may_replace(
    value: str, result: str, steps: Sequence[Step], types: Mapping[str, TensorType],
    storage: Mapping[str, str],
) -> bool:  # fmt: skip
    """Return whether one call writes all of a result after the last read of a value."""
    writers = [
        call for call in calls(steps) if result in (base_of(o, storage) for o in call.node.outputs)
    ]
    if result in storage or len(writers) != 1:
        return False
    (call,) = writers
    if result not in call.node.outputs or call.slot is not None:
        return False
    later = _later(steps, call)
    if later is None or any(base_of(n, storage) == value for s in later for n in touched(s)):
        return False
    return all(
        types[name].nbytes == types[result].nbytes and name in call.overwritten_by(result)
        for name in call.arguments
        if base_of(name, storage) == value
    )
