"""Operands of nodes whose results don't lie as the model says: how they are read over new loops."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from atc.ir.graph import Array, TensorType, row_major
from atc.ir.ops.blocked import blocked_shape
from atc.ir.view import View, gather_view
from atc.passes.layout.forms import (
    LAID_OUT,
    Argument,
    Held,
    Layout,
    Moved,
    Read,
    Scene,
    Widened,
)  # fmt: skip


def operands(
    scene: Scene, layout: Layout, inputs: Sequence[str], views: Sequence[View],
    shape: Sequence[int], move: bool = False, in_vectors: bool = False,
) -> tuple[tuple[Argument, ...], tuple[View, ...]] | None:  # fmt: skip
    """Return how operands, viewed over [N, C, *loops], are read over the loops of a layout.

    With `move`, those that no view shows are rearranged first; with `in_vectors`, also those whose
    channels don't lie beside each other.
    """
    found: list[tuple[Argument, View]] = []
    for name, view in zip(inputs, views, strict=True):
        one = operand(scene, layout, name, view, tuple(shape))
        apart = in_vectors and one is not None and one[1].strides[-1] not in (0, 1)
        if (one is None or apart) and move and scene.type(name).dtype in LAID_OUT:
            block = shape[1] if layout is Layout.LAST else scene.width
            one = (Moved(name, view, tuple(shape), layout),
                   View(row_major(blocked_shape(shape, block))))  # fmt: skip
        if one is None:
            return None
        found.append(one)
    return tuple(a for a, _ in found), tuple(v for _, v in found)


def operand(
    scene: Scene, layout: Layout, name: str, view: View, shape: tuple[int, ...]
) -> tuple[Argument, View] | None:
    """Return how one operand is read: in the same layout if it can be, else as it is."""
    block = shape[1] if layout is Layout.LAST else scene.width
    moving = tuple(s if n != 1 else 0 for s, n in zip(view.strides, shape, strict=True))
    if moving[1] == 0:  # the same for all channels
        return Read(name), View((*moving, 0), view.offset)
    array = scene.constant(name)
    if array is not None:
        return held(name, array, View(moving, view.offset), shape, block)
    type_ = scene.type(name)
    if type_.dtype not in LAID_OUT:
        return _per_channel(name, type_, View(moving, view.offset), shape, block)
    through = _through_last if layout is Layout.LAST else _through_blocks
    found = through(type_.shape, View(moving, view.offset), shape, block)
    if found is not None:
        return Read(name, layout), found
    return as_it_is(name, View(moving, view.offset), shape, block)


def as_it_is(
    name: str, view: View, shape: tuple[int, ...], block: int
) -> tuple[Argument, View] | None:
    """Return how a plain operand is read in blocks, if its channels fill whole ones."""
    if shape[1] % block:
        return None
    batch, channel, *steps = view.strides
    return Read(name), View((batch, channel * block, *steps, channel), view.offset)


def _per_channel(
    name: str, type_: TensorType, view: View, shape: tuple[int, ...], block: int
) -> tuple[Argument, View] | None:
    """Return how a number for each channel is read in blocks, with zeros for those of none."""
    steps = (*view.strides[:1], *view.strides[2:])
    if any(steps) or view.strides[1] != 1 or view.offset or type_.size != shape[1]:
        return None
    blocks = View((0, block, *[0] * len(shape[2:]), 1))
    missing = -shape[1] % block
    return Widened(name, shape[1], missing) if missing else Read(name), blocks


def held(
    name: str, array: Array, view: View, shape: tuple[int, ...], block: int
) -> tuple[Argument, View]:
    """Store a constant in blocks, once for the axes that it is the same for."""
    kept = tuple(n if s else 1 for n, s in zip(shape, view.strides, strict=True))
    values = to_blocks(gather_view(array, kept, view), block)
    steps = row_major(blocked_shape(kept, block))
    moves = [s > 0 and n != 1 for s, n in zip(steps, (*kept, block), strict=True)]
    moves[1] = True
    return Held(name, values), View(tuple(s if m else 0 for s, m in zip(steps, moves, strict=True)))


def to_blocks(values: Array, block: int) -> Array:
    """Return [N, C, *spatial] in blocks of so many channels; the last channel repeats."""
    batch, channels, *spatial = values.shape
    missing = -channels % block
    padded = np.concatenate([values, np.repeat(values[:, -1:], missing, 1)], 1)
    split = padded.reshape(batch, -1, block, *spatial)
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))


def _through_blocks(
    stored: tuple[int, ...], view: View, shape: tuple[int, ...], block: int
) -> View | None:
    """Return the view of the blocked form of an operand that is viewed over (N, C, *loops).

    Channels must follow each other from a whole block on, and the other loops stay inside one
    plane, where every step is `block` times as long, or go over whole blocks.
    """
    if len(stored) < 2 or 0 in stored:
        return None
    plane = prod(stored[2:])
    batch, channel, *steps = view.strides
    over = [s % (plane * block) == 0 for s in steps]
    reach = [s * (n - 1) for s, n in zip(steps, shape[2:], strict=True)]
    inner = [r for r, far in zip(reach, over, strict=True) if not far]
    last = sum(r for r, far in zip(reach, over, strict=True) if far) // plane
    low, high = sum(r for r in inner if r < 0), sum(r for r in inner if r > 0)
    first = (view.offset + low) // plane
    pixel = view.offset - first * plane
    inside = pixel + high < plane and first % block == 0 and first + shape[1] + last <= stored[1]
    back = any(r < 0 for r, far in zip(reach, over, strict=True) if far)
    if not inside or back or channel != plane or batch not in (0, stored[1] * plane):
        return None
    blocks = row_major(blocked_shape(stored, block))
    moved = [
        s // (plane * block) * blocks[1] if far else s * block
        for s, far in zip(steps, over, strict=True)
    ]
    strides = (blocks[0] if batch else 0, blocks[1], *moved, 1)
    return View(strides, first // block * blocks[1] + pixel * block)


def _through_last(
    stored: tuple[int, ...], view: View, shape: tuple[int, ...], block: int
) -> View | None:
    """Return the view of an operand with its channels last that is viewed over (N, C, *loops).

    Every loop goes over whole planes, or stays inside one.
    """
    if len(stored) < 2 or 0 in stored:
        return None
    channels, plane = stored[1], prod(stored[2:])
    batch, channel, *steps = view.strides
    over = [s % plane == 0 for s in steps]
    reach = [s * (n - 1) for s, n in zip(steps, shape[2:], strict=True)]
    inner = [r for r, far in zip(reach, over, strict=True) if not far]
    outer = [r // plane for r, far in zip(reach, over, strict=True) if far]
    outer.append(channel // plane * (shape[1] - 1))
    low, high = sum(r for r in inner if r < 0), sum(r for r in inner if r > 0)
    first = (view.offset + low) // plane
    pixel = view.offset - first * plane
    least, most = first + sum(r for r in outer if r < 0), first + sum(r for r in outer if r > 0)
    inside = pixel + high < plane and least >= 0 and most < channels
    if not inside or channel % plane or batch not in (0, channels * plane):
        return None
    moved = [s // plane if far else s * channels for s, far in zip(steps, over, strict=True)]
    return View((batch, 0, *moved, channel // plane), first + pixel * channels)
