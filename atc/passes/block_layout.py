"""Chooses where tensors are channel-blocked: [N, ceil(C / b), *spatial, b] for [N, C, *spatial].

Convolutions that gain by it become ConvBlocked; pooling, elementwise nodes, global reductions and
concatenations follow their operands. Block and Unblock nodes appear only where a blocked run begins
or ends, once per value. Everything is written anew in one walk, node by node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from atc.dims import Undecided, is_dynamic
from atc.expr import Input
from atc.ir import Array, DType, Graph, Node, TensorType, prune, reads, row_major, type_of
from atc.ops import (
    Block,
    Conv,
    ConvBlocked,
    Epilogue,
    Map,
    Pool,
    Reduce,
    Reshape,
    Unblock,
    Window,
)  # fmt: skip
from atc.ops.blocked import BYTES, blocked_shape
from atc.ops.data import Concat, Pad
from atc.passes.block_bytes import integer_zero
from atc.passes.rewriting import fresh_name
from atc.view import Split, View, compose, compose_refining, dense, gather_view

PLAIN_CHANNELS = 4
"""Up to so many channels a first convolution reads its operand as it is."""
BLOCKED = frozenset({DType.FLOAT, *BYTES})
"""Types of tensors that are blocked."""
GAIN = 4
"""Multiplications per element moved from which a convolution is worth two relayouts."""


def block_layout(graph: Graph, outer: Mapping[str, Array], width: int) -> Graph:
    """Block the channels of float tensors by `width`, the floats of a vector, where that pays."""
    if width < 2 or not any(isinstance(n.op, Conv) for n in graph.nodes):
        return graph
    state = _Layout(graph, outer, width, dict(graph.types), dict(graph.constants))
    for node in graph.nodes:
        if not _converted(state, node):
            for name in dict.fromkeys(reads(node)):
                state.plain(name)
            state.nodes.append(node)
            state.made.update(node.outputs)
    for name in graph.outputs:
        state.plain(name)
    if not state.blocks:
        return graph
    nodes = tuple(state.nodes)
    return prune(replace(graph, nodes=nodes, types=state.types, constants=state.constants))


@dataclass
class _Layout:
    """The graph being rewritten: which values exist in which form."""

    graph: Graph
    outer: Mapping[str, Array]
    width: int
    types: dict[str, TensorType]
    constants: dict[str, Array]
    nodes: list[Node] = field(default_factory=list)
    made: set[str] = field(default_factory=set)
    """Values whose plain form is there, beside inputs, constants and outer values."""
    blocks: dict[str, str] = field(default_factory=dict)
    """The blocked form of a value."""
    computed: set[str] = field(default_factory=set)
    """Values that a blocked node computes; their plain form must be asked for."""

    def constant(self, name: str) -> Array | None:
        """Return a constant's array, or None for a computed value."""
        array = self.constants.get(name)
        return self.outer.get(name) if array is None else array

    def new(self, hint: str, type_: TensorType) -> str:
        """Name a new value."""
        name = fresh_name(self.types, hint)
        self.types[name] = type_
        return name

    def add_constant(self, array: Array, hint: str) -> str:
        """Add a constant and return its name."""
        array = np.ascontiguousarray(array)
        name = self.new(hint, type_of(array))
        self.constants[name] = array
        return name

    def blocked_type(self, name: str) -> TensorType:
        """Return the type of a value's blocked form."""
        plain = self.types[name]
        return TensorType(plain.dtype, blocked_shape(plain.shape, self.width))

    def blocked(self, name: str) -> str:
        """Return the blocked form of a value, made here if need be."""
        if name not in self.blocks:
            result = self.new(f"{name}.blocked", self.blocked_type(name))
            self.nodes.append(Node(Block(self.width), (name,), (result,)))
            self.blocks[name] = result
        return self.blocks[name]

    def plain(self, name: str) -> str:
        """Make sure that the plain form of a value exists."""
        if name in self.computed and name not in self.made:
            self.made.add(name)
            self.nodes.append(_unblocking(self, name))
        return name

    def emit(self, node: Node, op: object, inputs: Sequence[str]) -> None:
        """Add the blocked form of a node with one output."""
        (output,) = node.outputs
        result = self.new(f"{output}.blocked", self.blocked_type(output))
        self.nodes.append(replace(node, op=op, inputs=tuple(inputs), outputs=(result,)))  # type: ignore[arg-type]
        self.blocks[output] = result
        self.computed.add(output)


