"""Convolutions of one operand that become one: when, with which results."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import support
from atc.passes import run_passes
from atc.passes.layout import Layouts, Task
from support import assert_close, compile_graph, run_model


def model(filters: list[int], kinds: list[str]) -> onnx.ModelProto:
    """Branches of one operand with so many filters and such an activation, and their readers."""
    rng = np.random.default_rng(0)
    constants = {"e": rng.standard_normal((32, 16, 3, 3)) / 12}
    nodes = [helper.make_node("Conv", ["x", "e"], ["s"], pads=[1] * 4)]
    for k, (count, kind) in enumerate(zip(filters, kinds, strict=True)):
        constants |= {f"w{k}": rng.standard_normal((count, 32, 1, 1)) / 5,
                      f"b{k}": rng.standard_normal(count),
                      f"v{k}": rng.standard_normal((16, count, 3, 3)) / 12}  # fmt: skip
        nodes += [
            helper.make_node("Conv", ["s", f"w{k}", f"b{k}"], [f"c{k}"]),
            helper.make_node(kind, [f"c{k}"], [f"a{k}"]),
            helper.make_node("Conv", [f"a{k}", f"v{k}"], [f"y{k}"], pads=[1] * 4),
        ]
    x = helper.make_tensor_value_info("x", 1, (1, 16, 9, 8))
    ys = [onnx.ValueInfoProto(name=f"y{k}") for k in range(len(filters))]
    held = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "net", [x], ys, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def wide(task: Task) -> float | None:
    """A core on which a call costs much, and layouts nothing."""
    return 1e6 if task.op.kind == "ConvBlocked" else 1e9 if task.op.kind == "Conv" else None


CASES = {
    "whole blocks": ([16, 32], ["Relu", "Relu"], 1),
    "a rest": ([20, 16, 32], ["Relu", "Relu", "Relu"], 1),
    "two rests": ([20, 12, 16], ["Relu", "Relu", "Relu"], 2),
    "unlike epilogues": ([16, 16], ["Relu", "Sigmoid"], 2),
}


@pytest.mark.parametrize("name", list(CASES))
def test_branches_are_merged_where_they_may_be(name: str) -> None:
    filters, kinds, expected = CASES[name]
    layouts = Layouts("nchw16c", wide)
    graph = run_passes(compile_graph(model(filters, kinds)), width=16, layouts=layouts)
    convs = sum(n.op.kind == "ConvBlocked" for n in graph.nodes)
    assert convs == 1 + expected + len(filters)


def test_merging_that_brings_nothing_is_left_alone() -> None:
    graph = run_passes(compile_graph(model([64, 64], ["Relu", "Relu"])), width=16)
    assert not any(".merged" in o for n in graph.nodes for o in n.outputs)


def test_merged_branches_keep_results(monkeypatch: pytest.MonkeyPatch) -> None:
    given = model([20, 16, 32], ["Relu"] * 3)
    x = np.random.default_rng(1).standard_normal((1, 16, 9, 8)).astype(np.float32)
    expected = ReferenceEvaluator(given).run(None, {"x": x})
    merging = partial(run_passes, layouts=Layouts("auto", wide))
    monkeypatch.setattr(support, "run_passes", merging)
    assert_close(run_model(given, [x]), expected, rtol=1e-4, atol=2e-5)
