"""Quantized networks compiled for small cores: the bits of the portable kernels, on the host."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from projects import build_shared, write_project
from stages import graph_of, project_of
from tiny_networks import NETWORKS, Net

from atc.ir.graph import DType
from atc.ir.ops import MatMul
from atc.options.options import Options

Array = NDArray[Any]


def result(folder: Path, model: onnx.ModelProto, target: str, x: Array, *flags: str) -> Array:
    """Compile a network for a target, with the host's compiler, and run it once."""
    folder.mkdir()
    onnx.save(model, folder / "m.onnx")
    options = Options(model=folder / "m.onnx", output=folder / "net", target=target)
    emission = project_of(options).emission
    library = ctypes.CDLL(str(build_shared(write_project(folder / "net", emission))))
    for name in ("context_size", "arena_size"):
        getattr(library, f"net_{name}").restype = ctypes.c_size_t
    memory = [np.zeros(getattr(library, f"net_{n}")() + 64, np.uint8)
              for n in ("context_size", "arena_size")]  # fmt: skip
    context, arena = (m.ctypes.data + -m.ctypes.data % 64 for m in memory)
    size = ctypes.c_size_t(library.net_arena_size())
    assert library.net_init(ctypes.c_void_p(context), ctypes.c_void_p(arena), size) == 0
    shape = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    kind = model.graph.output[0].type.tensor_type.elem_type
    y = np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(kind))
    inputs, outputs = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data)
    assert library.net_run_tensors(ctypes.c_void_p(context), inputs, outputs) == 0
    return y


