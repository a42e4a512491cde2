"""Make convolutions and pooling of bytes have the images of a batch last, as in chwn4.

x [N, C, *spatial] becomes [1, C, *spatial, N], in which the window has one more axis, of length 1.
Blocks of channels are then [1, ceil(C / b), *spatial, N, b].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from atc.dims import is_dynamic
from atc.ir.expr import Input
from atc.ir.graph import Array, Graph, Node, TensorType
from atc.ir.ops import Conv, Epilogue, Map, Pool, Window
from atc.ir.ops.blocked import BYTES
from atc.ir.view import View, dense
from atc.passes.quantized.blocking import known_zero
from atc.passes.rewriting import Rewriting, rewrite


def move_batch_last(graph: Graph, outer: Mapping[str, Array]) -> Graph:
    """Rewrite such nodes of several images; other nodes read their values in the model's order."""
    state = _Moved()
    return rewrite(graph, state.rule, outer)


@dataclass
class _Moved:
    """The values with their images last, by the model's."""

    names: dict[str, str] = field(default_factory=dict)

    def rule(self, state: Rewriting, node: Node) -> Node:
        """Return a node, or the one that moves its result back to the model's order."""
        if not _able(state, node):
            return node
        inputs = [self._operand(state, node, node.inputs[0]), *node.inputs[1:]]
        shape = state.types[node.outputs[0]].shape
        match node.op:
            case Conv() as op:
                views = list(op.epilogue.views)
                for k, (name, view) in enumerate(
                    zip(inputs[op.operands :], op.epilogue.views, strict=True)
                ):
                    images, *steps = view.strides
                    views[k] = View((0, *steps, images), view.offset)
                    if name in self.names and view == dense(shape):
                        inputs[op.operands + k] = self.names[name]
                        views[k] = dense(_last(shape))
                weights = state.constant(inputs[1])
                assert weights is not None
                inputs[1] = state.add_constant(weights[..., None], inputs[1])
                epilogue = Epilogue(op.epilogue.expr, tuple(views))
                new: Conv | Pool = replace(op, window=_longer(op.window), epilogue=epilogue)
            case Pool() as op:
                new = replace(op, window=_longer(op.window), end_pads=(*op.end_pads, 0))
            case _:
                return node
        type_ = TensorType(state.types[node.outputs[0]].dtype, _last(shape))
        name = state.emit(new, inputs, type_, node, "chwn")
        self.names[node.outputs[0]] = name
        back = View(tuple(dense(type_.shape).strides[k] for k in (-1, *range(1, len(shape)))))
        movement = Map(shape, Input(type_.dtype, 0), (back,))
        return Node(movement, (name,), node.outputs, node.origin)

    def _operand(self, state: Rewriting, node: Node, name: str) -> str:
        """Return the first operand with its images last, moved before the node if needed."""
        if name not in self.names:
            plain = state.types[name]
            steps = dense(plain.shape).strides
            movement = Map(
                _last(plain.shape), Input(plain.dtype, 0), (View((0, *steps[1:], steps[0])),)
            )
            type_ = TensorType(plain.dtype, _last(plain.shape))
            self.names[name] = state.emit(movement, (name,), type_, node, "images_last")
        return self.names[name]


def _last(shape: Sequence[int]) -> tuple[int, ...]:
    return (1, *shape[1:], shape[0])


def _longer(window: Window) -> Window:
    return Window(
        (*window.kernel, 1), (*window.strides, 1), (*window.dilations, 1), (*window.pads, 0)
    )


def _able(state: Rewriting, node: Node) -> bool:
    """Return whether a node is pooling, or a convolution that has blocks, of several images."""
    op = node.op
    if not isinstance(op, Conv | Pool) or len(node.outputs) != 1 or op.window.rank > 2:
        return False
    types = [state.types[name] for name in (node.inputs[0], node.outputs[0])]
    if any(t.dtype not in BYTES or t.size == 0 or is_dynamic(t.shape) for t in types):
        return False
    if types[0].shape[0] < 2 or isinstance(op, Pool):
        return types[0].shape[0] > 1 and isinstance(op, Pool) and op.how != "Lp"
    weights = state.constant(node.inputs[1])
    point = state.constant(node.inputs[2]) if op.zero_points else np.zeros((), np.int32)
    if weights is None or op.zero_points and node.inputs[3]:
        return False
    return known_zero(op, types[0], weights, point) is not None