def _unblocking(state: _Layout, name: str) -> Node:
    """Return the node that makes a plain value; a mere view where there is one pixel."""
    source, shape = state.blocks[name], state.types[name].shape
    if prod(shape[2:]) != 1:
        return Node(Unblock(), (source,), (name,))
    if shape[1] % state.width == 0:
        return Node(Reshape(), (source,), (name,))
    stored = state.types[source].shape
    view = View((stored[1] * stored[-1], 1))
    op = Map((shape[0], shape[1]), Input(state.types[name].dtype, 0), (view,))
    return Node(op, (source,), (name,))


def _converted(state: _Layout, node: Node) -> bool:
    try:
        return _convert(state, node)
    except Undecided:  # what suits some shapes of a range only
        return False


def _convert(state: _Layout, node: Node) -> bool:
    """Add the blocked form of a node; False where there is none or it doesn't pay."""
    if len(node.outputs) != 1 or state.types[node.outputs[0]].dtype not in BLOCKED:
        return False
    shape = state.types[node.outputs[0]].shape
    if is_dynamic(shape[1:]):
        return False
    if len(shape) < 2 or 0 in shape or 2 * shape[1] < state.width and not isinstance(node.op, Conv):
        return False
    match node.op:
        case Conv():
            return _conv(state, node, node.op)
        case Pool():
            return _pool(state, node, node.op)
        case Map():
            return _map(state, node, node.op)
        case Reduce():
            return _reduce(state, node, node.op)
        case Concat():
            return _concat(state, node, node.op)
        case Pad():
            return _pad(state, node, node.op)
        case Reshape():
            return _same(state, node)
        case _:
            return False


# ---- node by node --------------------------------------------------------------------------------


def _conv(state: _Layout, node: Node, op: Conv) -> bool:
    x, w = state.types[node.inputs[0]], state.types[node.inputs[1]]
    y = state.types[node.outputs[0]]
    floats = x.dtype is w.dtype is y.dtype is DType.FLOAT and op.accumulator is DType.FLOAT
    if op.zero_points and node.inputs[3]:
        return False
    point = state.constant(node.inputs[2]) if op.zero_points else np.zeros((), np.int32)
    zero = 0 if floats else integer_zero(op, x, w, y, point, state.width)
    if zero is None or op.window.rank > 2 or state.constant(node.inputs[1]) is None:
        return False
    if not _pays(state, node, op):
        return False
    extra = node.inputs[op.operands :]
    operands = _operands(state, extra, op.epilogue.views, y.shape, move=True)
    if operands is None:
        return False
    names, views = operands
    first = node.inputs[0]
    few = x.shape[1] <= PLAIN_CHANNELS and op.group == 1 and first not in state.blocks
    source = first if floats and few else state.blocked(first)
    epilogue = Epilogue(op.epilogue.expr, views)
    result = ConvBlocked(op.window, op.group, epilogue, op.accumulator, zero)
    state.emit(node, result, (source, node.inputs[1], *names()))
    return True


