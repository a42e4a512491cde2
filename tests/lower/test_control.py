"""Branches that the shapes rule out: the other one is all of it, and must be the one taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from dynamic_models import Case, Net
from whole.test_dynamic_models import network_of

from atc.errors import ModelError
from support import compile_graph


def branching(then_width: int, else_width: int) -> onnx.ModelProto:
    """Return a product of x [2, 3] and a matrix of so many rows in each branch."""
    n = Net()
    branches = {}
    for name, rows in (("then", then_width), ("else", else_width)):
        part = Net()
        weights = part.constant(np.arange(rows * 2).reshape(rows, 2), np.float32)
        result = part("MatMul", "x", weights)
        branches[f"{name}_branch"] = part.body(name, {}, {result: "f"})
    condition = n("Equal", "rate", n.constant(16000))
    result = n("If", condition, **branches)
    return n.model({"x": ("f", [2, 3]), "rate": ("i", [])}, {result: "f"})


@pytest.mark.few(1)
@pytest.mark.parametrize(("rows", "right"), [((3, 4), 16000), ((4, 3), 8000)])
def test_a_run_of_the_wrong_branch_is_a_status(
    rows: tuple[int, int], right: int, tmp_path: Path
) -> None:
    x = np.ones((2, 3), np.float32)
    feeds = {"x": x, "rate": np.array(right)}
    network = network_of(Case(branching(*rows), "", [feeds]), tmp_path, "c99")
    wanted = x @ np.arange(6).reshape(3, 2)
    np.testing.assert_array_equal(network(*feeds.values()), wanted)
    with pytest.raises(RuntimeError, match="out of its range"):
        network(x, np.array(24000 - right))
    np.testing.assert_array_equal(network(*feeds.values()), wanted)


def test_the_user_hears_of_the_branch() -> None:
    graph = compile_graph(branching(3, 4))
    (warning,) = graph.warnings
    assert "else_branch" in warning
    assert "condition false" in warning
    assert not any(node.op.kind == "If" for node in graph.nodes)


def test_two_wrong_branches_are_an_error() -> None:
    with pytest.raises(ModelError, match="MatMul"):
        compile_graph(branching(4, 5))


def test_both_branches_that_fit_stay() -> None:
    graph = compile_graph(branching(3, 3))
    assert not graph.warnings
    assert [node.op.kind for node in graph.nodes].count("If") == 1
