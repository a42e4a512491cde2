"""Follow what only moves elements backwards: from a value to that which it is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from atc.dims import is_dynamic
from atc.ir.expr import Const, Input
from atc.ir.graph import Node
from atc.ir.ops import Map, Reshape
from atc.ir.ops.data import Concat, Scatter
from atc.ir.view import addresses

Places = npt.NDArray[np.int64]
"""Addresses of elements, in the order of those that are moved from there."""


def movement_of(node: Node) -> Map | None:
    """Return the op of a node that only moves elements, to and from places known when compiling."""
    op = node.op
    known = isinstance(op, Map) and op.is_movement and not is_dynamic(op)
    return op if isinstance(op, Map) and known and len(node.inputs) == 1 else None


def source_of(
    made: Mapping[str, Node], value: str, through: Callable[[str], bool] = lambda value: True
) -> tuple[list[Map], str]:
    """Return the movements that make a value, last one first, and what they move.

    Values are followed that may be looked `through`; reshapes don't count.
    """
    moves: list[Map] = []
    while (node := made.get(value)) is not None and through(value) and len(node.inputs) == 1:
        if (move := movement_of(node)) is not None:
            moves.append(move)
        elif not isinstance(node.op, Reshape):
            break
        (value,) = node.inputs
    return moves, value


def whole_of(made: Mapping[str, Node], value: str) -> str:
    """Return what a value is all of, in another shape perhaps."""
    while (node := made.get(value)) is not None and isinstance(node.op, Reshape):
        (value,) = node.inputs
    return value


def written_places(node: Node) -> Places | None:
    """Return where each update of a Scatter goes that overwrites elements at known places."""
    op = node.op
    if not isinstance(op, Scatter) or len(node.inputs) != 2 or is_dynamic(op) or op.views:
        return None
    if not isinstance(op.combine, Input) or op.combine.index != 1:
        return None
    if isinstance(op.address, Const):
        begins = np.array([int(op.address.value)])
    elif isinstance(op.address, Input) and len(op.coordinates) == 1:
        begins = addresses(op.shape, op.coordinates[0])
    else:
        return None
    return (begins[:, None] + np.arange(op.run)).ravel()


def places_of(moves: Sequence[Map], size: int) -> Places:
    """Return where the elements of a value of `size` are in what its movements move."""
    places = np.arange(size)
    for move in moves:
        places = addresses(move.shape, move.views[0])[places]
    return places


def part_of(op: Concat, places: Places) -> tuple[int, Places] | None:
    """Return the operand that all places in a Concat's result are in, and where in that they are.

    None where that isn't one, or there are no places.
    """
    if not places.size:
        return None
    row, column = np.divmod(places, sum(op.parts))
    ends = [*accumulate(op.parts)]
    number = int(np.searchsorted(ends, column.min(), side="right"))
    begin = ends[number] - op.parts[number]
    inside = row * op.parts[number] + column - begin
    return (number, inside) if column.max() < ends[number] else None
