"""Softmax between bytes in integers: on which targets, and of which operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from stages import project_of

from atc.options.options import Options


def model(shape: tuple[int, ...], axis: int, operator: str = "Softmax") -> onnx.ModelProto:
    """Return a Softmax between DequantizeLinear and QuantizeLinear."""
    constants = {"s": np.float32(0.09), "z": np.int8(3), "t": np.float32(1 / 256),
                 "u": np.int8(-128)}  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        helper.make_node(operator, ["a"], ["b"], axis=axis),
        helper.make_node("QuantizeLinear", ["b", "t", "u"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.INT8, shape) for n in "xy")
    known = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "softmax", [x], [y], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def in_integers(folder: Path, given: onnx.ModelProto, target: str, **options: bool) -> bool:
    """Return whether a model's Softmax is computed in integers on a target."""
    onnx.save(given, folder / "m.onnx")
    made = Options(model=folder / "m.onnx", output=folder / "net", target=target, **options)
    return any(k.symbol.startswith("atc_softmax_bytes") for k in project_of(made).emission.kernels)


@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m55", "riscv32"])
def test_small_cores_compute_it_in_integers(target: str, tmp_path: Path) -> None:
    assert in_integers(tmp_path, model((2, 5, 12), 1), target)


def test_others_keep_floats(tmp_path: Path) -> None:
    assert not in_integers(tmp_path, model((2, 12), -1), "c99")


def test_floats_decide_where_all_targets_are_to_have_their_bits(tmp_path: Path) -> None:
    given = model((2, 12), -1)
    assert not in_integers(tmp_path, given, "cortex-m4f", deterministic_math=True)


def test_other_operators_and_results_that_are_read_elsewhere_keep_floats(tmp_path: Path) -> None:
    assert not in_integers(tmp_path, model((2, 12), -1, "LogSoftmax"), "cortex-m4f")
    twice = model((2, 12), -1)
    twice.graph.output.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, (2, 12)))
    assert not in_integers(tmp_path, twice, "cortex-m4f")
