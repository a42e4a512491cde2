"""The values that each step of a program reads and writes, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from atc.program.steps import (
    Branch,
    Call,
    CascadeLoop,
    Copy,
    Fork,
    Parallel,
    Program,
    Repeat,
    Step,
    Wait,
)


@dataclass(frozen=True)
class Lane:
    """A branch of a fork, whose steps are numbered from `first` to `last`, others' among them."""

    first: int
    last: int
    branch: int


@dataclass(frozen=True)
class Event:
    """The values that a step reads and writes; `call` is None at the ends of branches and loops."""

    step: int
    call: Call | None
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    lane: Lane | None = None


def events_of(program: Program) -> Iterator[Event]:
    """Yield the values that each step of a program reads and writes, in order."""
    yield from _events(program, program.steps)


def step_ranges(program: Program) -> list[tuple[int, int]]:
    """Return the first and the last number that each of a program's own steps has in events."""
    found: list[tuple[int, int]] = []
    begin = 0
    for step in program.steps:
        *_, last = _events(program, (step,), begin)
        found.append((begin, last.step))
        begin = last.step + 1
    return found


def _events(program: Program, steps: Sequence[Step], start: int = 0) -> Iterator[Event]:
    """Yield the values that each step reads and writes, one branch after another."""
    step = start
    for item in steps:
        match item:
            case Call():
                results = item.node.outputs
                reads = tuple(a for a in item.arguments if a not in results)
                inner = [Event(step, item, reads, results)]
            case Branch():
                inner = [Event(step, None, (item.condition,), ())]
                for branch in (item.then, item.otherwise):
                    inner += _events(program, branch, inner[-1].step + 1)
            case Repeat():
                inner = _loop_events(program, item, step)
            case CascadeLoop() | Parallel():
                inner = [e for call in item.calls for e in _events(program, [call], step)]
            case Fork():
                inner = _fork_events(program, item, step)
            case Copy():
                inner = [Event(step, None, (item.source,), (item.result,))]
            case Wait():
                inner = [Event(step, None, (item.copy.source, item.copy.result), ())]
        yield from inner
        step = inner[-1].step + 1


def _fork_events(program: Program, fork: Fork, start: int) -> list[Event]:
    """Return a fork's events; no branch may overwrite what several of them use."""
    found: list[list[Event]] = []
    step = start
    for branch in fork.branches:
        found.append(list(_events(program, branch, step)))
        step = found[-1][-1].step + 1
    lanes = [Lane(start, step, k) for k in range(len(found))]
    users: dict[str, set[int]] = {}
    for k, branch_events in enumerate(found):
        for e in branch_events:
            for value in (*e.reads, *e.writes):
                users.setdefault(program.base(value), set()).add(k)
    common = tuple(base for base, branches in users.items() if len(branches) > 1)
    inside = [replace(e, lane=n) for n, own in zip(lanes, found, strict=True) for e in own]
    return [*inside, Event(step, None, common, ())]


def _loop_events(program: Program, loop: Repeat, start: int) -> list[Event]:
    """Return a loop's events; values that an iteration reads before writing live until its end."""
    events = [Event(start, None, loop.conditions, (*loop.collected, loop.iteration))]
    events += _events(program, loop.body, start + 1)
    fresh, lasting = {loop.iteration}, [*loop.conditions, *loop.collected]
    for event in events[1:]:
        lasting += (v for v in event.reads if v not in fresh)
        fresh.update(event.writes)
    lasting += [loop.going] if loop.going else []
    return [*events, Event(events[-1].step + 1, None, tuple(dict.fromkeys(lasting)), ())]