def _pays(state: _Layout, node: Node, op: Conv) -> bool:
    """Whether the arithmetic outweighs the relayouts that the node may bring about."""
    x, w = state.types[node.inputs[0]], state.types[node.inputs[1]]
    y = state.types[node.outputs[0]]
    moved = y.size + (0 if node.inputs[0] in state.blocks else x.size)
    wasted = -(-y.shape[1] // state.width) * state.width / y.shape[1]
    products = y.size * prod(w.shape[1:])
    small = op.accumulator is DType.INT32 and node.inputs[0] in state.blocks
    return products >= GAIN * moved and (small or wasted <= state.width / 2)


def _same(state: _Layout, node: Node) -> bool:
    """A value under another name has its blocked form too."""
    (source,), (name,) = node.inputs, node.outputs
    if source not in state.blocks or state.types[source] != state.types[name]:
        return False
    state.blocks[name] = state.blocks[source]
    state.computed.add(name)
    return True


def _pool(state: _Layout, node: Node, op: Pool) -> bool:
    if node.inputs[0] not in state.blocks or op.how == "Lp" or op.window.rank > 2:
        return False
    w = op.window
    lanes = Window((*w.kernel, 1), (*w.strides, 1), (*w.dilations, 1), (*w.pads, 0))
    wider = replace(op, window=lanes, end_pads=(*op.end_pads, 0))
    state.emit(node, wider, (state.blocked(node.inputs[0]),))
    return True


def _map(state: _Layout, node: Node, op: Map) -> bool:
    shape = state.types[node.outputs[0]].shape
    if len(op.views) != len(node.inputs) or not _follows(state, node.inputs):
        return False
    found = compose_refining(shape, [dense(shape)], 0, op.shape, op.views)
    if found is None or found[0][:2] != shape[:2]:
        return False  # channels are taken apart, as in a shuffle
    loops, _, plain = found
    operands = _operands(state, node.inputs, plain, loops)
    if operands is None:
        return False
    names, views = operands
    state.emit(node, Map(blocked_shape(loops, state.width), op.expr, views), names())
    return True


def _follows(state: _Layout, inputs: Sequence[str]) -> bool:
    """Whether most of what a node reads is blocked already."""
    computed = [i for i in inputs if state.constant(i) is None]
    size = max((state.types[i].size for i in computed), default=0)
    large = [i for i in computed if 2 * state.types[i].size >= size]
    there = [i for i in large if i in state.blocks]
    return bool(there) and 2 * len(there) >= len(large)


def _reduce(state: _Layout, node: Node, op: Reduce) -> bool:
    """A reduction over all pixels of each channel."""
    x = state.types[node.inputs[0]]
    own = len(node.inputs) - len(op.epilogue.views)
    loops = (*op.shape, *op.reduced)
    if own != 1 or len(op.views) != 1 or node.inputs[0] not in state.blocks or len(x.shape) < 3:
        return False
    batch, channels, pixels = x.shape[0], x.shape[1], prod(x.shape[2:])
    whole = op.views[0].offset == 0 and op.views[0].is_dense(loops)
    if not whole or prod(op.reduced) != pixels or prod(op.shape) != batch * channels:
        return False
    out = state.types[node.outputs[0]].shape
    if out[:2] != (batch, channels):
        return False
    found = compose(out, dense(out), op.shape, op.epilogue.views)
    if found is None or isinstance(found, Split):
        return False
    if (operands := _operands(state, node.inputs[1:], found, out)) is None:
        return False
    names, views = operands
    b = state.width
    stored = blocked_shape((batch, channels), b)
    short = tuple(View((*v.strides[:2], v.strides[-1]), v.offset) for v in views)
    view = View((stored[1] * pixels * b, pixels * b, 1, b))
    after = Epilogue(op.epilogue.expr, short)
    new = replace(op, shape=stored, reduced=(pixels,), views=(view,), epilogue=after)
    state.emit(node, new, (state.blocked(node.inputs[0]), *names()))
    return True


def _concat(state: _Layout, node: Node, op: Concat) -> bool:
    """Operands side by side along the channels, whole blocks each but the last."""
    shape = state.types[node.outputs[0]].shape
    types = [state.types[i] for i in node.inputs]
    same = all(len(t.shape) == len(shape) and t.shape[2:] == shape[2:] for t in types)
    if not same or op.outer != shape[0] or sum(t.shape[1] for t in types) != shape[1]:
        return False
    if any(t.shape[1] % state.width for t in types[:-1]):
        return False
    there = sum(t.size for i, t in zip(node.inputs, types, strict=True) if i in state.blocks)
    if 2 * there < prod(shape):
        return False
    names = [state.blocked(i) for i in node.inputs]
    parts = tuple(state.types[n].size // shape[0] for n in names)
    state.emit(node, replace(op, parts=parts), names)
    return True


def _pad(state: _Layout, node: Node, op: Pad) -> bool:
    """Padding of pixels around whole blocks."""
    first, shape = node.inputs[0], state.types[node.inputs[0]].shape
    if first not in state.blocks or op.shape != shape or any((*op.begins[:2], *op.ends[:2])):
        return False
    wider = replace(op, shape=state.blocked_type(first).shape, begins=(*op.begins, 0),
                    ends=(*op.ends, 0))  # fmt: skip
    state.emit(node, wider, (state.blocked(first), *node.inputs[1:]))
    return True


# ---- operands ------------------------------------------------------------------------------------


class _Operands:
    """Operands read over a blocked index space; relayouts are made when names are asked for."""

    def __init__(self, state: _Layout) -> None:
        self.state = state
        self.makers: list[tuple[str, str]] = []
        self.arrays: dict[int, Array] = {}
        self.views: dict[int, tuple[View, tuple[int, ...]]] = {}

    def __call__(self) -> tuple[str, ...]:
        """Return the operands' names."""
        names = []
        for k, (name, form) in enumerate(self.makers):
            match form:
                case "blocked":
                    names.append(self.state.blocked(name))
                case "constant":
                    names.append(self.state.add_constant(self.arrays[k], f"{name}.blocked"))
                case "moved":
                    names.append(self.state.blocked(self._moved(name, *self.views[k])))
                case _:
                    names.append(self.state.plain(name))
        return tuple(names)

    def _moved(self, name: str, view: View, shape: tuple[int, ...]) -> str:
        """Return a value of its own that holds what a view shows."""
        dtype = self.state.types[name].dtype
        result = self.state.new(f"{name}.moved", TensorType(dtype, shape))
        op = Map(shape, Input(dtype, 0), (view,))
        self.state.plain(name)
        self.state.nodes.append(Node(op, (name,), (result,)))
        return result


def _operands(
    state: _Layout, inputs: Sequence[str], views: Sequence[View], shape: Sequence[int],
    move: bool = False,
) -> tuple[_Operands, tuple[View, ...]] | None:
    """Return how operands, viewed over [N, C, *spatial], are read over the blocked index space.

    With `move`, those that no view of a blocked form shows are rearranged first.
    """
    names = _Operands(state)
    found: list[View] = []
    for name, view in zip(inputs, views, strict=True):
        new = _operand(state, name, view, tuple(shape), names)
        if new is None and move and state.types[name].dtype in BLOCKED:
            names.views[len(names.makers)] = (view, tuple(shape))
            names.makers.append((name, "moved"))
            new = View(row_major(blocked_shape(shape, state.width)))
        if new is None:
            return None
        found.append(new)
    return names, tuple(found)


def _operand(
    state: _Layout, name: str, view: View, shape: tuple[int, ...], names: _Operands
) -> View | None:
    array = state.constant(name)
    moving = tuple(s if n != 1 else 0 for s, n in zip(view.strides, shape, strict=True))
    if moving[1] == 0:  # the same for all channels
        names.makers.append((name, "plain"))
        return View((*moving, 0), view.offset)
    if array is not None:
        return _constant(name, array, View(moving, view.offset), shape, state.width, names)
    if state.types[name].dtype not in BLOCKED:
        return None
    stored, moved = state.types[name].shape, View(moving, view.offset)
    blocked = _through_blocks(stored, moved, shape, state.width)
    if blocked is not None:
        names.makers.append((name, "blocked"))
    return blocked


def _constant(
    name: str, array: Array, view: View, shape: tuple[int, ...], width: int, names: _Operands
) -> View:
    """Store a constant in blocks, once for the axes that it is the same for."""
    kept = tuple(n if s else 1 for n, s in zip(shape, view.strides, strict=True))
    values = gather_view(array, kept, view)
    names.arrays[len(names.makers)] = to_blocks(values, width)
    names.makers.append((name, "constant"))
    steps = row_major(blocked_shape(kept, width))
    moves = [s > 0 and n != 1 for s, n in zip(steps, (*kept, width), strict=True)]
    moves[1] = True
    return View(tuple(s if m else 0 for s, m in zip(steps, moves, strict=True)))


def to_blocks(values: Array, width: int) -> Array:
    """Return [N, C, *spatial] in blocks of `width` channels; the last channel repeats."""
    batch, channels, *spatial = values.shape
    missing = -channels % width
    padded = np.concatenate([values, np.repeat(values[:, -1:], missing, 1)], 1)
    split = padded.reshape(batch, -1, width, *spatial)
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))


