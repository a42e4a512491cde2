"""Proves a memory plan against the program: every value is intact whenever it is read.

Shares nothing with the planner: it knows no live ranges and no in-place rules, only which bytes
each call reads and writes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod

from atc.dims import max_value
from atc.errors import InternalError
from atc.ir.ops import Block, Conv, ConvBlocked, Pool
from atc.program.cascade import Stripe
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
    calls,
)


@dataclass(frozen=True)
class _Span:
    begin: int
    end: int

    def meets(self, other: _Span) -> bool:
        return self.begin < other.end and other.begin < self.end

    def covers(self, other: _Span) -> bool:
        return self.begin <= other.begin and other.end <= self.end


def _rows_read(call: Call, stripe: Stripe) -> tuple[int, int]:
    """Return the rows of its first operand that a call reads for those of a stripe."""
    op, x = call.choice.workload.op, call.choice.workload.inputs[0]
    assert x is not None
    if isinstance(op, Block):
        return stripe.begin, stripe.end
    assert isinstance(op, Conv | ConvBlocked | Pool)
    window = op.window
    reach = (window.kernel[0] - 1) * window.dilations[0] + 1
    begin = stripe.begin * window.strides[0] - window.pads[0]
    end = (stripe.end - 1) * window.strides[0] - window.pads[0] + reach
    return max(begin, 0), min(end, x.shape[2])


@dataclass
class Intact:
    """Storages of which bytes hold their value, with the places of those, disjoint and in order.

    No byte is that of two storages: writing one of them spoils the other.
    """

    spans: dict[str, tuple[_Span, ...]] = field(default_factory=dict)
    order: list[tuple[int, int, str]] = field(default_factory=list)
    """Begin, end and storage of all places that aren't empty, ascending."""

    def copy(self) -> Intact:
        """Return one that changes by itself."""
        return Intact(dict(self.spans), list(self.order))

    def common(self, other: Intact) -> Intact:
        """Return what is intact in the same places in both."""
        spans = {k: v for k, v in self.spans.items() if other.spans.get(k) == v}
        return Intact(spans, [place for place in self.order if place[2] in spans])

    def put(self, storage: str, spans: tuple[_Span, ...]) -> None:
        """Let a storage be intact in other places than before, none for ()."""
        for span in self.spans.pop(storage, ()):
            if span.begin < span.end:
                del self.order[bisect_left(self.order, (span.begin, span.end, storage))]
        if spans:
            self.spans[storage] = spans
        for span in spans:
            if span.begin < span.end:
                insort(self.order, (span.begin, span.end, storage))

    def spoil(self, span: _Span, kept: str = "") -> None:
        """Drop all storages but one that have a byte in a span."""
        at = bisect_left(self.order, (span.begin,))
        at -= at > 0 and self.order[at - 1][1] > span.begin  # what begins before may reach in
        met = self.order[at : bisect_left(self.order, (span.end,))]
        for storage in dict.fromkeys(name for _, _, name in met if name != kept):
            self.put(storage, ())


def _joined(spans: Sequence[_Span], new: _Span) -> tuple[_Span, ...]:
    """Return the spans with a new one, those that touch as one."""
    found: list[_Span] = []
    for span in sorted((*spans, new), key=lambda s: s.begin):
        if found and span.begin <= found[-1].end:
            found[-1] = _Span(found[-1].begin, max(found[-1].end, span.end))
        else:
            found.append(span)
    return tuple(found)


def audit_memory(
    program: Program, offsets: Mapping[str, int], scratch: Mapping[str, int], size: int
) -> None:
    """Raise InternalError when a call reads a value whose bytes were overwritten.

    Executes the schedule on byte ranges: a write makes its value intact and spoils every other
    value it touches; scratch spoils what it touches; both branches of an If start from the same
    state. A copy beside other steps has its source and the place of its result to itself until it
    is waited for, and before that its result is nothing to read. Also checks that nothing lies
    outside the arena's `size` bytes, and that a call's result meets an operand only exactly (in
    place) and where its kernel allows it.
    """
    auditor = _Auditor(program, offsets, scratch, size)
    end = auditor.run(program.steps, auditor.begin())
    for state in program.states:
        auditor.read(state.next, end, "the next run")
    for value in program.outputs:
        auditor.read(value, end, "the caller")


def _on_its_way(copy: Copy) -> str:
    return f"{copy.result}#copied"


