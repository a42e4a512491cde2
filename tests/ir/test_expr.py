"""Expressions whose parts are shared stay as small as the parts, however often they are read."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from atc.dims import Symbol, concrete, dim, is_dynamic
from atc.ir.expr import (
    Call,
    Expr,
    Input,
    call,
    const,
    cost,
    operands_of,
    renumber,
    substitute,
    text,
)
from atc.ir.graph import DType, Node
from atc.passes import run_passes
from atc.passes.quantized.fuse_requantize import _in_float
from support import compile_graph, run_model

X, Y = Input(DType.FLOAT, 0), Input(DType.FLOAT, 1)


def doubled(x: Expr, times: int) -> Expr:
    """Return an expression of 2 ** times operands and `times` additions."""
    for _ in range(times):
        x = call("Add", x, x)
    return x


def test_equal_calls_are_one_object() -> None:
    one, other = (call("Max", call("Add", X, Y), const(0.0, DType.FLOAT)) for _ in range(2))
    assert one is other
    assert one != call("Max", call("Add", Y, X), const(0.0, DType.FLOAT))
    assert const(0.0, DType.FLOAT) != const(-0.0, DType.FLOAT)
    assert pickle.loads(pickle.dumps(one)) is one
    assert copy.deepcopy(one) is one


def test_what_is_kept_of_an_expression_counts_shared_parts_once() -> None:
    x = doubled(call("Sub", Y, X), 200)
    assert cost(x) == 201
    assert cost(call("Mul", x, doubled(X, 3))) == 201 + 3 + 1
    assert [i.index for i in operands_of(x)] == [1, 0]
    assert renumber(x, {0: 0, 1: 1}) is x
    assert renumber(renumber(x, {0: 1, 1: 0}), {0: 1, 1: 0}) is x
    assert substitute(x, lambda k: X) is doubled(call("Sub", X, X), 200)


def test_shared_parts_are_visited_once() -> None:
    x = doubled(X, 200)
    assert len(text(x)) < 100_000
    assert text(doubled(X, 2)) == "Add(Add(x0, x0), Add(x0, x0))"
    assert _in_float(x) is x
    assert not is_dynamic(x)
    rows = const(dim(Symbol(0, "rows", 1, 8)), DType.FLOAT)
    many = doubled(call("Add", X, rows), 60)
    assert is_dynamic(many)
    largest = concrete(many)
    assert isinstance(largest, Call)
    assert not is_dynamic(largest)


def test_a_chain_of_values_read_twice_compiles_and_is_right() -> None:
    """Each link doubles the number of operands that are written out; numbers stay in range."""
    nodes = []
    last = "x"
    for k in range(60):
        nodes.append(helper.make_node("Add", [last, last], [f"a{k}"]))
        nodes.append(helper.make_node("Mul", [f"a{k}", "half"], [f"m{k}"]))
        last = f"m{k}"
    nodes.append(helper.make_node("Mul", [last, last], ["y"]))
    shape = helper.make_tensor_value_info("x", TensorProto.FLOAT, [5])
    graph = helper.make_graph(
        nodes, "halves", [shape], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5])],
        [numpy_helper.from_array(np.array(0.5, np.float32), "half")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    x = np.array([1, -2, 3, 0.25, 7], np.float32)
    (y,) = run_model(model, [x])
    np.testing.assert_array_equal(y, x * x)


def test_an_epilogue_ends_somewhere() -> None:
    """What follows a convolution isn't one expression without end."""
    weights = numpy_helper.from_array(np.ones((2, 2, 1, 1), np.float32), "w")
    nodes = [helper.make_node("Conv", ["x", "w"], ["v0"])]
    nodes += [
        helper.make_node(("Tanh", "Sigmoid")[k % 2], [f"v{k}"], [f"v{k + 1}"]) for k in range(400)
    ]
    kind = (TensorProto.FLOAT, [1, 2, 2, 2])
    ends = [helper.make_tensor_value_info(n, *kind) for n in ("x", "v400")]
    graph = helper.make_graph(nodes, "long", ends[:1], ends[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    lowered = run_passes(compile_graph(model))
    assert len(lowered.nodes) > 10
    assert all(cost(e) <= 240 for e in map(expression, lowered.nodes))


def expression(node: Node) -> Expr:
    """Return a Map's expression, or that of an epilogue."""
    return getattr(node.op, "epilogue", node.op).expr
