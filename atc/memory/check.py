"""Check a memory plan against its buffers, sharing only data types with the planner."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from atc.errors import InternalError
from atc.memory.planner import Buffer, MemoryPlan


def check_plan(buffers: Sequence[Buffer], plan: MemoryPlan) -> None:
    """Raise InternalError unless the plan gives each buffer bytes of its own for its whole life.

    Checked: one offset for every buffer and for nothing else, alignment, the bounds of the arena,
    its size (a multiple of 64, not under the bound that the plan claims), and that no two buffers
    live at one step overlap, but for pairs that may. The message names the buffers at fault.
    """
    _check_names(buffers, plan)
    if plan.size % 64 or plan.size < plan.lower_bound:
        raise InternalError(
            f"arena size {plan.size} is not a multiple of 64 or below its bound {plan.lower_bound}"
        )
    for b in buffers:
        offset = plan.offsets[b.name]
        if b.first > b.last:
            raise InternalError(f"buffer {b.name!r} dies at {b.last}, before its birth {b.first}")
        if b.alignment < 1 or offset % b.alignment:
            raise InternalError(f"buffer {b.name!r} at {offset} is not aligned to {b.alignment}")
        if offset < 0 or b.size < 0 or offset + b.size > plan.size:
            raise InternalError(
                f"buffer {b.name!r} of {b.size} bytes at {offset} leaves the arena of {plan.size}"
            )
    sized = [b for b in buffers if b.size]
    _check_overlaps(_without_common_steps(sized, plan), plan)


def _without_common_steps(buffers: Sequence[Buffer], plan: MemoryPlan) -> Iterator[Buffer]:
    """Yield the buffers, those that others may and do overlap without the step of both.

    At that step each is checked against all other buffers.
    """
    over = {b.over: b for b in buffers if b.over}
    for b in buffers:
        by = over.get(b.name)
        if by is None or _apart(b, by, plan):
            yield b
            continue
        ahead = plan.offsets[b.name] - plan.offsets[by.name]
        if b.last != by.first or ahead < by.lead:
            raise InternalError(f"buffer {by.name!r} overlaps {b.name!r}, only {ahead} bytes ahead")
        for other in buffers:
            lives = other.first <= b.last <= other.last
            if lives and other.name not in (b.name, by.name) and not _apart(b, other, plan):
                raise InternalError(
                    f"buffers {b.name!r} and {other.name!r} overlap at step {b.last}"
                )
        if b.first < b.last:
            yield replace(b, last=b.last - 1)


def _apart(one: Buffer, other: Buffer, plan: MemoryPlan) -> bool:
    begin, start = plan.offsets[one.name], plan.offsets[other.name]
    return begin + one.size <= start or start + other.size <= begin


def _check_names(buffers: Sequence[Buffer], plan: MemoryPlan) -> None:
    names = [b.name for b in buffers]
    seen = set(names)
    if len(seen) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise InternalError(f"two buffers are called {twice!r}")
    for name in sorted(seen ^ set(plan.offsets)):
        what = "has no offset in the plan" if name in seen else "is in the plan but is not a buffer"
        raise InternalError(f"{name!r} {what}")


def _check_overlaps(buffers: Iterable[Buffer], plan: MemoryPlan) -> None:
    """Sweep over the steps with the live buffers in order of offset.

    They are disjoint before a birth, so a new buffer that overlaps any overlaps a neighbour.
    """
    by_name = {b.name: b for b in buffers}
    births = [(b.first, 1, plan.offsets[b.name], b) for b in by_name.values()]
    deaths = [(b.last + 1, 0, plan.offsets[b.name], b) for b in by_name.values()]
    live: list[tuple[int, str]] = []
    events = sorted(births + deaths, key=lambda event: event[:3])  # deaths come first at a step
    for step, born, offset, b in events:
        at = bisect_left(live, (offset, b.name))
        if not born:
            del live[at]
            continue
        for other_offset, name in live[max(at - 1, 0) : at + 1]:
            other = by_name[name]
            if other_offset < offset + b.size and offset < other_offset + other.size:
                raise InternalError(
                    f"buffers {name!r} at {other_offset} ({other.size} bytes) and {b.name!r} at"
                    f" {offset} ({b.size} bytes) overlap at step {step}"
                )
        insort(live, (offset, b.name))


def check_stack(
    order: Sequence[Buffer], below: Sequence[Sequence[int]], *, reuse: bool
) -> None:
    """Raise InternalError unless buffers that are live at one step are always ordered by `below`.

    `below` lists, for each buffer, some that end before it begins; the relation is transitive. Then
    such buffers are disjoint whatever their sizes.
    """
    sized = [k for k, b in enumerate(order) if b.size]
    for j, k in _neighbours(order, sized) if reuse else pairwise(sized):
        if not _reaches(below, k, j):
            raise InternalError(
                f"buffers {order[j].name!r} and {order[k].name!r} have no order in the arena"
            )


def _neighbours(order: Sequence[Buffer], sized: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of buffers that at some step have no other live buffer between them."""
    births = [(order[k].first, 1, k) for k in sized]
    deaths = [(order[k].last + 1, 0, k) for k in sized]
    live: list[int] = []
    changed: set[int] = set()
    """Buffers whose neighbour above may differ from that before this step."""
    step = 0
    for when, born, k in sorted(births + deaths):  # deaths come first at a step
        if when > step:
            yield from _above(live, changed)
            step, changed = when, set()
        at = bisect_left(live, k)
        changed.update(live[max(at - 1, 0) : at])
        if born:
            live.insert(at, k)
            changed.add(k)
        else:
            del live[at]
            changed.discard(k)
    yield from _above(live, changed)


def _above(live: Sequence[int], changed: set[int]) -> Iterator[tuple[int, int]]:
    for j in sorted(changed):
        at = bisect_left(live, j) + 1
        if at < len(live):
            yield j, live[at]


def _reaches(below: Sequence[Sequence[int]], k: int, j: int) -> bool:
    """Return whether buffer j lies below k, directly or through others."""
    seen, todo = {k}, [k]
    while todo:
        for i in below[todo.pop()]:
            if i == j:
                return True
            if i > j and i not in seen:
                seen.add(i)
                todo.append(i)
    return False
