"""Horizontal fusion: convolutions of one operand become one, where that is estimated to be faster.

Branches such as an inception block's have few filters each, which fill vectors and register tiles
only in part. Their results are slices of the merged one, read in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from atc.dims import is_dynamic
from atc.ir.graph import Array, Graph, Node, TensorType, prune, reads, type_of
from atc.ir.ops import ConvBlocked, Epilogue, SubView
from atc.ir.ops.data import Concat
from atc.ir.view import View, gather_view
from atc.passes.canonical.alias_slices import ALIGNMENT
from atc.passes.layout.costs import CALL, RATE, Price, Task, estimate
from atc.passes.rewriting import fresh_name, merge_origin

GAIN = 0.97
"""The merged convolution has to take at most this fraction of the branches' time."""


def fuse_siblings(
    graph: Graph, outer: Mapping[str, Array], width: int, price: Price
) -> Graph:
    """Merge blocked convolutions of the same operand with the same window and epilogue."""
    constants = {**outer, **graph.constants}
    groups: dict[object, list[Node]] = {}
    for node in graph.nodes:
        if (key := _key(graph, node, constants)) is not None:
            groups.setdefault(key, []).append(node)
    state = _Merging(graph, constants, width, price, dict(graph.types), dict(graph.constants))
    for nodes in groups.values():
        state.group(nodes)
    if not state.parts:
        return graph
    found: list[Node] = []
    for node in graph.nodes:
        name = node.outputs[0] if node.outputs else ""
        found += [state.merged[name]] if name in state.merged else []
        found.append(state.parts.get(name, node))
    return prune(
        replace(graph, nodes=tuple(found), types=state.types, constants=state.constants)
    )


def _key(graph: Graph, node: Node, constants: Mapping[str, Array]) -> object | None:
    """Return a key that nodes that may be merged have in common; None for others."""
    op = node.op
    if not isinstance(op, ConvBlocked) or op.group != 1 or node.outputs[0] in graph.ends:
        return None
    w, y = graph.types[node.inputs[1]], graph.types[node.outputs[0]]
    known = all(name in constants for name in node.inputs[1:])
    moving = any(any(view.strides[2:-1]) for view in op.epilogue.views)
    if not known or moving or is_dynamic(y.shape) or y.shape[0] != 1:
        return None
    dtypes = (w.dtype, y.dtype, *(graph.types[name].dtype for name in node.inputs[2:]))
    alike = (op.window, op.accumulator, op.zero, op.epilogue.expr, dtypes)
    return node.inputs[0], w.shape[1:], y.shape[2:], alike


@dataclass
class _Merging:
    """The graph being rewritten."""

    graph: Graph
    outer: Mapping[str, Array]
    width: int
    price: Price
    types: dict[str, TensorType]
    constants: dict[str, Array]
    merged: dict[str, Node] = field(default_factory=dict)
    """Merged convolutions, by the first result of their branches."""
    parts: dict[str, Node] = field(default_factory=dict)
    """The replacement of each branch, by its result."""

    def group(self, nodes: Sequence[Node]) -> None:
        """Merge branches: whole blocks of filters first, at most one with a partial block last."""
        filters = {n.outputs[0]: self.types[n.inputs[1]].shape[0] for n in nodes}
        whole = [n for n in nodes if filters[n.outputs[0]] % self.width == 0]
        rest = [n for n in nodes if n not in whole][:1]
        chosen = [*whole, *rest]
        if len(chosen) < 2:
            return
        y = self.types[chosen[0].outputs[0]]
        step = prod(y.shape[2:])
        if self.width * y.dtype.itemsize * prod(y.shape[2:-1]) % ALIGNMENT:
            return
        joined = [self._operand(chosen, k) for k in range(2, len(chosen[0].inputs))]
        weights = np.concatenate([self.outer[n.inputs[1]] for n in chosen])
        blocks = [self.types[n.outputs[0]].shape[1] for n in chosen]
        type_ = TensorType(y.dtype, (1, sum(blocks), *y.shape[2:]))
        rank = len(y.shape)
        view = View((0, self.width, *[0] * (rank - 3), 1))
        op = chosen[0].op
        assert isinstance(op, ConvBlocked)
        new = replace(op, epilogue=Epilogue(op.epilogue.expr, (view,) * len(joined)))
        if not self._pays(chosen, new, [weights, *joined], type_):
            return
        names = [self._constant(a, chosen[0].inputs[1 + k])
                 for k, a in enumerate([weights, *joined])]  # fmt: skip
        result = self._named(f"{chosen[0].outputs[0]}.merged", type_)
        inputs = (chosen[0].inputs[0], *names)
        first = next(n for n in nodes if n in chosen)
        self.merged[first.outputs[0]] = Node(new, inputs, (result,), merge_origin(*chosen))
        begin = 0
        for node, count in zip(chosen, blocks, strict=True):
            self.parts[node.outputs[0]] = replace(node, op=SubView(begin * step), inputs=(result,))
            begin += count

    def _operand(self, nodes: Sequence[Node], k: int) -> Array:
        """Return an operand of all branches' epilogues, a number for each filter."""
        found = []
        for node in nodes:
            op = node.op
            assert isinstance(op, ConvBlocked)
            blocks, view = self.types[node.outputs[0]].shape[1], op.epilogue.views[k - 2]
            steps = View((view.strides[1], view.strides[-1]), view.offset)
            found.append(gather_view(self.outer[node.inputs[k]], (blocks, self.width), steps))
        return np.concatenate(found)

    def _pays(
        self, nodes: Sequence[Node], op: ConvBlocked, arrays: Sequence[Array], y: TensorType
    ) -> bool:
        """Return whether one convolution, and copies for readers that join, cost less."""
        x = self.types[nodes[0].inputs[0]]
        known = (False, *[True] * len(arrays))
        one = self._cost(Task(op, (x, *map(type_of, arrays)), (y,), known))
        several = 0.0
        for node in nodes:
            types = self.graph.types_of(node.inputs)
            several += self._cost(Task(node.op, types, (self.types[node.outputs[0]],), known))
        joined = {i for n in self.graph.nodes if isinstance(n.op, Concat) for i in reads(n)}
        copies = sum(
            CALL + 2 * self.types[n.outputs[0]].nbytes / RATE
            for n in nodes
            if n.outputs[0] in joined
        )
        return one + copies <= GAIN * several

    def _cost(self, task: Task) -> float:
        cost = self.price(task)
        return estimate(task, self.width) if cost is None else cost

    def _constant(self, array: Array, hint: str) -> str:
        name = self._named(f"{hint}.merged", type_of(np.ascontiguousarray(array)))
        self.constants[name] = np.ascontiguousarray(array)
        return name

    def _named(self, hint: str, type_: TensorType) -> str:
        name = fresh_name(self.types, hint)
        self.types[name] = type_
        return name
