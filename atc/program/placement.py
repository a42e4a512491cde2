"""The sides, host or GPU, on which values of a running program are, and the moves between them.

The device's arena has the same layout as the host's: a value has the same offset in both. A step
runs on one side, and what it reads must be there; bytes are moved only if just the other side has
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from atc.dims import decided
from atc.program.steps import Branch, Call, Copy, Fork, Program, Repeat, Step, Wait, calls


@dataclass(frozen=True)
class Move:
    """Bytes of a value's memory that are copied to the other side."""

    base: str
    begin: int
    end: int
    to_device: bool


@dataclass(frozen=True)
class Placement:
    """The moves before each of the program's own steps, and at the end."""

    before: tuple[tuple[Move, ...], ...]
    after: tuple[Move, ...]


def on_device(step: Step) -> bool:
    """Return whether a GPU runs a step. Control flow, with all that is in it, runs on the host."""
    if isinstance(step, Fork):
        return all(isinstance(s, Call) and on_device(s) for b in step.branches for s in b)
    if isinstance(step, Copy | Wait):
        return True
    return isinstance(step, Call) and step.source.launch is not None


def uses_device(program: Program) -> bool:
    """Return whether a GPU runs any step of a program."""
    return any(map(on_device, program.steps))


def place(program: Program, *, resident: bool) -> Placement:
    """Return the moves of a program whose inputs and outputs are the host's, or `resident`.

    States last on the device.
    """
    tracker = _Tracker(program)
    for value in program.inputs:
        tracker.write(value, resident)
    for state in program.states:
        tracker.write(state.value, True)
    before = []
    for step in program.steps:
        side = on_device(step)
        reads, writes = _accesses(step)
        kept = (v for v in writes if tracker.leaves_others(v))
        before.append(tuple(m for v in (*reads, *kept) for m in tracker.read(v, side)))
        for value in writes:
            tracker.write(value, side)
    lasting = (m for s in program.states for m in tracker.read(s.value, True))
    after = (*lasting, *(m for v in program.outputs for m in tracker.read(v, resident)))
    return Placement(tuple(before), after)


def segment_begins(program: Program) -> frozenset[int]:
    """Return the numbers of the steps before which the host does something: graphs end there."""
    found = set[int]()
    for resident in (False, True):
        for k, moves in enumerate(place(program, resident=resident).before):
            if any(move.base not in program.inputs for move in moves):  # these come before all
                found.add(k)
    for k, step in enumerate(program.steps):
        if not on_device(step):
            found |= {k, k + 1}
    return frozenset(found)


def _accesses(step: Step) -> tuple[Sequence[str], Sequence[str]]:
    """Return the values that a step reads and writes.

    Control flow may leave unchanged what it writes: that is read, too.
    """
    if isinstance(step, Call):
        results = step.node.outputs
        reads = (a for a in step.arguments if a not in results)
        # A part of a result leaves the rest as it was.
        return (*reads, *(results if step.slot else ())), results
    if isinstance(step, Wait):
        return (), ()
    touched = tuple(dict.fromkeys(_touched((step,))))
    if isinstance(step, Copy):
        return (touched, ()) if step.to_host else ((), touched)
    written = {o for call in calls((step,)) for o in call.node.outputs}
    written |= {step.iteration, *step.collected} if isinstance(step, Repeat) else set()
    return touched, tuple(v for v in touched if v in written)


def _touched(steps: Sequence[Step]) -> Iterator[str]:
    """Yield all values that steps read or write, those of branches and loops included.

    The page-locked copy of a value is nobody's but the device's.
    """
    for step in steps:
        match step:
            case Branch():
                yield step.condition
                yield from _touched((*step.then, *step.otherwise))
            case Repeat():
                own = (*step.conditions, *step.collected, step.iteration, step.going)
                yield from (v for v in own if v)
                yield from _touched(step.body)
            case Copy():
                yield step.source if step.to_host else step.result
            case _:
                yield from (a for call in calls((step,)) for a in (*call.arguments,))


class _Tracker:
    """The sides that have each range of memory; neither has what was never written."""

    def __init__(self, program: Program) -> None:
        self.program = program
        cuts: dict[str, set[int]] = {}
        lasting = (s.value for s in program.states)
        for value in (*program.inputs, *program.outputs, *lasting, *_touched(program.steps)):
            if value not in program.constants:
                base, begin, end = self._span(value)
                cuts.setdefault(base, set()).update((begin, end))
        self.whole: dict[str, int] = {}
        """The sizes of memory whose parts aren't tracked: they depend on a run's extents."""
        self.points: dict[str, list[int]] = {}
        for base, found in cuts.items():
            points = decided(partial(sorted, found))
            if points is None:
                self.whole[base] = program.types[base].nbytes
                points = [0, self.whole[base]]
            self.points[base] = points
        self.sides: dict[tuple[str, int], frozenset[bool]] = {}

    def _span(self, value: str) -> tuple[str, int, int]:
        begin = self.program.byte_offset(value)
        return self.program.base(value), begin, begin + self.program.types[value].nbytes

    def leaves_others(self, value: str) -> bool:
        """Return whether a value is a part of memory that is moved as a whole."""
        base, begin, end = self._span(value)
        return base in self.whole and (begin, end) != (0, self.whole[base])

    def _own(self, value: str) -> Iterator[tuple[str, int, int]]:
        base, begin, end = self._span(value)
        if base in self.whole:
            begin, end = 0, self.whole[base]
        points = self.points.get(base, [])
        if points:
            own = points[points.index(begin) : points.index(end) + 1]
            yield from ((base, a, b) for a, b in pairwise(own))

    def read(self, value: str, side: bool) -> Iterator[Move]:
        """Yield the moves after which a side has a value, adjacent ones merged."""
        if value in self.program.constants:
            return
        pending: Move | None = None
        for base, begin, end in self._own(value):
            have = self.sides.get((base, begin), frozenset())
            if not have or side in have:
                continue
            self.sides[base, begin] = have | {side}
            if pending is not None and pending.end == begin:
                begin = pending.begin
            elif pending is not None:
                yield pending
            pending = Move(base, begin, end, side)
        if pending is not None:
            yield pending

    def write(self, value: str, side: bool) -> None:
        """Record that a side has written a value: the other side's copy is stale."""
        for base, begin, _ in self._own(value):
            self.sides[base, begin] = frozenset({side})