def first_layers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a network up to the bytes of its tenth convolution, which still differ much."""
    known = {v.name: v for v in onnx.shape_inference.infer_shapes(model).graph.value_info}
    nodes = [*model.graph.node]
    tenth = [k for k, node in enumerate(nodes) if node.op_type == "Conv"][9]
    end = next(k for k in range(tenth, len(nodes)) if nodes[k].op_type == "QuantizeLinear")
    cut = onnx.ModelProto()
    cut.CopyFrom(model)
    del cut.graph.node[end + 1 :], cut.graph.output[:]
    cut.graph.output.append(known[nodes[end].output[0]])
    return cut


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target"),
    [("keyword spotting", "cortex-m3"), ("keyword spotting", "cortex-m4f"),
     ("image classification", "cortex-m4f"), ("image classification", "cortex-m55"),
     ("anomaly detection", "cortex-m55"), ("visual wake words", "cortex-m4f"),
     ("mcunet-vww0", "cortex-m55")],
)  # fmt: skip
def test_networks_give_the_portable_kernels_bits(name: str, target: str, tmp_path: Path) -> None:
    model = NETWORKS[name](True)
    if model.graph.output[0].type.tensor_type.shape.dim[-1].dim_value == 2:
        model = first_layers(model)  # two classes say too little
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(4).integers(-128, 128, shape).astype(np.int8)
    want = result(tmp_path / "c99", model, "c99", x)
    got = result(tmp_path / "small", model, target, x)
    assert len(np.unique(want)) > 4
    np.testing.assert_array_equal(got, want)


@pytest.mark.few(1)
@pytest.mark.parametrize("axis", [1, 2])
def test_softmax_is_within_a_quantum_of_onnxruntime(axis: int, tmp_path: Path) -> None:
    net = Net(True)
    x = net.conv(net.input(1, 4, 9, 9), 12, (1, 1), relu=False)
    model = net.model(net.softmax(x, axis))
    given = np.random.default_rng(2).integers(-128, 128, (1, 4, 9, 9)).astype(np.int8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (want,) = session.run(None, {"x": given})
    got = result(tmp_path / "small", model, "cortex-m3", given)
    assert len(np.unique(want)) > 20
    assert np.abs(got.astype(int) - want).max() <= 1
    assert np.mean(got != want) < 0.01


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("target", "function"),
    [("cortex-m3", "HardSwish"), ("cortex-m4f", "HardSwish"), ("cortex-m55", "HardSwish"),
     ("cortex-m4f", "Sigmoid"), ("cortex-m55", "Relu")],
)  # fmt: skip
@pytest.mark.parametrize("layer", ["convolution", "depthwise", "residual", "dense"])
def test_functions_of_bytes_are_looked_up_where_these_are_summed(
    layer: str, target: str, function: str, tmp_path: Path
) -> None:
    shape = (1, 6) if layer == "dense" else (1, 6, 9, 7)
    given = np.random.default_rng(6).integers(-128, 128, shape).astype(np.int8)

    def made(*functions: str) -> onnx.ModelProto:
        net = Net(True, uneven=True)
        x = net.input(*shape)
        if layer == "dense":
            y = net.dense(x, 41, relu=False)
        else:
            y = net.conv(x, 6, depthwise=layer == "depthwise", relu=False)
        y = net.add(y, x, relu=False) if layer == "residual" else y
        for operator in functions:
            z = f"{operator}.result"
            net.nodes.append(helper.make_node(operator, [y], [z]))
            net.shapes[z] = net.shapes[y]
            y = net._quantized(z, 0.0117, -9)
        return net.model(y)

    before, whole = made(), made(function)
    last = whole.graph.node[len(before.graph.node) :]  # what comes behind the sums' bytes
    sums = before.graph.output[0].name
    ends = [before.graph.output[0], whole.graph.output[0]]
    alone = helper.make_model(
        helper.make_graph(last, "alone", ends[:1], ends[1:], whole.graph.initializer),
        opset_imports=whole.opset_import, ir_version=9,
    )  # fmt: skip
    bytes_ = result(tmp_path / "bytes", before, "c99", given)
    session = onnxruntime.InferenceSession(
        alone.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (want,) = session.run(None, {sums: bytes_})
    assert len(np.unique(want)) > 9
    np.testing.assert_array_equal(result(tmp_path / "small", whole, target, given), want)
    kernels = [p.stem for p in (tmp_path / "small/net/src/kernels").glob("*.c")]
    assert not any("map_table" in name for name in kernels), kernels


AVERAGES: dict[str, tuple[int, dict[str, Any]]] = {
    "ties": (8, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "ties of six": (8, {"kernel_shape": [2, 3]}),
    "nine, padded": (6, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "nine, zeros around": (
        7, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}
    ),
    "large": (5, {"kernel_shape": [7, 5], "strides": [2, 1], "pads": [3, 0, 3, 2]}),
    "words": (16, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "words of nine": (10, {"kernel_shape": [3, 3]}),
    "more than 16 bits hold": (4, {"kernel_shape": [13, 11], "pads": [6, 0, 6, 0]}),
}
"""Average pooling: channels, and how."""


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["cortex-m3", "cortex-m4f", "cortex-m55"])
@pytest.mark.parametrize("name", AVERAGES)
def test_averages_of_windows_are_the_portable_kernels(
    name: str, target: str, tmp_path: Path
) -> None:
    channels, how = AVERAGES[name]
    net = Net(True)
    x = net.conv(net.input(1, 3, 13, 11), channels, relu=False)
    net.nodes.append(helper.make_node("AveragePool", [x], ["mean"], **how))
    size, pads = how["kernel_shape"], how.get("pads", [0] * 4)
    strides = how.get("strides", [1, 1])
    out = [(n + pads[d] + pads[d + 2] - size[d]) // strides[d] + 1 for d, n in enumerate((13, 11))]
    net.shapes["mean"] = (1, channels, *out)
    scale = net.scales[x] / 4 if "ties" in name else 0.0113 if "words" in name else 0.0037
    model = net.model(net._quantized("mean", scale, 5))
    given = np.random.default_rng(6).integers(-128, 128, (1, 3, 13, 11)).astype(np.int8)
    want = result(tmp_path / "c99", model, "c99", given)
    assert len(np.unique(want)) > 30
    np.testing.assert_array_equal(result(tmp_path / "small", model, target, given), want)
    texts = [p.read_text() for p in (tmp_path / "small/net/src/kernels").glob("*depthwise*.c")]
    assert ["no weights" in text for text in texts] == [size[0] * size[1] <= 128]
    if "words" in name:
        assert ["q_upper4_" in text for text in texts] == [target == "cortex-m4f"]


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["cortex-m3", "cortex-m4f", "cortex-m55"])
@pytest.mark.parametrize("size", [1, 3, 38])
def test_floats_are_quantized_as_the_portable_kernels_do(
    size: int, target: str, tmp_path: Path
) -> None:
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])]
    ends = [helper.make_tensor_value_info(n, t, (1, 6, size))
            for n, t in (("x", onnx.TensorProto.FLOAT), ("y", onnx.TensorProto.INT8))]  # fmt: skip
    constants = [numpy_helper.from_array(v, n)
                 for n, v in (("s", np.float32(0.0371)), ("z", np.int8(-7)))]  # fmt: skip
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9
    )
    x = np.random.default_rng(size).normal(0, 3, (1, 6, size)).astype(np.float32)
    x.flat[:5] = np.nan, np.inf, -np.inf, 0.0371 * 2.5, -3e38
    want = result(tmp_path / "c99", model, "c99", x)
    assert want.flat[0] == 0
    np.testing.assert_array_equal(result(tmp_path / "small", model, target, x), want)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["cortex-m3", "cortex-m4f", "cortex-m55"])
@pytest.mark.parametrize("channels", [7, 12, 24])
def test_channels_weighed_by_their_means_have_the_portable_kernels_bits(
    channels: int, target: str, tmp_path: Path
) -> None:
    net = Net(True, uneven=True)
    x = net.conv(net.input(1, 5, 6, 7), channels, (1, 1), relu=False)
    net.nodes.append(helper.make_node("GlobalAveragePool", [x], ["mean"]))
    net.shapes["mean"] = (1, channels, 1, 1)
    model = net.model(net.add(x, net._quantized("mean", 0.0041, 9), "Mul", relu=False))
    given = np.random.default_rng(6).integers(-128, 128, (1, 5, 6, 7)).astype(np.int8)
    want = result(tmp_path / "c99", model, "c99", given)
    assert len(np.unique(want)) > 20
    np.testing.assert_array_equal(result(tmp_path / "small", model, target, given), want)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4f"])
@pytest.mark.parametrize("alone", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_any_floats_between_bytes_have_the_portable_kernels_bits(
    alone: bool, target: str, tmp_path: Path
) -> None:
    net = Net(True, uneven=True)
    a = net.input(1, 6, 9, 5, scale=0.0231)
    x = a if alone else net.conv(a, 6, (1, 1), relu=False)
    net.constants |= {
        "slope": np.linspace(-0.3, 0.4, 6, dtype=np.float32).reshape(6, 1, 1),
        "factor": np.linspace(0.5, 1.7, 6, dtype=np.float32).reshape(6, 1, 1),
    }
    for operator, other in (("PRelu", "slope"), ("Mul", "factor"), ("Max", a), ("Div", a)):
        y = f"{operator}.result"
        net.nodes.append(helper.make_node(operator, [x, other], [y]))
        net.shapes[y] = net.shapes[a]
        x = net._quantized(y, 0.0117 if operator != "Div" else 0.07, -9)
    model = net.model(x)
    given = np.random.default_rng(6).integers(-128, 128, (1, 6, 9, 5)).astype(np.int8)
    want = result(tmp_path / "c99", model, "c99", given)
    assert len(np.unique(want)) > 20
    np.testing.assert_array_equal(result(tmp_path / "small", model, target, given), want)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["cortex-m3", "cortex-m4f", "cortex-m55"])
def test_floats_at_the_end_leave_convolutions_their_bytes(target: str, tmp_path: Path) -> None:
    net = Net(True)
    x = net.conv(net.conv(net.input(1, 5, 6, 7), 9, relu=False), 11, (1, 1), relu=False)
    model = net.model(x)
    operands = [model.graph.output[0].name, f"{x}.s", f"{x}.z"]
    model.graph.node.append(helper.make_node("DequantizeLinear", operands, ["floats"]))
    model.graph.output[0].name = "floats"
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    given = np.random.default_rng(6).integers(-128, 128, (1, 5, 6, 7)).astype(np.int8)
    want = result(tmp_path / "c99", model, "c99", given)
    assert len(np.unique(want)) > 20
    np.testing.assert_array_equal(result(tmp_path / "small", model, target, given), want)
    names = [p.stem for p in (tmp_path / "small/net/src/kernels").glob("*conv*.c")]
    assert len(names) == 2
    assert all("conv_runs" in name for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cortex-m3", "cortex-m4f"])
def test_residuals_of_any_scale_give_the_portable_kernels_bits(target: str, tmp_path: Path) -> None:
    net, rng = Net(True, uneven=True), np.random.default_rng(11)
    x = net.conv(net.input(1, 6, 9, 9), 8, (1, 1), relu=False)
    for _ in range(3):
        x = net.add(net.conv(x, 8, relu=False), x)
    model = net.model(x)
    given = rng.integers(-128, 128, (1, 6, 9, 9)).astype(np.int8)
    want = result(tmp_path / "c99", model, "c99", given)
    assert len(np.unique(want)) > 50
    np.testing.assert_array_equal(result(tmp_path / "small", model, target, given), want)
    kernels = (tmp_path / "small/net").rglob("*.c")
    assert any("_fine" in path.read_text() for path in kernels)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4f"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_between_bytes_sum_their_input_in_integers(
    kind: str, target: str, tmp_path: Path
) -> None:
    rng, gates, hidden = np.random.default_rng(3), 4 if kind == "LSTM" else 3, 9
    bytes_ = {"W": (1, gates * hidden, 7), "R": (1, gates * hidden, hidden)}
    known: dict[str, Any] = {"x_s": np.float32(0.02), "x_z": np.int8(3)}
    known |= {"y_s": np.float32(1 / 128), "y_z": np.int8(-5)}
    nodes = [helper.make_node("DequantizeLinear", ["x", "x_s", "x_z"], ["x_f"])]
    for name, shape in bytes_.items():
        known[f"{name}_q"] = rng.integers(-127, 128, shape).astype(np.int8)
        known |= {f"{name}_s": np.float32(0.011), f"{name}_z": np.int8(0)}
        operands = [f"{name}_q", f"{name}_s", f"{name}_z"]
        nodes.append(helper.make_node("DequantizeLinear", operands, [name]))
    known["B"] = (rng.standard_normal((1, 2 * gates * hidden)) * 0.2).astype(np.float32)
    nodes.append(helper.make_node(kind, ["x_f", "W", "R", "B"], ["h"], hidden_size=hidden))
    nodes.append(helper.make_node("QuantizeLinear", ["h", "y_s", "y_z"], ["y"]))
    int8 = onnx.TensorProto.INT8
    graph = helper.make_graph(
        nodes, "recurrent", [helper.make_tensor_value_info("x", int8, [11, 1, 7])],
        [helper.make_tensor_value_info("y", int8, [11, 1, 1, hidden])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in known.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    given = rng.integers(-128, 128, (11, 1, 7)).astype(np.int8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (want,) = session.run(None, {"x": given})
    got = result(tmp_path / "small", model, target, given)
    assert len(np.unique(want)) > 40
    assert np.abs(got.astype(int) - want).max() <= 1
    assert np.mean(got != want) < 0.02
    options = Options(model=tmp_path / "small/m.onnx", output=tmp_path, target=target)
    sums = [n.op for n in graph_of(options).nodes if isinstance(n.op, MatMul)]
    assert [op.accumulator for op in sums] == [DType.INT32]
