"""Forms of normalisations: of groups of channels and their pixels, and of each pixel's channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from atc.ir.graph import DType, Node
from atc.ir.ops import Epilogue, Normalize, NormalizeBlocked
from atc.ir.view import View, compose_refining, dense, gather_view
from atc.passes.layout.forms import Argument, Form, Layout, Read, Scene
from atc.passes.layout.operands import held, operand


def normalize_forms(scene: Scene, node: Node, op: Normalize, layout: Layout) -> Iterator[Form]:
    """Yield the form of a Normalize whose result lies in a layout, if it can be computed there."""
    x, shape = scene.type(node.inputs[0]), scene.type(node.outputs[0]).shape
    group = _group(op, shape)
    if x.shape != shape or x.dtype is not DType.FLOAT or group is None or len(shape) < 3:
        return
    if op.how not in ("Variance", "MeanSquare"):
        return
    read = _operands(scene, layout, node, op, (group or shape[1], shape))
    if read is None:
        return
    arguments, views = read
    epilogue = Epilogue(op.epilogue.expr, views)
    source = Read(node.inputs[0], layout)
    if layout is Layout.BLOCKS:
        channels = shape[1]
        whole = NormalizeBlocked(
            op.how, channels, group or channels, not group, op.epsilon, epilogue
        )
        yield Form(layout, whole, (source, *arguments))
    elif not group:
        pixels = tuple(View((v.strides[0], *v.strides[2:]), v.offset) for v in views)
        rows = replace(
            op, outer=(shape[0], *shape[2:]), axis=(shape[1],), inner=(),
            epilogue=Epilogue(epilogue.expr, pixels),
        )  # fmt: skip
        yield Form(layout, rows, (source, *arguments))


def _operands(
    scene: Scene, layout: Layout, node: Node, op: Normalize,
    place: tuple[int, tuple[int, ...]],
) -> tuple[tuple[Argument, ...], tuple[View, ...]] | None:  # fmt: skip
    """Return how the epilogue's operands are read over the loops of a layout.

    `place` is the number of channels in a group and the shape [N, C, *spatial].
    """
    group, shape = place
    loops = (shape[0], shape[1] // group, group, *shape[2:])
    found = compose_refining(loops, (dense(loops),), 0, op.loops, op.epilogue.views)
    if found is None or found[0] != loops:
        return None
    arguments: list[Argument] = []
    views: list[View] = []
    for name, view in zip(node.inputs[1:], found[2], strict=True):
        one = _operand(scene, layout, name, view, loops)
        if one is None:
            return None
        arguments.append(one[0])
        views.append(one[1])
    return tuple(arguments), tuple(views)


def _operand(
    scene: Scene, layout: Layout, name: str, view: View, loops: tuple[int, ...]
) -> tuple[Argument, View] | None:
    """Return how an operand, viewed over (N, groups, group, *spatial), is read."""
    batch, groups, group, *spatial = loops
    shape = (batch, groups * group, *spatial)
    n, outer, inner, *steps = view.strides
    if group == 1 or groups == 1 or outer == inner * group:
        step = outer if group == 1 else inner
        return operand(scene, layout, name, View((n, step, *steps), view.offset), shape)
    array = scene.constant(name)
    if array is None or n or any(steps):
        return None
    each = gather_view(array, (groups, group), View((outer, inner), view.offset))
    still = (0,) * len(spatial)
    block = shape[1] if layout is Layout.LAST else scene.width
    return held(name, each.reshape(-1), View((0, 1, *still)), shape, block)


def _group(op: Normalize, shape: tuple[int, ...]) -> int | None:
    """Return how many channels of [N, C, *spatial] share their statistics with all their pixels.

    0 where each pixel's channels have statistics of their own, None for all else.
    """
    batch, channels, pixels = shape[0], shape[1], prod(shape[2:])
    if (prod(op.outer), prod(op.axis), prod(op.inner)) == (batch, channels, pixels):
        return 0 if pixels > 1 else None
    groups, rest = divmod(prod(op.outer), batch)
    if rest or not groups or channels % groups or prod(op.inner) != 1:
        return None
    return channels // groups if prod(op.axis) == channels // groups * pixels else None
