"""Sequences in gradients: what they hold is known, so only their tensors are differentiated."""

from __future__ import annotations

from collections.abc import Sequence

from atc.lower.gradient.derivatives import Variable
from atc.lower.gradient.tape import Site, expands
from atc.lower.sequence import elements, parts_of, position


def _parts(site: Site, k: int = 0) -> tuple[Variable, ...]:
    """Return the tensors of a sequence; one that is given from outside has constants."""
    own = site.operands[k].elements
    return tuple(map(Variable, elements(site.at, k))) if own is None else own


def _sequence(site: Site, parts: Sequence[Variable]) -> list[Variable]:
    b = site.tape.ctx.b
    dtype = b.type(parts[0].value).dtype if parts else None
    return [Variable(b.sequence([p.value for p in parts], dtype), tuple(parts))]


def _place(site: Site, k: int, count: int, last: int) -> int:
    """Return the position that operand `k` says, which must be a constant."""
    found = position(site.at, k, count, last)
    what = f"the gradient of a {site.node.op_type} at a position of the run"
    site.at.require(isinstance(found, int), what)
    return int(found)


@expands("SequenceConstruct")
def constructed(site: Site) -> list[Variable]:
    """Return the operands as a sequence."""
    return _sequence(site, site.operands)


@expands("SequenceAt")
def element(site: Site) -> list[Variable]:
    """Return the tensor itself."""
    parts = _parts(site)
    return [parts[_place(site, 1, len(parts), len(parts) - 1)]]


@expands("SequenceInsert")
def inserted(site: Site) -> list[Variable]:
    """Return the tensors with one more among them."""
    parts = _parts(site)
    at = _place(site, 2, len(parts), len(parts)) if site.has(2) else len(parts)
    return _sequence(site, [*parts[:at], site.operands[1], *parts[at:]])


@expands("SequenceErase")
def erased(site: Site) -> list[Variable]:
    """Return the tensors but one."""
    parts = _parts(site)
    at = len(parts) - 1
    at = _place(site, 1, len(parts), at) if site.has(1) else at
    return _sequence(site, [*parts[:at], *parts[at + 1 :]])


@expands("SplitToSequence")
def split(site: Site) -> list[Variable]:
    """Return the parts of a Split as a sequence."""
    axis, sizes, dropped = parts_of(site.at)
    x = site.operands[0]
    parts = [x]
    if len(sizes) > 1:
        parts = site.op("Split", x, site.ints(*sizes), outputs=len(sizes), axis=axis)
    if dropped:
        parts = [site.op("Squeeze", p, site.ints(axis)) for p in parts]
    return _sequence(site, parts)


@expands("ConcatFromSequence")
def joined(site: Site) -> list[Variable]:
    """Return the tensors side by side, along a new axis or not."""
    at, parts = site.at, _parts(site)
    if at.int("new_axis"):
        rank = len(site.shape(parts[0])) + 1
        return [site.stacked(parts, at.axis(at.int("axis"), rank))]
    return [site.op("Concat", *parts, axis=at.int("axis"))]
