"""Lower bounds of any plan, whatever it recomputes: bytes, and work within a budget.

At each call of a program its operands, its results and its scratch are live. Other values that are
live then were computed before and are read later; a plan that needs less has to recompute some of
them. Both bounds assume the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from atc.memory.arena import Arena
from atc.memory.events import events_of
from atc.program.steps import Call, Program


@dataclass(frozen=True)
class Moment:
    """A call, the bytes that it needs itself, and those of values that only later calls read."""

    call: str
    needed: int
    waiting: Mapping[str, int]


def moments(program: Program, arena: Arena) -> list[Moment]:
    """Return what is in the arena at each call.

    A result that could take over an operand's storage if that weren't read later counts as if it
    did.
    """
    sizes = {b.name: b.size for b in arena.buffers}
    scratch = {b.scratch_of: b.size for b in arena.buffers if b.scratch_of}
    lives = [b for b in arena.buffers if not b.scratch_of]
    lasting = {arena.bases.get(s.value, s.value) for s in program.states}
    found: list[Moment] = []
    for event in events_of(program):
        if event.call is None:
            continue
        bases = {arena.bases[v] for v in (*event.reads, *event.writes) if v in arena.bases}
        needed = sum(sizes.get(h, 0) for h in bases | lasting) + _scratch(event.call, scratch)
        needed -= _shared(event.call, arena, sizes)
        waiting = {
            b.name: b.size for b in lives
            if b.first < event.step < b.last and b.name not in bases | lasting
        }  # fmt: skip
        node = event.call.node
        found.append(Moment(" + ".join(node.origin) or node.outputs[0], needed, waiting))
    return found


def least_bytes(program: Program, arena: Arena) -> tuple[str, int]:
    """Return the call that needs most by itself, and its bytes: no arena can be smaller."""
    worst = max(moments(program, arena), key=lambda m: m.needed, default=Moment("", 0, {}))
    return worst.call, worst.needed


def least_work(program: Program, arena: Arena, size: int) -> float:
    """Return a lower bound on the recomputed work of any plan with an arena of `size` bytes.

    Whichever waiting values are dropped at a call, each has to be recomputed by at least one call.
    The bound is the cost of the cheapest choice (the last value may count in part), at the call
    where that is greatest.
    """
    cost: dict[str, float] = {}
    for event in events_of(program):
        for value in event.writes if event.call is not None else ():
            base = arena.bases.get(value)
            if base is not None and event.call is not None:
                cost[base] = min(cost.get(base, inf), event.call.work)
    bound = 0.0
    for moment in moments(program, arena):
        missing = moment.needed + sum(moment.waiting.values()) - size
        if missing <= 0:
            continue
        work = 0.0
        cheapest = sorted(moment.waiting, key=lambda h: cost.get(h, 0.0) / moment.waiting[h])
        for base in cheapest:
            part = min(1.0, missing / moment.waiting[base])
            work += part * cost.get(base, 0.0)
            missing -= moment.waiting[base]
            if missing <= 0:
                break
        bound = max(bound, work)
    return bound


def _scratch(call: Call, scratch: Mapping[str, int]) -> int:
    return scratch.get(call.node.outputs[0], 0)


def _shared(call: Call, arena: Arena, sizes: Mapping[str, int]) -> int:
    """Return the bytes that a result could share with an operand, but doesn't."""
    result = arena.bases.get(call.node.outputs[0])
    if result is None or any(arena.bases.get(a) == result for a in call.in_place):
        return 0
    size = sizes.get(result, 0)
    same = any(sizes.get(arena.bases.get(a, ""), -1) == size for a in call.in_place)
    return size if same else 0
