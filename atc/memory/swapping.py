"""The search for what to swap so that an arena is within some bytes, at the least cost.

The gaps between two uses of a value are what there is to choose from. At the call that needs most,
the cheapest gap is taken: by the time that the copies take longer than the calls in it, by its
length, or by its bytes; of these rules that counts whose program is estimated to be fastest. Then
copies begin as early and end as late as the bytes left over allow, so that calls hide them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

from atc.memory.arena import Arena
from atc.memory.events import step_ranges
from atc.program.placement import on_device, segment_begins
from atc.program.steps import Call, Fork, Program, calls, touched, walk
from atc.program.swap import Swap, SwapModel, swapped

_GOALS = 6
"""Goals that are tried, each as much below the one before as its arena was too large."""


@dataclass(frozen=True)
class _Gap:
    """A value of so many `bytes` that no step between two touches, of which calls take `ns`.

    Without it `size` bytes are free between the two, and `spared` ones from the step `first` on, if
    it is the first part of another value: that needn't be there so early.
    """

    value: str
    bytes: int
    after: int
    before: int
    ns: float
    size: int
    first: int = 0
    spared: int = 0

    def helps(self, step: int) -> bool:
        """Return whether it makes room in a step."""
        early = self.spared > 0 and self.first <= step <= self.after
        return early or self.after < step < self.before

    def frees(self) -> Iterator[tuple[int, int]]:
        """Yield the steps in which it makes room, with the bytes."""
        if self.spared:
            yield from ((k, self.spared) for k in range(self.first, self.after + 1))
        yield from ((k, self.size) for k in range(self.after + 1, self.before))


_Rule = Callable[[_Gap, float], tuple[float, float]]
"""The price of a gap whose copies take so many nanoseconds, and what decides between equal ones."""

_RULES: tuple[_Rule, ...] = (
    lambda gap, copies: ((max(copies - gap.ns, 0.0) + 0.1 * copies) / gap.size, copies),
    lambda gap, copies: (-gap.ns, copies),
    lambda gap, copies: (-gap.size, -gap.ns),
)


def swap_within(
    program: Program, arena: Arena, model: SwapModel, size: int, minimum: int,
    plan: Callable[[Program], Arena],
) -> tuple[Program, Arena]:  # fmt: skip
    """Return the fastest program that swaps values and its arena of at most `size` bytes.

    `arena` is that of the program as it is, `plan` gives those of others. Values under `minimum`
    bytes stay. Where no arena is small enough the smallest is returned.
    """
    search = _Search(program, arena, model, minimum)
    best, goal = (program, arena), size
    for _ in range(_GOALS):
        if best[1].plan.size <= size:
            break
        made = min(
            (swapped(program, search.swaps(goal, rule)) for rule in _RULES),
            key=lambda p: model.times(p).run,
        )
        planned = plan(made)
        if planned.plan.size < best[1].plan.size:
            best = made, planned
        goal -= max(planned.plan.size - size, model.target.alignment)
    return best


@dataclass(frozen=True)
class _Search:
    program: Program
    arena: Arena
    model: SwapModel
    minimum: int

    @cached_property
    def clock(self) -> tuple[float, ...]:
        """The nanoseconds at which each step begins, and the end of the last."""
        return tuple(accumulate(map(self.model.step_ns, self.program.steps), initial=0.0))

    @cached_property
    def begins(self) -> frozenset[int]:
        return segment_begins(self.program)

    def _whole(self, size: int) -> int:
        unit = self.model.target.alignment
        return -(-size // unit) * unit

    @cached_property
    def loads(self) -> tuple[int, ...]:
        """The bytes that are taken at each step."""
        ranges = step_ranges(self.program)
        found = [0] * len(ranges)
        for buffer in self.arena.buffers:
            for k, (first, last) in enumerate(ranges):
                if buffer.first <= last and first <= buffer.last:
                    found[k] += self._whole(buffer.size)
        return tuple(found)

    @cached_property
    def gaps(self) -> tuple[_Gap, ...]:
        return tuple(self._gaps())

    def _gaps(self) -> Iterator[_Gap]:
        """Yield the gaps in the lives of values that only the device's calls touch."""
        program, bases = self.program, self.arena.bases
        users: dict[str, dict[str, list[tuple[int, str]]]] = {}  # by buffer, then by base
        written: dict[str, int] = {}
        fixed = {s.value for s in program.states}
        for k, step in enumerate(program.steps):
            plain = isinstance(step, Call | Fork) and on_device(step)
            for value in (v for s in walk((step,)) for v in touched(s) if v in bases):
                base = program.base(value)
                users.setdefault(bases[value], {}).setdefault(base, []).append((k, value))
                if not plain:
                    fixed.add(base)
            written |= {value: k for call in calls((step,)) for value in call.node.outputs}
        for own in users.values():
            uses = sorted({k for found in own.values() for k, _ in found})
            for after, before in pairwise(uses):
                for base, found in own.items():  # in place of one another: one at a time
                    there = found[0][0] <= after and before <= found[-1][0]
                    if there and base not in fixed and before - after > 1:
                        yield from self._gap(base, found, written, after, before)

    def _gap(
        self, base: str, found: Sequence[tuple[int, str]], written: Mapping[str, int],
        after: int, before: int,
    ) -> Iterator[_Gap]:  # fmt: skip
        """Yield the gap between two uses of a value, if all of it, or of a part, is there."""
        program = self.program
        values = {value for k, value in found if k <= after}
        later = {value for _, value in found if written.get(value, -1) > after}
        size, ns = program.types[base].nbytes, self.clock[before] - self.clock[after + 1]
        if not later:
            if size >= max(self.minimum, 1):
                whole = self._whole(size)
                yield _Gap(base, whole, after, before, ns, whole)
            return
        for value in sorted(values - {base}, key=lambda v: (program.types[v].nbytes, v)):
            own = program.types[value].nbytes
            within = {v for v in (*values, *later) if value in self._chain(v)}
            joined = any(k == before and value not in self._chain(v) for k, v in found)
            if own >= max(self.minimum, 1) and within == values and joined:
                whole, part = self._whole(size), self._whole(own)
                yield _Gap(value, part, after, before, ns, whole, found[0][0], whole - part)
                return

    def _chain(self, value: str) -> list[str]:
        """Return a value and those that it lives in."""
        found = [value]
        while found[-1] in self.program.storage:
            found.append(self.program.storage[found[-1]])
        return found

    def swaps(self, goal: int, rule: _Rule) -> list[Swap]:
        """Return swaps after which each step needs at most `goal` bytes, as far as that can be."""
        loads, chosen = list(self.loads), dict[_Gap, None]()
        hopeless = set[int]()
        while True:
            over = [k for k, load in enumerate(loads) if load > goal and k not in hopeless]
            if not over:
                break
            worst = max(over, key=lambda k: loads[k])
            away = {gap.value for gap in chosen}
            able = [gap for gap in self.gaps if gap not in chosen and gap.helps(worst)]
            if not able:
                hopeless.add(worst)
                continue
            taken = min(able, key=lambda gap: rule(gap, self._copies_ns(gap, away)))
            chosen[taken] = None
            for k, size in taken.frees():
                loads[k] -= size
        for gap in tuple(chosen):  # those that the later ones made superfluous
            if all(loads[k] + size <= goal for k, size in gap.frees()):
                del chosen[gap]
                for k, size in gap.frees():
                    loads[k] += size
        return self._spread(sorted(chosen, key=lambda gap: (gap.after, gap.value)), loads, goal)

    def _copies_ns(self, gap: _Gap, away: set[str]) -> float:
        return self.model.copy_ns(gap.bytes) * (1 if gap.value in away else 2)

    def _spread(self, gaps: Sequence[_Gap], loads: list[int], goal: int) -> list[Swap]:
        """Return the swaps of gaps, in the order of their begins, whose copies calls hide."""
        first = {gap.value: gap for gap in reversed(gaps)}
        found = {gap: Swap(gap.value, gap.after, gap.after, gap.before, gap.before) for gap in gaps}

        def room(k: int, size: int) -> bool:
            return loads[k] + size <= goal

        free = 0.0
        for gap in first.values():
            gone = gap.after
            free = max(free, self.clock[gone + 1]) + self.model.copy_ns(gap.bytes)
            while (
                self.clock[gone + 1] < free and gone + 2 < gap.before
                and gone + 1 not in self.begins and room(gone + 1, gap.bytes)
            ):  # fmt: skip
                gone += 1
                loads[gone] += gap.bytes
            found[gap] = replace(found[gap], gone=gone)
        free = self.clock[-1]
        for gap in sorted(gaps, key=lambda g: (g.before, g.value), reverse=True):
            begun = gap.before
            free = min(free, self.clock[begun]) - self.model.copy_ns(gap.bytes)
            while (
                self.clock[begun] > free and begun - 2 > found[gap].gone
                and begun - 1 not in self.begins and room(begun - 1, gap.size)
            ):  # fmt: skip
                begun -= 1
                loads[begun] += gap.size
            found[gap] = replace(found[gap], begun=begun)
        return list(found.values())

