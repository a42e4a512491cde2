"""Graphs as text: what a line says of a node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atc.ir.expr import Input
from atc.ir.graph import DType, Graph, Node, Op, TensorType
from atc.ir.ops import Block, ConvBlocked, Map, Softmax, Unblock, Window
from atc.ir.ops.data import Pad
from atc.ir.ops.elementwise import identity_epilogue
from atc.ir.text import dump, node_text, op_key, op_text
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


def test_attributes_of_their_defaults_are_in_keys_only() -> None:
    softmax = Softmax(2, 5, 1, False, identity_epilogue(DType.FLOAT))
    text = "Softmax(outer=2, axis=5, inner=1, log=False, epilogue=x0"
    assert op_text(softmax) == f"{text})"
    assert op_key(softmax) == f"{text}, masked=False)"
    masked = replace(softmax, masked=True)
    assert op_text(masked) == op_key(masked) == f"{text}, masked=True)"


def test_a_line_ends_with_the_models_nodes_if_there_are_any() -> None:
    types = {name: TensorType(DType.FLOAT, (12,)) for name in "xyz"}
    op = Map((12,), X, (View((1,)),))
    nodes = (Node(op, ("x",), ("y",), ("conv1", "relu1")), Node(op, ("y",), ("z",)))
    lines = dump(Graph("net", ("x",), ("z",), nodes, types)).splitlines()
    assert lines[1:3] == [
        "  y: f32[12] = Map(shape=(12), expr=x0, views=(<1>)) x  # conv1; relu1",
        "  z: f32[12] = Map(shape=(12), expr=x0, views=(<1>)) y",
    ]


def test_types_are_named_by_their_labels() -> None:
    window = Window((1,), (1,), (1,), (0,))
    op = ConvBlocked(window, 1, identity_epilogue(DType.INT32), DType.INT32)
    assert op_text(op).endswith("epilogue=x0:i32, accumulator=i32)")
