"""The number of partitions of each long call is measured, kept in the policy and replayed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import atc


def save(path: Path) -> None:
    """Write a model of a product with constant weights and a recurrent layer."""
    rng = np.random.default_rng(1)
    arrays = {"w": rng.standard_normal((24, 512)), "u": rng.standard_normal((1, 160, 512)),
              "r": rng.standard_normal((1, 160, 160))}  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("RNN", ["y", "u", "r"], ["z"], hidden_size=160),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 1, 24])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [3, 1, 1, 160])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)


@pytest.mark.slow
def test_the_policy_says_how_many_threads_share_a_call(tmp_path: Path) -> None:
    save(tmp_path / "model.onnx")
    policy = tmp_path / "policy.txt"

    def source(name: str, measure: bool) -> str:
        atc.compile(
            tmp_path / "model.onnx", tmp_path / name / "net", target="c99", num_threads=2,
            build_config="cc -O0", fast_run=measure, fast_run_algo_policy=policy,
        )  # fmt: skip
        return (tmp_path / name / "net" / "src" / "net.c").read_text()

    first, text = source("first", True), policy.read_text()
    assert len(re.findall(r"\| [12] partitions \| (?:MatMul|Recurrent) ", text)) >= 2
    assert source("second", False) == first
    policy.write_text(re.sub(r"\| [12] partitions \|", "| 1 partitions |", text))
    assert "start_threads" not in source("alone", False)
    policy.write_text(re.sub(r"\| [12] partitions \|", "| 2 partitions |", text))
    both = source("both", False)
    assert "partition, *(const int *)at" in both
    assert "case 0:" in both
