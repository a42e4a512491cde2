"""Operators that move elements: shapes, axes, parts, padding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from atc.exporters.megengine.builder import Array, Builder, Node, Var
from atc.exporters.megengine.rules_indexing import wrapped


def known(node: Node, xs: Sequence[Var], k: int) -> Array | None:
    """Return an operand that has to be constant; None if it is left out."""
    if k >= len(xs) or not xs[k].type.size and xs[k].array is None:
        return None
    array = xs[k].array
    if array is None:
        raise node.refuse(f"operand {k} isn't constant")
    return array


def _reshaped(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    """Give a tensor the shape of the result, which is known."""
    return [b.reshape(b.number(xs[0]), node.results[0].shape)]


def _transposed(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    rank = len(xs[0].type.shape)
    order = node.get("perm", [*reversed(range(rank))])
    return [b.transpose(b.number(xs[0]), order)]


def _expanded(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    return [b.broadcast(b.number(xs[0]), node.results[0].shape)]


def _tiled(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    """Repeat along one axis after another."""
    repeats = known(node, xs, 1)
    assert repeats is not None
    x, shape = b.number(xs[0]), [*xs[0].type.shape]
    for axis, count in enumerate(repeats.tolist()):
        if count != 1:
            before, behind = math.prod(shape[:axis]), math.prod(shape[axis:])
            x = b.broadcast(b.reshape(x, [before, 1, behind]), [before, count, behind])
            shape[axis] *= count
            x = b.reshape(x, shape)
    return [x]


def _concatenated(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    axis = node.get("axis") % len(xs[0].type.shape)
    parts = [b.number(x) for x in xs if x.type.size]
    return parts if len(parts) == 1 else b.op("Concat", parts, ("Axis", {"axis": axis}))


def _split(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    axis = node.get("axis", 0) % len(xs[0].type.shape)
    x, begin, found = b.number(xs[0]), 0, []
    for part in node.results:
        end = begin + part.shape[axis]
        found.append(b.part(x, [axis], [begin], [end], [1]))
        begin = end
    return found


def _sliced(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    starts, ends = known(node, xs, 1), known(node, xs, 2)
    if starts is None or ends is None or not node.results[0].size:
        raise node.refuse("its result is empty")
    axes, steps = known(node, xs, 3), known(node, xs, 4)
    shape = xs[0].type.shape
    over = [int(a) % len(shape) for a in (range(len(starts)) if axes is None else axes)]
    by = [1] * len(starts) if steps is None else [int(s) for s in steps]
    begins, until = list[int](), list[int | None]()
    for axis, start, end, step in zip(over, starts.tolist(), ends.tolist(), by, strict=True):
        first, last, _ = slice(start, end, step).indices(shape[axis])
        begins.append(first)
        until.append(None if last < 0 else last)
    return [b.part(b.number(xs[0]), over, begins, until, by)]


def _gathered(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    axis = node.get("axis", 0) % len(xs[0].type.shape)
    index = wrapped(b, xs[1], xs[0].type.shape[axis])
    found = b.taken(b.number(xs[0]), axis, index)
    return [b.reshape(found, node.results[0].shape)] if not xs[1].type.shape else [found]


def padded(
    b: Builder, x: int, front: Sequence[int], back: Sequence[int], mode: str = "CONSTANT",
    value: float = 0.0,
) -> int:  # fmt: skip
    """Pad a tensor."""
    amounts = {f"front{k}": n for k, n in enumerate(front)}
    amounts |= {f"back{k}": n for k, n in enumerate(back)}
    params = {**amounts, "padding_val": value, "padding_mode": mode}
    return b.op("Padding", [x], ("Padding", params))[0]


def _padded(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    modes = {"constant": "CONSTANT", "edge": "REPLICATE", "reflect": "REFLECT"}
    pads, value, axes = known(node, xs, 1), known(node, xs, 2), known(node, xs, 3)
    mode, rank = node.get("mode", "constant"), len(xs[0].type.shape)
    if mode not in modes or pads is None or (pads < 0).any():
        raise node.refuse("it pads by less than nothing, or wraps around")
    if xs[0].type.kind != "f":
        raise node.refuse(f"it pads {xs[0].type.dtype}")
    over = [int(a) % rank for a in (range(rank) if axes is None else axes)]
    front, back = [0] * rank, [0] * rank
    for k, axis in enumerate(over):
        front[axis], back[axis] = int(pads[k]), int(pads[k + len(over)])
    filling = 0.0 if value is None else float(value.reshape(()))
    return [padded(b, b.number(xs[0]), front, back, modes[mode], filling)]


def _depth_to_space(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    n, c, h, w = xs[0].type.shape
    k = node.get("blocksize")
    if node.get("mode", "DCR") == "DCR":
        shape, order = [n, k, k, c // k**2, h, w], [0, 3, 4, 1, 5, 2]
    else:
        shape, order = [n, c // k**2, k, k, h, w], [0, 1, 4, 2, 5, 3]
    moved = b.transpose(b.reshape(b.number(xs[0]), shape), order)
    return [b.reshape(moved, node.results[0].shape)]


def _space_to_depth(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    n, c, h, w = xs[0].type.shape
    k = node.get("blocksize")
    x = b.reshape(b.number(xs[0]), [n, c, h // k, k, w // k, k])
    return [b.reshape(b.transpose(x, [0, 3, 5, 1, 2, 4]), node.results[0].shape)]


RULES: Mapping[str, Any] = {
    "Concat": _concatenated,
    "DepthToSpace": _depth_to_space,
    "Expand": _expanded,
    "Flatten": _reshaped,
    "Gather": _gathered,
    "Pad": _padded,
    "Reshape": _reshaped,
    "Slice": _sliced,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _reshaped,
    "Tile": _tiled,
    "Transpose": _transposed,
    "Unsqueeze": _reshaped,
}
