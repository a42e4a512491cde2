"""Networks in 16 bits are computed by the kernels of vectors that compute them in floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import atc

Weights = dict[str, tuple[int, ...]]
CASES: dict[str, tuple[str, tuple[int, ...], Weights, dict[str, object]]] = {
    "conv": ("Conv", (1, 16, 12, 12), {"w": (16, 16, 3, 3)}, {"pads": [1] * 4}),
    "depthwise": ("Conv", (1, 16, 12, 12), {"w": (16, 1, 3, 3)}, {"pads": [1] * 4, "group": 16}),
    "transposed": ("ConvTranspose", (1, 16, 6, 6), {"w": (16, 16, 2, 2)}, {"strides": [2, 2]}),
    "product": ("MatMul", (1, 24, 48), {"w": (48, 64)}, {}),
    "softmax": ("Softmax", (24, 48), {}, {}),
    "normalization": ("LayerNormalization", (24, 48), {"s": (48,), "b": (48,)}, {}),
    "groups": ("InstanceNormalization", (1, 16, 6, 6), {"s": (16,), "b": (16,)}, {}),
}
TYPES = {TensorProto.FLOAT16: 2e-2, TensorProto.BFLOAT16: 8e-2}


def model(name: str, code: int, relu: bool) -> onnx.ModelProto:
    """Return an operator, and what its result is added to, with random weights."""
    op, shape, weights, attributes = CASES[name]
    random = np.random.default_rng(0)
    constants = [
        helper.make_tensor(k, code, s, (random.standard_normal(s) / np.sqrt(s[-1] * 4)).ravel())
        for k, s in weights.items()
    ]
    nodes = [helper.make_node(op, ["x", *weights], ["t"], **attributes)]
    nodes += [helper.make_node("Relu", ["t"], ["r"]), helper.make_node("Abs", ["r"], ["y"])] * relu
    nodes += [helper.make_node("Identity", ["t"], ["y"])] * (not relu)
    x = helper.make_tensor_value_info("x", code, shape)
    y = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "relu"), [(TensorProto.FLOAT16, False), (TensorProto.BFLOAT16, True)],
    ids=["float16", "bfloat16 before a function"],
)  # fmt: skip
@pytest.mark.parametrize("name", CASES)
def test_results_in_16_bits_need_no_plain_c(
    name: str, code: int, relu: bool, tmp_path: Path
) -> None:
    results, plain, random = [], [], np.random.default_rng(1)
    x = random.standard_normal(CASES[name][1]).astype(np.float32)
    for kind in (code, TensorProto.FLOAT):
        onnx.save(model(name, kind, relu), tmp_path / "m.onnx")
        done = atc.compile(tmp_path / "m.onnx", tmp_path / f"net{kind}", target="host")
        heavy = (c for c in done.selection.values() if c.workload.op.kind != "Map")
        plain.append({c.candidate.kernel.name for c in heavy if c.candidate.kernel.portable})
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        with atc.load(tmp_path / f"net{kind}") as net:
            got = net(x.astype(dtype).view(net.inputs[0].dtype))
        results.append(np.asarray(got).view(dtype).astype(float))
    assert plain[0] <= plain[1]
    half, wide = results
    np.testing.assert_allclose(half, wide, rtol=TYPES[code], atol=TYPES[code])
