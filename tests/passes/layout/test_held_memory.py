"""The most memory that values take at a time, with what lies in others' memory or in cascades."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atc.ir.expr import Input, call
from atc.ir.graph import DType, Graph, Node, TensorType
from atc.ir.ops import Conv, Map, Reshape, Window, identity_epilogue
from atc.ir.view import View, dense
from atc.passes.layout.held_memory import HeldMemory

F, H = DType.FLOAT, DType.FLOAT16
SHAPE = (1, 8, 4, 4)
SIZE = 4 * 128


def tanh(name: str, x: str) -> Node:
    views = (View(dense(SHAPE).strides),)
    return Node(Map(SHAPE, call("Tanh", Input(F, 0)), views), (x,), (name,), (name,))


def conv(name: str, x: str) -> Node:
    window = Window((1, 1), (1, 1), (1, 1), (0, 0))
    return Node(Conv(window, 1, identity_epilogue(F)), (x, "w"), (name,), (name,))


def flat(name: str, x: str) -> Node:
    return Node(Reshape(), (x,), (name,), (name,))


def graph(*nodes: Node) -> Graph:
    """Return a network of x with the last node's result."""
    types = {n: TensorType(F, SHAPE) for n in ("x", *(n.outputs[0] for n in nodes))}
    types["w"] = TensorType(F, (8, 8, 1, 1))
    return Graph("g", ("x", "w"), nodes[-1].outputs, nodes, types)


CASES = {
    "a chain": ((conv("a", "x"), conv("b", "a"), conv("c", "b"), conv("d", "c")), 2),
    "inputs and outputs are the caller's": ((conv("a", "x"),), 0),
    "in place": ((conv("a", "x"), tanh("b", "a"), tanh("c", "b"), conv("d", "c")), 1),
    "not what is read again": (
        (conv("a", "x"), tanh("b", "a"), conv("c", "a"), conv("d", "b")), 3),
    "another shape of the same": ((conv("a", "x"), flat("r", "a"), conv("b", "r")), 1),
}  # fmt: skip
"""Networks, and how many of their values are held at a time."""


@pytest.mark.parametrize("case", CASES)
def test_the_most_that_is_held(case: str) -> None:
    nodes, values = CASES[case]
    made = graph(*nodes)
    held = HeldMemory(made)
    assert held.most(made.types, [0] * len(nodes)) == values * SIZE


def test_scratch_and_types_count() -> None:
    made = graph(conv("a", "x"), tanh("b", "a"), conv("c", "b"))
    held = HeldMemory(made)
    assert held.most(made.types, [100, 0, 0]) == SIZE + 100
    narrow = {**made.types, "a": replace(made.types["a"], dtype=H)}
    assert held.most(narrow, [0, 0, 0]) == SIZE + SIZE // 2  # of two types: not in place
    assert [*held.while_held(["a"])] == [0, 1]


def test_cascades_hold_rows_of_what_is_large() -> None:
    made = graph(conv("a", "x"), conv("b", "a"))
    for near, most in ((0, 100), (SIZE, SIZE)):
        assert HeldMemory(made, near, {"a": (F, 100)}).most(made.types, [0, 0]) == most
    narrow = {**made.types, "a": replace(made.types["a"], dtype=H)}
    assert HeldMemory(made, 0, {"a": (F, 100)}).most(narrow, [0, 0]) == 50
