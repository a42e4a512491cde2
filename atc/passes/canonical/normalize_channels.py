"""Normalises the channels of images where they lie, not transposed to the end and back.

What is between a transpose to [N, *spatial, C] and the one back becomes a Normalize down columns,
which can be computed in channel blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from atc.ir.graph import Node, row_major
from atc.ir.ops import Conv, Epilogue, Map, Normalize
from atc.ir.view import View, compose_refining, simplify_loops
from atc.passes.rewriting import Rewriting, merge_origin


def normalize_channels(state: Rewriting, node: Node) -> Node:
    """Replace a transpose back by a Normalize of what was transposed, near a convolution."""
    if not isinstance(node.op, Map) or not node.op.is_movement or len(node.inputs) != 1:
        return node
    middle = state.producers.get(node.inputs[0])
    if middle is None or not isinstance(middle.op, Normalize) or len(middle.outputs) != 1:
        return node
    first = state.producers.get(middle.inputs[0])
    if first is None or not isinstance(first.op, Map) or not first.op.is_movement:
        return node
    if not state.only_reader(node.inputs[0]) or len(first.inputs) != 1:
        return node
    shape = state.types[first.inputs[0]].shape
    if len(shape) < 3 or state.types[node.outputs[0]].shape != shape:
        return node
    if not _near_convolution(state, first.inputs[0], node.outputs[0]):
        return node
    op = _along_channels(middle.op, shape) if _are_inverse(first.op, node.op, shape) else None
    if op is None:
        return node
    inputs = (first.inputs[0], *middle.inputs[1:])
    return Node(op, inputs, node.outputs, merge_origin(first, middle, node))


def _near_convolution(state: Rewriting, source: str, result: str) -> bool:
    maker = state.producers.get(source)
    if maker is not None and isinstance(maker.op, Conv):
        return True
    return any(isinstance(n.op, Conv) and n.inputs[0] == result for n in state.graph.nodes)


def _are_inverse(there: Map, back: Map, shape: Sequence[int]) -> bool:
    """Return whether one puts the channels of [N, C, *spatial] last, the other brings them back."""
    n, c, pixels = shape[0], shape[1], prod(shape[2:])
    image = c * pixels
    return (
        _same_movement(there, (n, pixels, c), View((image, 1, pixels)))
        and _same_movement(back, (n, c, pixels), View((image, 1, c)))
    )  # fmt: skip


def _same_movement(op: Map, shape: tuple[int, ...], view: View) -> bool:
    return simplify_loops(op.shape, op.views) == simplify_loops(shape, (view,))


def _along_channels(op: Normalize, shape: tuple[int, ...]) -> Normalize | None:
    """Return a Normalize of rows of channels as one of [N, C, *spatial] over C."""
    n, c, *spatial = shape
    if op.inner or prod(op.axis) != c or prod(op.outer) != n * prod(spatial):
        return None
    steps = row_major((n, *spatial, c))
    place = View((steps[0], 1, *steps[1:-1]))
    found = compose_refining(shape, (place,), 0, op.loops, op.epilogue.views)
    if found is None or found[0] != shape:
        return None
    epilogue = Epilogue(op.epilogue.expr, found[2])
    return replace(op, outer=(n,), axis=(c,), inner=tuple(spatial), epilogue=epilogue)
