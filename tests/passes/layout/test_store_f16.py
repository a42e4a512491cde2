"""Values that float16 holds: computed with as floats, stored in 16 bits where that costs less."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import atc
from atc.ir.expr import Expr, Input, call, cast, const
from atc.ir.graph import DType
from atc.passes.layout.store_f16 import holds

F, H = DType.FLOAT, DType.FLOAT16
X = Input(F, 0)
ROUNDED = cast(cast(X, H), F)


@pytest.mark.parametrize(
    ("expr", "held"),
    [
        (X, False),
        (Input(F, 1), True),
        (ROUNDED, True),
        (cast(Input(H, 0), F), True),
        (call("Max", ROUNDED, const(0.0, F)), True),
        (call("Min", ROUNDED, const(6.1, F)), False),
        (call("Min", ROUNDED, const(1e6, F)), False),
        (call("Where", call("Less", X, const(0.1, F)), ROUNDED, Input(F, 1)), True),
        (call("Add", ROUNDED, ROUNDED), False),
    ],
    ids=str,
)
def test_what_float16_holds(expr: Expr, held: bool) -> None:
    assert holds(expr, lambda k: k == 1) is held


def network(path: Path) -> Path:
    """Write a residual network of float16 with a pool, a clip and a concatenation."""
    rng = np.random.default_rng(0)
    weights, nodes = [], []

    def node(op: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [f"t{len(nodes)}"], **attributes))
        return f"t{len(nodes) - 1}"

    def constant(*shape: int, scale: float = 1.0) -> str:
        values = (scale * rng.standard_normal(shape)).astype(np.float16)
        weights.append(numpy_helper.from_array(values, f"w{len(weights)}"))
        return f"w{len(weights) - 1}"

    def conv(x: str, channels: int, filters: int, size: int, group: int = 1) -> str:
        fan = channels // group * size * size
        w = constant(filters, channels // group, size, size, scale=fan**-0.5)
        return node("Conv", x, w, constant(filters), pads=[size // 2] * 4, group=group)

    weights += [numpy_helper.from_array(np.float16(v), n) for v, n in ((0, "low"), (6, "high"))]
    x = node("Relu", conv("x", 3, 32, 3))
    y = node("Clip", conv(x, 32, 64, 1), "low", "high")
    y = node("Relu", conv(y, 64, 64, 3, group=64))
    x = node("Relu", node("Add", conv(y, 64, 32, 1), x))
    y = node("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    x = node("Concat", x, y, axis=1)
    x = node("Sigmoid", conv(x, 64, 16, 3))
    node("GlobalAveragePool", x)
    half = TensorProto.FLOAT16
    made = helper.make_graph(
        nodes, "halves", [helper.make_tensor_value_info("x", half, (1, 3, 64, 64))],
        [helper.make_tensor_value_info(nodes[-1].output[0], half, (1, 16, 1, 1))], weights,
    )  # fmt: skip
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.mark.slow
def test_a_network_of_float16_takes_half_the_memory_with_the_same_bits(tmp_path: Path) -> None:
    model = network(tmp_path / "halves.onnx")
    off = tmp_path / "off.cfg"
    off.write_text("store_f16:off\nwiden_f16:off\n")
    x = np.random.default_rng(1).standard_normal((1, 3, 64, 64)).astype(np.float16)
    results, arenas = [], []
    for name, more in {"small": {}, "large": {"fusion_switch_file": off}}.items():
        blocked = {"target": "x86-64-avx2", "layout_transform": "nchw8c", **more}
        done = atc.compile(model, tmp_path / name, **blocked)
        arenas.append(done.arena.plan.size)
        results.append(atc.load(done.folder)(x))
    np.testing.assert_array_equal(*results)
    assert arenas[0] < 0.6 * arenas[1]
