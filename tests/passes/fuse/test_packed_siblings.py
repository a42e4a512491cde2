"""Products of one operand with packed weights that become one: when, with which results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from atc.passes import run_passes
from support import assert_close, compile_graph, run_model

K, BLOCK = 64, 32
Branch = tuple[int, str, bool, bool]
"""Columns, what reads the result, whether weights have zero points, a bias."""


def model(branches: Sequence[Branch]) -> onnx.ModelProto:
    """Return products of x, and what reads them."""
    rng, nodes, constants = np.random.default_rng(0), [], dict[str, Any]()
    for i, (n, reader, zero, bias) in enumerate(branches):
        names = [f"q{i}", f"s{i}", f"z{i}" if zero else "", "", f"b{i}" if bias else ""]
        constants |= {
            f"q{i}": rng.integers(0, 256, (n, K // BLOCK, BLOCK // 2)).astype(np.uint8),
            f"s{i}": rng.uniform(0.1, 1, (n, K // BLOCK)).astype(np.float32),
            f"z{i}": rng.integers(0, 256, n).astype(np.uint8),
            f"b{i}": rng.standard_normal(n).astype(np.float32),
        }
        result = f"p{i}" if reader else f"y{i}"
        nodes.append(helper.make_node("MatMulNBits", ["x", *names], [result], bits=4, K=K, N=n,
                                      block_size=BLOCK, domain="com.microsoft"))  # fmt: skip
        if reader:
            nodes.append(helper.make_node(reader, [result], [f"y{i}"]))
    used = {name for node in nodes for name in node.input}
    x = helper.make_tensor_value_info("x", 1, (2, 3, K))
    graph = helper.make_graph(
        nodes, "net", [x], [onnx.ValueInfoProto(name=f"y{i}") for i in range(len(branches))],
        [numpy_helper.from_array(a, name) for name, a in constants.items() if name in used],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


CASES: dict[str, tuple[list[Branch], int]] = {
    "of several sizes": (
        [(32, "Neg", True, True), (16, "Exp", True, True), (5, "Neg", True, True)],
        1,
    ),
    "with and without zero points": ([(32, "Neg", True, False), (16, "Neg", False, False)], 2),
    "without biases": ([(32, "Neg", False, False), (16, "Abs", False, False)], 1),
    "an output of the network": ([(32, "Neg", False, False), (16, "", False, False)], 2),
    "rows that are read whole": ([(32, "Neg", False, False), (16, "Softmax", False, False)], 2),
    "many weights": ([(1 << 15, "Neg", False, False), (16, "Neg", False, False)], 2),
}


@pytest.mark.parametrize("name", list(CASES))
def test_products_are_merged_where_slices_are_read_in_place(name: str) -> None:
    branches, expected = CASES[name]
    graph = run_passes(compile_graph(model(branches)))
    assert sum(n.op.kind == "MatMulPacked" for n in graph.nodes) == expected
    if expected == 1:  # and no copies
        assert len(graph.nodes) == 1 + len(branches)


def test_merged_products_give_each_its_own_results() -> None:
    net, x = (
        model(CASES["of several sizes"][0]),
        np.random.default_rng(1).standard_normal((2, 3, K)),
    )
    wanted = onnxruntime.InferenceSession(net.SerializeToString()).run(
        None, {"x": x.astype(np.float32)}
    )
    for got, want in zip(run_model(net, [x.astype(np.float32)]), wanted, strict=True):
        assert_close(got, want, rtol=1e-4)