def _meeting(spans: Sequence[tuple[_Span, int, bool]]) -> int | None:
    """Return a branch that meets another one in a byte that one of them writes, None if none does.

    Spans come with their branch and whether it writes there. A sweep by their begins keeps the
    furthest ends, of two branches each, as a branch may meet itself.
    """
    ends: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
    for span, k, writes in sorted(spans, key=lambda s: (s[0].begin, s[0].end)):
        if span.begin == span.end:
            continue
        for written in (True, False) if writes else (True,):
            if any(j != k and end > span.begin for end, j in ends[written]):
                return k
        others = [(end, j) for end, j in ends[writes] if j != k]
        own = max([span.end, *(end for end, j in ends[writes] if j == k)])
        ends[writes] = sorted([(own, k), *others], reverse=True)[:2]
    return None


@dataclass(frozen=True)
class _Auditor:
    program: Program
    offsets: Mapping[str, int]
    scratch: Mapping[str, int]
    size: int

    def begin(self) -> Intact:
        """Return what is intact before the first step: the states, and inputs that have room."""
        intact = Intact()
        self._fill([state.value for state in self.program.states], intact)
        for value in self.program.inputs:
            span = self._span(value)
            if span is not None and any(span.meets(_Span(b, e)) for b, e, _ in intact.order):
                raise InternalError(f"memory plan: the input '{value}' meets another one")
            self._fill((value,), intact)
        return intact

    @cached_property
    def _following(self) -> frozenset[str]:
        """The values that the states become, one after another."""
        return frozenset(v for s in self.program.states for v in (*s.former, s.next))

    def _base(self, value: str) -> str:
        """Return the storage of a value; what a state becomes is another one than what it was."""
        while value in self.program.storage and value not in self._following:
            value = self.program.storage[value]
        return value

    def run(self, steps: Sequence[Step], intact: Intact) -> Intact:
        for step in steps:
            match step:
                case Call():
                    self._call(step, intact)
                case Branch():
                    self.read(step.condition, intact, "If")
                    ends = [self.run(s, intact.copy()) for s in (step.then, step.otherwise)]
                    intact = ends[0].common(ends[1])
                    if step.extents:  # results that are not as long in both
                        self._fill(step.node.outputs, intact)
                case Repeat():
                    intact = self._loop(step, intact)
                case CascadeLoop():
                    overwritten = self._check_stripes(step)
                    for call in step.calls:
                        self._call(call, intact, overwritten)
                case Parallel():
                    self._check_races(step)
                    intact = self.run(step.partitions, intact)
                case Fork():
                    self._check_branches(step)
                    for branch in step.branches:
                        intact = self.run(branch, intact)
                case Copy():
                    self._begin_copy(step, intact)
                case Wait():
                    self._end_copy(step.copy, intact)
        return intact

    def _begin_copy(self, copy: Copy, intact: Intact) -> None:
        """Let the place of a copy's result hold something that is on its way."""
        self.read(copy.source, intact, f"the copy to '{copy.result}'")
        span = self._placed(copy.result)
        intact.spoil(span)
        intact.put(_on_its_way(copy), (span,))

    def _end_copy(self, copy: Copy, intact: Intact) -> None:
        """Raise unless both places of a copy are as they were when it began."""
        self.read(copy.source, intact, f"the copy to '{copy.result}'")
        span = self._placed(copy.result)
        if not any(s.covers(span) for s in intact.spans.get(_on_its_way(copy), ())):
            raise InternalError(f"memory plan: '{copy.result}' was overwritten on its way")
        intact.put(_on_its_way(copy), ())
        self._write(copy.result, span, intact)

    def _placed(self, value: str) -> _Span:
        """Return the bytes of a value that has to be in the arena, or beyond it on the host."""
        span = self._span(value)
        if span is None:
            raise InternalError(f"memory plan: there is no place for '{value}'")
        return span

    def _check_stripes(self, step: CascadeLoop) -> str:
        """Raise unless the storages of a cascade's calls are disjoint, and each has its rows.

        The result may lie over rows of the first operand that were read; returns that then.
        """
        overwritten = ""
        where = f"memory plan: the chain to '{step.node.outputs[0]}'"
        values = dict.fromkeys(a for call in step.calls for a in call.arguments)
        spans = [(v, s) for v in values if (s := self._span(v)) is not None]
        written = {o for call in step.calls for o in call.node.outputs}
        for call in step.calls:
            if call.source.scratch:
                begin = self.scratch[call.node.outputs[0]]
                area = f"the scratch of {call.node.outputs[0]}"
                spans.append((area, _Span(begin, begin + max_value(call.source.scratch))))
                written.add(area)
        for k, (value, span) in enumerate(spans):
            for other, place in spans[:k]:
                if span.meets(place) and not written.isdisjoint((value, other)):
                    first = step.calls[0].arguments[0]
                    if {value, other} != {first, step.node.outputs[0]} or self._spoils(step):
                        raise InternalError(f"{where} holds '{value}' and '{other}' in one place")
                    overwritten = first
        for call, stripes in zip(step.calls, zip(*step.stripes, strict=True), strict=True):
            rows = self.program.types[call.node.outputs[0]].shape[2]
            goes_on = all(
                a.end == b.begin and a.y_first <= b.y_first <= b.begin for a, b in pairwise(stripes)
            )
            if not goes_on or any(t.begin > t.end or t.end - t.y_first > rows for t in stripes):
                raise InternalError(f"{where} writes rows of '{call.node.outputs[0]}' wrongly")
        for stripe in step.stripes:
            for call, before, own in zip(step.calls[1:], stripe, stripe[1:], strict=False):
                begin, end = _rows_read(call, own)
                inside = before.y_first <= begin and end <= before.end
                if own.begin < own.end and not (inside and own.x_first == before.y_first):
                    raise InternalError(f"{where} reads rows of '{call.arguments[0]}' too early")
        return overwritten

    def _spoils(self, step: CascadeLoop) -> bool:
        """Return whether rows of a cascade's result are written over rows that are yet read.

        A call's own rows must not meet at all.
        """
        source, result = step.calls[0].arguments[0], step.node.outputs[0]
        others = (a for call in step.calls[1:] for a in call.arguments)
        if source in others or step.calls[0].arguments.count(source) > 1:
            return True
        alone = len(step.calls) == 1
        reads = [_rows_read(step.calls[0], stripe[0]) for stripe in step.stripes]
        for k, stripe in enumerate(step.stripes):
            written = self._row_spans(result, stripe[-1].begin, stripe[-1].end)
            for begin, end in reads[k if alone else k + 1 :]:
                read = self._row_spans(source, begin, end)
                if any(one.meets(other) for one in written for other in read):
                    return True
        return False

    def _row_spans(self, value: str, begin: int, end: int) -> list[_Span]:
        """Return the bytes of some rows of a value, in each of its planes."""
        type_, whole = self.program.types[value], self._span(value)
        assert whole is not None
        planes, rows = prod(map(max_value, type_.shape[:2])), max_value(type_.shape[2])
        row = max_value(type_.nbytes) // (planes * rows)
        starts = (whole.begin + plane * rows * row for plane in range(planes))
        return [_Span(at + begin * row, at + end * row) for at in starts if begin < end]

    def _check_races(self, step: Parallel) -> None:
        """Raise unless each partition writes only what no other of them reads or writes.

        Chains write rows of one value.
        """
        result = step.node.outputs[0]
        chains = [p for p in step.partitions if isinstance(p, CascadeLoop)]
        ranges = sorted((p.stripes[0][-1].begin, p.stripes[-1][-1].end) for p in chains)
        disjoint = all(a[1] <= b[0] for a, b in pairwise(ranges))
        own = [list(calls([partition])) for partition in step.partitions]
        written = [[s for c in partition for s in self._written_by(c, result)] for partition in own]
        for k, partition in enumerate(own):
            names = (a for call in partition for a in call.arguments if a != result)
            touched = [*written[k], *(s for a in names if (s := self._span(a)))]
            others = [s for j, spans in enumerate(written) if j != k for s in spans]
            if not disjoint or any(one.meets(other) for one in touched for other in others):
                raise InternalError(f"memory plan: partitions of '{result}' meet")

    def _check_branches(self, step: Fork) -> None:
        """Raise unless no branch writes bytes that another one reads or writes, wherever they lie.

        Then whatever order they run in, each of them finds what it would find one after the other.
        """
        spans: dict[str, list[tuple[_Span, int, bool]]] = {}
        for k, branch in enumerate(step.branches):
            for call in calls(branch):
                for value in {**dict.fromkeys(call.arguments), **dict.fromkeys(call.node.outputs)}:
                    place, span = self._bytes(value)
                    spans.setdefault(place, []).append((span, k, value in call.node.outputs))
                if call.source.scratch:
                    begin = self.scratch[call.node.outputs[0]]
                    area = _Span(begin, begin + max_value(call.source.scratch))
                    spans.setdefault("", []).append((area, k, True))
        for own in spans.values():
            met = _meeting(own)
            if met is not None:
                last = step.branches[met][-1].node.outputs[0]
                raise InternalError(f"memory plan: the branch to '{last}' meets another one")

    def _bytes(self, value: str) -> tuple[str, _Span]:
        """Return where a value lies: in the arena, whose name is '', or in memory of its base's."""
        span = self._span(value)
        if span is not None:
            return "", span
        begin = max_value(self.program.byte_offset(value))
        return self.program.base(value), _Span(begin, begin + self.program.most_bytes(value))

    def _written_by(self, call: Call, shared: str) -> list[_Span]:
        own = [o for o in call.node.outputs if o != shared]
        spans = [s for o in own if (s := self._span(o)) is not None]
        if call.source.scratch:
            begin = self.scratch[call.node.outputs[0]]
            spans.append(_Span(begin, begin + max_value(call.source.scratch)))
        return spans

    def _loop(self, loop: Repeat, intact: Intact) -> Intact:
        """Run the body twice: what the first iteration spoils, the second one would read."""
        self._fill(loop.collected, intact)
        after = intact.copy()
        for _ in range(2):
            for value in loop.conditions:
                self.read(value, after, "Loop")
            self._fill((loop.iteration,), after)
            after = self.run(loop.body, after)
            for value in (loop.going, *loop.collected):
                self.read(value, after, "Loop")
        return intact.common(after)

    def _fill(self, values: Sequence[str], intact: Intact) -> None:
        """Let the schedule itself write values: they are intact, what lay there is spoiled."""
        for value in values:
            span = self._span(value)
            if span is not None:
                self._write(value, span, intact)

    def _write(self, value: str, span: _Span, intact: Intact) -> None:
        """Write a value: its storage is intact, so far as it was and there, no other is there."""
        base = self._base(value)
        intact.spoil(span, base)
        intact.put(base, _joined(intact.spans.get(base, ()), span))

    def _span(self, value: str) -> _Span | None:
        """Return the bytes of a value in the arena, None when it lives elsewhere."""
        if value not in self.offsets:
            return None
        begin = self.offsets[value]
        span = _Span(begin, begin + self.program.most_bytes(value))
        if begin < 0 or span.end > self.size:
            raise InternalError(f"memory plan: '{value}' lies outside the arena")
        return span

    def read(self, value: str, intact: Intact, where: str) -> None:
        """Raise unless a value's bytes are intact."""
        span = self._span(value)
        base = self._base(value)
        if span is None or span.begin == span.end:
            return
        if not any(s.covers(span) for s in intact.spans.get(base, ())):
            raise InternalError(f"memory plan: {where} reads '{value}', which was overwritten")

    def _call(self, call: Call, intact: Intact, overwritten: str = "") -> None:
        """Let a call read and write; `overwritten` is what a cascade's may lie over."""
        where = f"{call.node.op.kind} '{call.node.outputs[0]}'"
        outputs = call.node.outputs
        operands = [a for a in call.arguments if a not in outputs]
        for operand in operands:
            self.read(operand, intact, where)
        written = [(o, s) for o in outputs if (s := self._span(o)) is not None]
        spoiled = []
        if call.source.scratch:
            begin = self.scratch[outputs[0]]
            area = _Span(begin, begin + max_value(call.source.scratch))
            if area.end > self.size:
                raise InternalError(f"memory plan: the scratch of {where} lies outside the arena")
            self._check_disjoint(area, [*operands, *outputs], where, call)
            spoiled.append(area)
        for index, (output, span) in enumerate(written):
            others = [o for o, _ in written[:index]]
            apart = [o for o in operands if o != overwritten]
            self._check_disjoint(span, [*apart, *others], where, call, output)
        for span in spoiled:
            intact.spoil(span)
        for output, span in written:
            self._write(output, span, intact)

    def _check_disjoint(
        self, span: _Span, values: Sequence[str], where: str, call: Call, output: str = ""
    ) -> None:
        for value in values:
            other = self._span(value)
            if other is None or not other.meets(span):
                continue
            if not (output and other == span and _read_where_written(call, value, output)):
                raise InternalError(f"memory plan: {where} writes over '{value}' while it reads it")


def _read_where_written(call: Call, value: str, output: str) -> bool:
    """Return whether a call reads a value only where it then writes an output.

    Each time that it is an operand.
    """
    workload = call.choice.workload
    candidate, number = call.choice.candidate, call.node.outputs.index(output)
    able = candidate.kernel.overwrites(workload, candidate.params).get(number, ())
    operands = (i for i, type_ in enumerate(workload.inputs) if type_ is not None)
    places = [i for i, name in zip(operands, call.arguments, strict=False) if name == value]
    return value in call.overwritten_by(output) and all(i in able for i in places)
