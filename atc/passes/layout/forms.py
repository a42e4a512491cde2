"""Forms of a node: one for each layout of its result and each way to read its operands.

A layout says how a value [N, C, *spatial] lies in memory: as it is (nchw), with its channels in
blocks as wide as vectors (nchw16c), or in one block (nhwc). The last two are ordinary tensors
[N, ceil(C / b), *spatial, b], where nhwc is b = C.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod

from atc.ir.expr import Input
from atc.ir.graph import Array, DType, Graph, Node, Op, TensorType, row_major, type_of
from atc.ir.ops import Block, Map, Reshape, Unblock
from atc.ir.ops.blocked import BYTES, blocked_shape
from atc.ir.view import View

LAID_OUT = frozenset({DType.FLOAT, *BYTES})
"""Types of tensors that may lie otherwise than the model says."""


class Layout(Enum):
    """The layout of a value; the values end names of values that lie so."""

    PLAIN = ""
    BLOCKS = ".blocked"
    LAST = ".blocked.last"

    __hash__ = object.__hash__  # an enum's own is Python, and layouts are looked up all the time


@dataclass(frozen=True)
class Read:
    """An operand: a value in a layout."""

    name: str
    layout: Layout = Layout.PLAIN


@dataclass(frozen=True)
class Held:
    """An operand known when compiling, stored as it is read."""

    name: str
    array: Array

    @property
    def type(self) -> TensorType:
        """The stored array's type."""
        return type_of(self.array)


@dataclass(frozen=True)
class Moved:
    """An operand of its own: what a view of a plain value shows over `shape`, in a layout."""

    name: str
    view: View
    shape: tuple[int, ...]
    layout: Layout


@dataclass(frozen=True)
class Widened:
    """A value of one number a channel, with zeros behind them, so that they fill whole blocks."""

    name: str
    channels: int
    missing: int


Argument = Read | Held | Moved | Widened


@dataclass(frozen=True)
class Form:
    """One way to compute a node: its result's layout, the op, and what that reads."""

    layout: Layout
    op: Op
    arguments: tuple[Argument, ...]

    def reads(self) -> Iterator[Read]:
        """Yield the values it needs, and how they must lie."""
        for argument in self.arguments:
            match argument:
                case Read():
                    yield argument
                case Moved(name) | Widened(name):
                    yield Read(name)


@dataclass(frozen=True)
class Scene:
    """The graph whose nodes' forms are wanted; `width` is the number of floats in a vector."""

    graph: Graph
    outer: Mapping[str, Array]
    width: int
    bytes_last: bool = False
    """Whether convolutions of bytes may have their channels last."""
    bytes_alone: bool = False
    """Whether only bytes lie otherwise, in blocks, for kernels that take any of them: a GPU's."""

    batch_last: bool = False
    """Whether the images of a batch are last where that is so, see `batch_last.py`."""

    @property
    def others(self) -> tuple[Layout, ...]:
        """The layouts beside the plain one; without vectors there are no blocks for them."""
        if self.bytes_alone:
            return (Layout.BLOCKS,)
        return (Layout.BLOCKS, Layout.LAST) if self.width > 1 else (Layout.LAST,)

    @cached_property
    def makers(self) -> dict[str, Op]:
        """The node that computes each value."""
        return {o: node.op for node in self.graph.nodes for o in node.outputs}

    def constant(self, name: str) -> Array | None:
        """Return a constant's array, or None for a computed value."""
        array = self.graph.constants.get(name)
        return self.outer.get(name) if array is None else array

    def type(self, name: str) -> TensorType:
        """Return the type of a value as the model says it."""
        return self.graph.types[name]

    def layable(self, type_: TensorType, rank: int = 2) -> bool:
        """Return whether a value of so many axes may lie otherwise than the model says."""
        able = BYTES if self.bytes_alone else LAID_OUT
        return len(type_.shape) >= rank and 0 not in type_.shape and type_.dtype in able

    def block(self, layout: Layout, type_: TensorType) -> int:
        """Return how many channels of a value lie together."""
        return type_.shape[1] if layout is Layout.LAST else self.width

    def laid_out(self, type_: TensorType, layout: Layout) -> TensorType:
        """Return the type of a value in a layout."""
        if layout is Layout.PLAIN:
            return type_
        return TensorType(type_.dtype, blocked_shape(type_.shape, self.block(layout, type_)))


def plain_form(node: Node) -> Form:
    """Return the node as it is."""
    return Form(Layout.PLAIN, node.op, tuple(Read(name) for name in node.inputs))


Step = tuple[Op, TensorType]
"""A reorder and the type of its result."""


def reorders(scene: Scene, plain: TensorType, source: Layout, to: Layout) -> tuple[Step, ...]:
    """Return the nodes that bring a value from one layout to another; mere views where they can."""
    if source is to:
        return ()
    have, want = scene.laid_out(plain, source), scene.laid_out(plain, to)
    b, channels, pixels = scene.width, plain.shape[1], prod(plain.shape[2:])
    whole = Layout.BLOCKS not in (source, to) or channels % b == 0
    alone = channels == 1 and Layout.BLOCKS not in (source, to)
    if alone or whole and (pixels == 1 or channels == b and Layout.PLAIN not in (source, to)):
        return ((Reshape(), want),)
    if source is Layout.PLAIN:
        return ((Block(scene.block(to, plain)), want),)
    if to is Layout.PLAIN and pixels == 1:
        view = View((have.shape[1] * b, 1))
        return ((Map((plain.shape[0], channels), Input(plain.dtype, 0), (view,)), want),)
    if to is Layout.PLAIN:
        return ((Unblock(), want),)
    if not whole:
        return (*reorders(scene, plain, source, Layout.PLAIN),
                *reorders(scene, plain, Layout.PLAIN, to))  # fmt: skip
    batch, blocks = plain.shape[0], channels // b
    image, near, far = pixels * channels, b, pixels * b
    if to is Layout.LAST:
        shape, view = (batch, pixels, blocks, b), View((image, near, far, 1))
    else:
        shape, view = (batch, blocks, pixels, b), View((image, b, channels, 1))
    return ((Map(shape, Input(plain.dtype, 0), (view,)), want),)


def unlaid(scene: Scene, plain: TensorType, layout: Layout) -> tuple[tuple[int, ...], View] | None:
    """Return loops over a plain value, in its order, and the view of its form in a layout.

    None where channels fill no whole blocks.
    """
    batch, channels, *spatial = plain.shape
    block = scene.block(layout, plain)
    if channels % block:
        return None
    steps = row_major(spatial)
    pixels = prod(spatial)
    shape = (batch, channels // block, block, *spatial)
    strides = (channels * pixels, block * pixels, 1, *(s * block for s in steps))
    return shape, View(strides)