def _through_blocks(
    stored: tuple[int, ...], view: View, shape: tuple[int, ...], width: int
) -> View | None:
    """Return the view of the blocked form of an operand that is viewed over (N, C, *loops).

    Channels must follow each other from a whole block on, and the other loops stay inside one
    plane, where every step is `width` times as long, or go over whole blocks.
    """
    if len(stored) < 2 or 0 in stored:
        return None
    plane = prod(stored[2:])
    batch, channel, *steps = view.strides
    over = [s % (plane * width) == 0 for s in steps]
    reach = [s * (n - 1) for s, n in zip(steps, shape[2:], strict=True)]
    inner = [r for r, far in zip(reach, over, strict=True) if not far]
    last = sum(r for r, far in zip(reach, over, strict=True) if far) // plane
    low, high = sum(r for r in inner if r < 0), sum(r for r in inner if r > 0)
    first = (view.offset + low) // plane
    pixel = view.offset - first * plane
    inside = pixel + high < plane and first % width == 0 and first + shape[1] + last <= stored[1]
    back = any(r < 0 for r, far in zip(reach, over, strict=True) if far)
    if not inside or back or channel != plane or batch not in (0, stored[1] * plane):
        return None
    blocks = row_major(blocked_shape(stored, width))
    moved = [
        s // (plane * width) * blocks[1] if far else s * width
        for s, far in zip(steps, over, strict=True)
    ]
    strides = (blocks[0] if batch else 0, blocks[1], *moved, 1)
    return View(strides, first // width * blocks[1] + pixel * width)
