"""Networks whose layers differ in extents alone: one C function, called with each one's numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from projects import reference

import atc
from atc.runtime.load import load
from support import runnable

TARGET = "x86-64-avx2"
LAYERS = 5


def dense_block() -> onnx.ModelProto:
    """Layers that read the results of all before them: scale, ReLU, 1x1 and 3x3 convolutions."""
    rng, nodes, weights = np.random.default_rng(0), [], []

    def weight(*shape: int) -> str:
        name, scale = f"w{len(weights)}", np.prod(shape[1:]) ** -0.5
        values = (rng.standard_normal(shape) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    def node(op: str, *inputs: str, **attributes: object) -> str:
        name = f"{op.lower()}{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    x, channels = "x", 16
    for _ in range(LAYERS):
        scaled = node("Add", node("Mul", x, weight(channels, 1, 1)), weight(channels, 1, 1))
        y = node("Conv", node("Relu", scaled), weight(32, channels, 1, 1))
        y = node("Conv", node("Relu", y), weight(16, 32, 3, 3), pads=[1, 1, 1, 1])
        x, channels = node("Concat", x, y, axis=1), channels + 16
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, n, 14, 14])
            for name, n in (("x", 16), (x, channels))]  # fmt: skip
    graph = helper.make_graph(nodes, "dense", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{}, {"num_threads": 2, "thread_tuning": 0}, {"profile": True}])
def test_layers_of_growing_depth_share_functions(
    options: dict[str, object], tmp_path: Path
) -> None:
    if not runnable(TARGET):
        pytest.skip(f"this CPU can't run {TARGET}")
    model, file = dense_block(), tmp_path / "dense.onnx"
    onnx.save(model, file)
    atc.compile(file, tmp_path / "net", target=TARGET, **options)  # type: ignore[arg-type]
    maps = [*(tmp_path / "net" / "src" / "kernels").glob("atc_map_simd_*.c")]
    directs = [*(tmp_path / "net" / "src" / "kernels").glob("atc_conv_direct_*.c")]
    assert len(maps) == 1 or options.get("num_threads")  # a thread's part may be one block
    assert 0 < len(directs) <= 3
    x = np.random.default_rng(1).standard_normal((1, 16, 14, 14)).astype(np.float32)
    (expected,) = reference(model, x)
    assert np.abs(load(tmp_path / "net")(x) - expected).max() < 1e-4 * np.abs(expected).max()
