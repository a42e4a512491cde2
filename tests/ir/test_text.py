"""Graphs as text: what a line says of a node."""

from __future__ import annotations

import pytest

from atc.ir.expr import Input
from atc.ir.graph import DType, Node, Op
from atc.ir.ops import Block, Map, Unblock
from atc.ir.ops.data import Pad
from atc.ir.text import node_text
from atc.ir.view import View

X = Input(DType.FLOAT, 0)


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (Block(16), "reorder to nchw16c"),
        (Unblock(), "reorder to nchw"),
        (Map((4, 3), X, (View((1, 4)),)), "reorder"),
        (Map((12,), X, (View((1,)),)), "copy"),
        (Pad("constant", (3,), (0,), (1,)), "padding"),
    ],
)
def test_a_node_of_the_compilers_own_says_what_it_is_for(op: Op, text: str) -> None:
    assert node_text(Node(op, ("x",), ("y",))) == text
    assert node_text(Node(op, ("x",), ("y",), ("conv1", "relu1"))) == "conv1 + relu1"
