"""Place buffers with known sizes and live ranges in one arena: static storage allocation.

Two buffers may share bytes unless both are live at some step. Finding the smallest arena is
NP-hard (Garey & Johnson 1979, problem SR2; Gergov, SODA 1999, gives a 3-approximation), but the
buffers of neural networks pack well. Greedy packings come first: an order of the buffers and a
rule for the gap to take (Sekiyama et al., "Profile-guided memory optimization for deep neural
networks", 2018; Pisarchyk & Lee, "Efficient memory management for deep neural net inference",
2020). While the best of them is above the lower bound, a search repacks it under lower ceilings: a
buffer that fits nowhere evicts those that proved easiest to place (the ejection pool of Nagata &
Bräysy 2009; Telamalloc, Maas et al., ASPLOS 2022, backtracks to the same end).

The greedy packings compare each buffer with all that are live at the same time. Where that takes
long, others that only look at the steps come first: buffers stacked on the highest one within their
live range, and a sweep in time, forwards or backwards, that keeps a list of free gaps as `malloc`
does. Where it would take too long, these are the only ones.

Nothing is random and nothing depends on a clock: equal buffers give equal plans on every machine,
in whatever order they are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from atc.errors import InternalError, UnsupportedError
from atc.memory.step_packings import stacked, swept

ARENA_ALIGNMENT = 64  # bytes; divides an arena's size, and offsets unless a buffer asks for less

_LARGEST_TOTAL = 1 << 46  # bytes; the search sums sizes in int64, each up to 2**16 times
_KEPT_PAIRS = 1 << 23  # up to so many conflicts are kept in lists (128 MiB), more are recomputed
_FEW_VISITS = 250_000  # neighbours that a greedy packing looks at in less than 0.1 s
_GREEDY_VISITS = 4_000_000  # neighbours looked at before the greedy packings stop: about 1 s
_ROUND_VISITS = 2_000_000  # the same for one round of the search: about 0.4 s
_UNPLACED = -1
_SEARCHED = ", then search"


@dataclass(frozen=True)
class Buffer:
    """Bytes that belong to one tensor from step `first` to step `last`, inclusive.

    `name` is the tensor's, or identifies a buffer without a tensor: `scratch_of` is the first
    result of the call whose scratch it is. `size` is in bytes and may be 0. The offset is a
    multiple of `alignment`, a power of two.

    `over` is a buffer that dies at the step at which this one is born, and that it may overlap
    if it begins at least `lead` bytes before: what is written there was read.
    """

    name: str
    size: int
    first: int
    last: int
    alignment: int = ARENA_ALIGNMENT
    scratch_of: str = ""
    over: str = ""
    lead: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """The offset of every buffer in the arena, in bytes, by the buffer's name.

    `size` is the arena's in bytes, a multiple of 64; no plan of these buffers is smaller than
    `lower_bound`. `method` names the packing that won. The arena's own address needs the largest
    alignment of its buffers.
    """

    offsets: Mapping[str, int]
    size: int
    lower_bound: int
    method: str


def plan_arena(
    buffers: Sequence[Buffer], *, iterations: int = 4, orders: int = 8
) -> MemoryPlan:
    """Pack the buffers so that those live at the same step share no byte.

    `iterations` is the number of rounds of the search after the greedy packings, of which the
    first `orders` are tried; 0 leaves it out, more of either never make the arena larger. Raises
    InternalError for invalid buffers and UnsupportedError for sizes beyond any address space.
    """
    ordered = _canonical(buffers)
    items = [b for b in ordered if b.size]
    conflicts = _Conflicts(items)
    bound = lower_bound(items)
    greedy = _best_greedy(items, conflicts, bound, orders)
    best = _search(items, conflicts, bound, greedy, iterations)
    placed = {b.name: offset for b, offset in zip(items, best.offsets, strict=True)}
    offsets = {b.name: placed.get(b.name, 0) for b in ordered}
    return MemoryPlan(offsets, best.size, bound, best.method)


def plan_no_reuse(buffers: Sequence[Buffer]) -> MemoryPlan:
    """Give every buffer bytes of its own, so that each tensor can still be read after the run."""
    ordered = _canonical(buffers)
    offsets = {b.name: 0 for b in ordered}
    end = 0
    for b in ordered:
        if b.size:
            offsets[b.name] = _align_up(end, b.alignment)
            end = offsets[b.name] + b.size
    return MemoryPlan(offsets, _align_up(end, ARENA_ALIGNMENT), lower_bound(buffers), "no reuse")


def lower_bound(buffers: Sequence[Buffer]) -> int:
    """Return the bytes that any plan needs: the largest sum of sizes live at one step.

    A size counts rounded up to the smallest alignment of all buffers, 64 at most: every offset is
    a multiple of that unit, so two live buffers never share one. (Rounding a size up to its own
    buffer's alignment would prove nothing: a buffer of smaller alignment fits in that padding.)
    """
    unit = min([ARENA_ALIGNMENT, *(b.alignment for b in buffers if b.size)])
    begins = [(b.first, 0, _align_up(b.size, unit)) for b in buffers]
    ends = [(b.last, 1, -_align_up(b.size, unit)) for b in buffers]
    sizes = {b.name: b.size for b in buffers}
    for b in buffers:
        if b.over in sizes:  # a pair that may overlap needs less at the step that has both
            under = sizes[b.over]
            least = max(b.size, _align_up(b.lead, unit) + under)
            less = _align_up(b.size, unit) + _align_up(under, unit) - _align_up(least, unit)
            begins.append((b.first, 0, -max(less, 0)))
            ends.append((b.first, 1, max(less, 0)))
    live = most = 0
    for _, _, change in sorted(begins + ends):  # at one step, begin before any ends
        live += change
        most = max(most, live)
    return _align_up(most, ARENA_ALIGNMENT)


def _canonical(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Return the buffers in an order that doesn't depend on the caller's; refuse invalid ones."""
    for b in buffers:
        if b.size < 0 or b.last < b.first or b.alignment < 1 or b.alignment & (b.alignment - 1):
            raise InternalError("invalid size, live range or alignment", where=str(b))
    names = sorted(b.name for b in buffers)
    for one, other in zip(names, names[1:], strict=False):
        if one == other:
            raise InternalError("two buffers have the same name", where=one)
    total = sum(b.size + b.alignment for b in buffers)
    if total > _LARGEST_TOTAL:
        raise UnsupportedError(
            f"the model's buffers need {total} bytes", hint="give the inputs smaller shapes"
        )
    return sorted(buffers, key=lambda b: (b.first, b.last, -b.size, b.alignment, b.name))


def _align_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


class _Conflicts:
    """Interference of buffers: `conflicts[i]` are those live at some step of buffer i."""

    def __init__(self, items: Sequence[Buffer]) -> None:
        self._last = np.array([b.last for b in items], dtype=np.int64)
        self._firsts = [b.first for b in items]
        begun = np.searchsorted(self._firsts, self._last, side="right")  # the items begin in order
        self._begun = [int(n) for n in begun]
        self.pairs = int(begun.sum()) - len(items) * (len(items) + 1) // 2
        self._indices = np.arange(len(items)).astype(object)  # lists made of it share their ints
        self._kept: dict[int, list[int]] = {}
        self._items = items
        number = {b.name: i for i, b in enumerate(items)}
        pairs = [(i, number[b.over]) for i, b in enumerate(items) if b.over in number]
        self._over = dict(pairs)
        self.overlapping: dict[int, set[int]] = {}
        """For a buffer, those that it may overlap, or that may overlap it."""
        for i, j in pairs:
            self.overlapping.setdefault(i, set()).add(j)
            self.overlapping.setdefault(j, set()).add(i)

    def span(self, i: int, j: int, offset: int) -> tuple[int, int]:
        """Return the bytes that buffer i must stay clear of where buffer j has this offset."""
        one, other = self._items[i], self._items[j]
        end = offset + other.size
        if self._over.get(i) == j:
            return min(offset - one.lead + one.size, end), end
        if self._over.get(j) == i:
            return offset, min(offset + other.lead, end)
        return offset, end

    def overlapped_last(self, sequence: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield the order, and one where buffers come right after those that may overlap them."""
        yield sequence
        if not self._over:
            return
        above = {j: i for i, j in self._over.items()}
        placed: dict[int, None] = {}
        for i in sequence:
            chain = [i]
            while (by := above.get(chain[-1])) is not None:
                chain.append(by)
            placed.update(dict.fromkeys(reversed(chain)))
        yield list(placed)

    def __getitem__(self, i: int) -> list[int]:
        if i in self._kept:
            return self._kept[i]
        begun = self._begun[i]
        alive = self._last[:begun] >= self._firsts[i]
        alive[i] = False
        found: list[int] = self._indices[:begun][alive].tolist()
        if self.pairs <= _KEPT_PAIRS:
            self._kept[i] = found
        return found


@dataclass(frozen=True)
class _Packing:
    offsets: list[int]
    size: int
    method: str


def _packing(items: Sequence[Buffer], offsets: list[int], method: str) -> _Packing:
    end = max((o + b.size for o, b in zip(offsets, items, strict=True)), default=0)
    return _Packing(offsets, _align_up(end, ARENA_ALIGNMENT), method)


# Rules: where a buffer goes among the sorted spans (start, end) that conflicting ones occupy.

_Spans = Sequence[tuple[int, int]]
_Rule = Callable[[_Spans, Buffer, int], int]
_Ints = NDArray[np.int64]


def _first_fit(spans: _Spans, buffer: Buffer, _ceiling: int) -> int:
    """Take the lowest gap that is large enough."""
    floor = 0
    for start, end in spans:
        if start - floor >= buffer.size:
            break
        if end > floor:
            floor = _align_up(end, buffer.alignment)
    return floor


def _best_fit(spans: _Spans, buffer: Buffer, _ceiling: int) -> int:
    """Take the smallest gap that is large enough, else the top."""
    gaps = []
    floor = 0
    for start, end in spans:
        if start - floor >= buffer.size:
            gaps.append((start - floor, floor))
        if end > floor:
            floor = _align_up(end, buffer.alignment)
    return min(gaps)[1] if gaps else floor


def _two_ends(spans: _Spans, buffer: Buffer, ceiling: int) -> int:
    """Take the bottom if it is free, else the top below the ceiling; solves a plain chain."""
    top = (ceiling - buffer.size) // buffer.alignment * buffer.alignment
    bottom_taken = any(start < buffer.size and end > 0 for start, end in spans)
    if bottom_taken and max(end for _, end in spans) <= top:
        return top
    return _first_fit(spans, buffer, ceiling)


# Tried in this order until the bound is met: the first two suit most networks, the third chains.
_GREEDY: tuple[tuple[str, _Rule], ...] = (
    ("size", _first_fit),
    ("peak", _first_fit),
    ("start", _two_ends),
    ("peak", _best_fit),
    ("end", _two_ends),
    ("life", _first_fit),
    ("area", _first_fit),
    ("end", _first_fit),
)


def _priority(order: str, b: Buffer, peak: int) -> tuple[int, ...]:
    """Return the sort key of placing a buffer; `peak` is the most bytes live in its range."""
    life = b.last - b.first + 1
    match order:
        case "size":
            return -b.size, -life
        case "peak":  # "by breadth": the fullest steps decide, so they come first
            return -peak, -b.size, -life
        case "life":
            return -life, -b.size
        case "area":
            return -life * b.size, -b.size
        case "start":
            return b.first, -life, -b.size
        case "end":
            return -b.last, -life, -b.size
    raise InternalError("unknown order of buffers", where=order)


def _peaks(items: Sequence[Buffer]) -> list[int]:
    """Return for each buffer the most bytes live at one of its steps."""
    size = np.array([b.size for b in items], dtype=np.int64)
    first = np.array([b.first for b in items], dtype=np.int64)
    last = np.array([b.last for b in items], dtype=np.int64)
    by_last = np.argsort(last, kind="stable")
    begun = np.concatenate([[0], np.cumsum(size)])
    ended = np.concatenate([[0], np.cumsum(size[by_last])])
    steps = first[np.diff(first, prepend=-1) > 0]  # the load grows nowhere else
    load = begun[np.searchsorted(first, steps, side="right")]
    load -= ended[np.searchsorted(last[by_last], steps)]
    begin, end = np.searchsorted(steps, first), np.searchsorted(steps, last, side="right")
    return [int(load[i:j].max()) for i, j in zip(begin, end, strict=True)]


def _best_greedy(
    items: Sequence[Buffer], conflicts: _Conflicts, bound: int, orders: int
) -> _Packing:
    best: _Packing | None = None
    if 2 * conflicts.pairs > _FEW_VISITS:
        best = min(_packed_by_steps(items, orders), key=lambda packing: packing.size)
        if best.size == bound or 2 * conflicts.pairs > _GREEDY_VISITS:
            return best
    peaks = _peaks(items)
    visits = 0
    for order, rule in _GREEDY[:orders]:
        sequence = sorted(range(len(items)), key=lambda i: _priority(order, items[i], peaks[i]))
        for each in conflicts.overlapped_last(sequence):
            offsets = _place_in_order(items, conflicts, each, rule, bound)
            packing = _packing(items, offsets, f"{order} order,{rule.__name__.replace('_', ' ')}")
            if best is None or packing.size < best.size:
                best = packing
        visits += 2 * conflicts.pairs
        assert best is not None
        if best.size == bound or visits > _GREEDY_VISITS:
            break
    assert best is not None
    return best


def _packed_by_steps(items: Sequence[Buffer], orders: int) -> Iterator[_Packing]:
    """Yield packings, as many as orders at most, whose time doesn't depend on the conflicts."""
    lives = [(b.first, b.last) for b in items]
    unit = max(b.alignment for b in items)
    sizes = [_align_up(b.size, unit) for b in items]

    def sequence(order: str) -> list[int]:
        return sorted(range(len(items)), key=lambda i: _priority(order, items[i], 0))

    begun = sequence("start")
    ended = sorted(begun, key=lambda i: -items[i].last)
    backwards = [(-last, -first) for first, last in lives]
    yield _packing(items, stacked(lives, sizes, sequence("life")), "life order, stacked")
    if orders > 1:
        yield _packing(items, swept(lives, sizes, begun), "sweep forwards, best fit")
    if orders > 2:
        yield _packing(items, swept(backwards, sizes, ended), "sweep backwards, best fit")
    for order in ("size", "area")[: max(orders - 3, 0)]:
        offsets = stacked(lives, sizes, sequence(order))
        yield _packing(items, offsets, f"{order} order, stacked")


def _place_in_order(
    items: Sequence[Buffer], conflicts: _Conflicts, order: Iterable[int], rule: _Rule, ceiling: int
) -> list[int]:
    """Place the buffers in an order, by the rule, clear of those before it."""
    offsets = [_UNPLACED] * len(items)
    ends = [0] * len(items)
    for i in order:
        near = conflicts.overlapping.get(i, ())
        spans = sorted([
            conflicts.span(i, j, o) if j in near else (o, ends[j])
            for j in conflicts[i] if (o := offsets[j]) != _UNPLACED
        ])  # fmt: skip
        offsets[i] = rule(spans, items[i], ceiling)
        ends[i] = offsets[i] + items[i].size
    return offsets


def _search(
    items: Sequence[Buffer], conflicts: _Conflicts, bound: int, best: _Packing, rounds: int
) -> _Packing:
    """Repack under the bound, then under ceilings by bisection between failure and best."""
    ceiling = failed = bound
    for _ in range(rounds):
        if ceiling >= best.size:
            break
        offsets = _repack(items, conflicts, best.offsets, ceiling)
        if offsets is None:
            failed = ceiling
        else:
            best = _packing(items, offsets, f"{best.method.removesuffix(_SEARCHED)}{_SEARCHED}")
        ceiling = _align_up((failed + best.size) // 2, ARENA_ALIGNMENT)
    return best


def _repack(
    items: Sequence[Buffer], conflicts: _Conflicts, offsets: list[int], ceiling: int
) -> list[int] | None:
    """Return offsets that end at or below the ceiling, or None if the visits don't suffice.

    Buffers that end above the ceiling wait in a pool, larger ones first. Each takes the place whose
    present owners weigh least, and these go to the pool. A weight is a size in bytes times how
    often its buffer fitted nowhere; recent failures count more, so that the search leaves cycles.
    """
    start = np.array(offsets, dtype=np.int64)
    size = np.array([b.size for b in items], dtype=np.int64)
    weight = size.copy()
    placed = start + size <= ceiling
    pool = [(-items[i].size, i) for i in np.flatnonzero(~placed).tolist()]
    heapify(pool)
    failures = 0
    visits = min(_ROUND_VISITS, 50_000 + 1000 * len(items))
    while pool and visits > 0:
        _, i = heappop(pool)
        near = np.array(conflicts[i], dtype=np.int64)
        visits -= 200 + len(near)  # a step costs as much as 200 visits by itself
        near = near[placed[near]]
        begin, end = start[near], start[near] + size[near]
        for j in conflicts.overlapping.get(i, ()):
            begin[near == j], end[near == j] = conflicts.span(i, j, int(start[j]))
        start[i] = _cheapest(begin, end, weight[near], items[i], ceiling)
        placed[i] = True
        evicted = near[(begin < start[i] + size[i]) & (end > start[i])]
        placed[evicted] = False
        for j in evicted.tolist():
            heappush(pool, (-items[j].size, j))
        if evicted.size:
            weight[i] += size[i] * (1 + failures // len(items))
            failures += 1
    return None if pool else start.tolist()


def _cheapest(begin: _Ints, end: _Ints, weight: _Ints, buffer: Buffer, ceiling: int) -> int:
    """Return the lowest offset among those under the ceiling that overlap the least weight.

    Some best offset is 0 or the end of a span: a buffer slid down to the next of them meets no
    span that it didn't already meet.
    """
    offset = np.concatenate([[0], -(-end // buffer.alignment) * buffer.alignment])
    offset = offset[offset + buffer.size <= ceiling]
    by_begin, by_end = np.argsort(begin), np.argsort(end)
    begun = np.concatenate([[0], np.cumsum(weight[by_begin])])
    ended = np.concatenate([[0], np.cumsum(weight[by_end])])
    cost = begun[np.searchsorted(begin[by_begin], offset + buffer.size)]
    cost -= ended[np.searchsorted(end[by_end], offset, side="right")]
    return int(offset[cost == cost.min()].min())
