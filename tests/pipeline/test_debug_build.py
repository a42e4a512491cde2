"""What a debug build keeps of kernels that several plans call, or a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import atc


def model(path: Path) -> Path:
    """Write conv -> relu of images [n, 2, 8, w], both named, and the softmax of the result."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Softmax", ["r"], ["y"], "softmax"),
    ]
    w = np.random.default_rng(0).normal(size=(4, 2, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, 8, "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


LISTS: dict[str, Any] = {"input_shape": "x:-1,2,8,6", "dynamic_batch_size": "1,3"}
BESIDE: dict[str, Any] = {"input_shape": "x:1~3,2,8,4~9", "dynamic_dims": "1,6;2,5"}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({**LISTS, "target": "c99"}, 2),
        ({**LISTS, "target": "cuda-emulated"}, 2),
        ({**BESIDE, "target": "c99"}, 3),
        ({"input_shape": BESIDE["input_shape"], "target": "c99"}, 1),
        ({"input_shape": "x:2,2,8,6", "target": "cuda-emulated"}, 1),
    ],
)
def test_each_plans_calls_are_found(options: dict[str, Any], count: int, tmp_path: Path) -> None:
    """The lines lead to calls of the kernel, in all plans, and to the nodes that they compute."""
    debug = {"op_debug_level": 1, "debug_dir": tmp_path}
    atc.compile(model(tmp_path / "m.onnx"), tmp_path / "net", **debug, **options)
    found: list[str] = []
    for path in (tmp_path / "kernel_meta").glob("*_loc.json"):
        described = json.loads(path.read_text())
        symbol = described["kernelName"]
        _, *callers = described["lines"]
        assert callers
        for caller in callers:
            source = (tmp_path / "net" / caller["file"]).read_text().splitlines()
            line, nodes = source[caller["first"] - 1], caller["nodes"]
            assert line.strip().startswith((f"{symbol}(", "if (!gpu_launch(gpu"))
            if "gpu_launch" in line:
                assert all(name in source[caller["first"] - 2] for name in nodes)
            found += nodes
    assert {name: found.count(name) for name in ("conv", "softmax")} == {
        "conv": count, "softmax": count,
    }  # fmt: skip


def test_kernels_of_all_plans_are_listed(tmp_path: Path) -> None:
    config = tmp_path / "debug.cfg"
    config.write_text("op_debug_config=ccec_g,dump_loc\nop_debug_list=softmax\n")
    atc.compile(
        model(tmp_path / "m.onnx"), tmp_path / "net", target="c99", op_debug_config=config,
        debug_dir=tmp_path, **LISTS,
    )  # fmt: skip
    kept = [*(tmp_path / "kernel_meta").glob("*_loc.json")]
    callers = [each for path in kept for each in json.loads(path.read_text())["lines"][1:]]
    assert {each["file"] for each in callers} == {"src/net_shape0.c", "src/net_shape1.c"}
    assert {name for each in callers for name in each["nodes"]} == {"softmax"}
