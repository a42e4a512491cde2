"""Sequences in gradients: what they hold is known, so only their tensors are differentiated."""

from __future__ import annotations

from collections.abc import Sequence

from atc.lower.gradient.derivatives import Variable
from atc.lower.gradient.tape import Place, expands
from atc.lower.sequence import elements, parts_of, position


def _parts(place: Place, k: int = 0) -> tuple[Variable, ...]:
    """Return the tensors of a sequence; one that is given from outside has constants."""
    own = place.operands[k].elements
    return tuple(map(Variable, elements(place.at, k))) if own is None else own


def _sequence(place: Place, parts: Sequence[Variable]) -> list[Variable]:
    b = place.tape.ctx.b
    dtype = b.type(parts[0].value).dtype if parts else None
    return [Variable(b.sequence([p.value for p in parts], dtype), tuple(parts))]


def _place(place: Place, k: int, count: int, last: int) -> int:
    """Return the position that operand `k` says, which must be a constant."""
    found = position(place.at, k, count, last)
    what = f"the gradient of a {place.node.op_type} at a position of the run"
    place.at.require(isinstance(found, int), what)
    return int(found)


@expands("SequenceConstruct")
def constructed(place: Place) -> list[Variable]:
    """Return the operands as a sequence."""
    return _sequence(place, place.operands)


@expands("SequenceAt")
def element(place: Place) -> list[Variable]:
    """Return the tensor itself."""
    parts = _parts(place)
    return [parts[_place(place, 1, len(parts), len(parts) - 1)]]


@expands("SequenceInsert")
def inserted(place: Place) -> list[Variable]:
    """Return the tensors with one more among them."""
    parts = _parts(place)
    at = _place(place, 2, len(parts), len(parts)) if place.has(2) else len(parts)
    return _sequence(place, [*parts[:at], place.operands[1], *parts[at:]])


@expands("SequenceErase")
def erased(place: Place) -> list[Variable]:
    """Return the tensors but one."""
    parts = _parts(place)
    at = len(parts) - 1
    at = _place(place, 1, len(parts), at) if place.has(1) else at
    return _sequence(place, [*parts[:at], *parts[at + 1 :]])


@expands("SplitToSequence")
def split(place: Place) -> list[Variable]:
    """Return the parts of a Split as a sequence."""
    axis, sizes, dropped = parts_of(place.at)
    x = place.operands[0]
    parts = [x]
    if len(sizes) > 1:
        parts = place.op("Split", x, place.ints(*sizes), outputs=len(sizes), axis=axis)
    if dropped:
        parts = [place.op("Squeeze", p, place.ints(axis)) for p in parts]
    return _sequence(place, parts)


@expands("ConcatFromSequence")
def joined(place: Place) -> list[Variable]:
    """Return the tensors side by side, along a new axis or not."""
    at, parts = place.at, _parts(place)
    if at.int("new_axis"):
        rank = len(place.shape(parts[0])) + 1
        return [place.stacked(parts, at.axis(at.int("axis"), rank))]
    return [place.op("Concat", *parts, axis=at.int("axis"))]
