"""Networks that onnxruntime saves in the layout of one processor, against the ones before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import atc
from atc.errors import ModelError, UnsupportedError
from atc.importers.nchwc import BLOCKS, DOMAIN, plain_filters
from atc.importers.onnx import load_onnx

ort = pytest.importorskip("onnxruntime")

SCALES = np.linspace(0.3, 3, 64)


def network(path: Path, channels: int = 24, alike: bool = False) -> Path:
    """Write convolutions of all kinds: first, plain, depthwise, with a sum; pools, upsampling."""
    rng = np.random.default_rng(5)
    tensors = []

    def filters(name: str, o: int, i: int, k: int) -> list[str]:
        scale = 1.0 if alike else rng.permutation(SCALES)[np.arange(o) % 64].reshape(o, 1, 1, 1)
        w = rng.standard_normal((o, i, k, k)) * scale / (i * k * k) ** 0.5
        bias = rng.standard_normal(o)
        for each, array in ((name, w), (f"{name}b", bias)):
            tensors.append(numpy_helper.from_array(array.astype(np.float32), each))
        return [name, f"{name}b"]

    def node(op: str, *names: str, **attributes: object) -> onnx.NodeProto:
        return helper.make_node(op, names[:-1], names[-1:], names[-1], **attributes)

    c, scales = channels, numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    nodes = [
        node("Conv", "x", *filters("w0", c, 3, 3), "a", pads=[1] * 4),
        node("HardSwish", "a", "a1"),
        node("Conv", "a1", *filters("w1", 2 * c, c, 3), "b", pads=[1] * 4),
        node("Relu", "b", "b1"),
        node("MaxPool", "b1", "c", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "c", *filters("w2", 2 * c, 1, 3), "d", pads=[1] * 4, group=2 * c),
        node("Add", "c", "d", "e"),
        node("Resize", "e", "", "scales", "f", mode="nearest",
             coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        node("Conv", "f", *filters("w3", c, 2 * c, 1), "g"),
        node("AveragePool", "g", "h", kernel_shape=[3, 3], pads=[1] * 4),
        node("Transpose", "h", "y", perm=[0, 2, 3, 1]),
        node("Softmax", "a", "s", axis=1),
        node("Conv", "s", *filters("w4", 2 * c, c, 1), "t"),
        node("GlobalAveragePool", "t", "z"),
    ]  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 10])
    results = [onnx.ValueInfoProto(name=name) for name in ("y", "z")]
    graph = helper.make_graph(nodes, "net", [x], results, [*tensors, scales])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def laid_out(path: Path) -> Path:
    """Return what onnxruntime saves of a network; skip where that has no blocks."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(path.with_suffix(".laid-out.onnx"))
    ort.InferenceSession(path, options)
    saved = Path(options.optimized_model_filepath)
    if all(n.domain != DOMAIN for n in onnx.load(saved).graph.node):
        pytest.skip("onnxruntime has no blocked kernels for this processor")
    return saved


def in_blocks(path: Path, block: int) -> None:
    """Lay filters out again in other blocks, as other processors have them."""
    model = onnx.load(path)
    convs = [n for n in model.graph.node if n.domain == DOMAIN and n.op_type == "Conv"]
    names = {n.input[1] for n in convs}
    for tensor in model.graph.initializer:
        if tensor.name in names:
            stored = numpy_helper.to_array(tensor)
            plain = plain_filters(stored, 16)
            o, i, h, w = plain.shape
            if i < block:
                again = plain.reshape(o // block, block, i, h, w).transpose(0, 2, 3, 4, 1)
            else:
                again = plain.reshape(o // block, block, i // block, block, h, w)
                again = again.transpose(0, 2, 4, 5, 3, 1)
            again = np.ascontiguousarray(again).reshape(stored.shape)
            tensor.CopyFrom(numpy_helper.from_array(again, tensor.name))
    onnx.save(model, path)


def compare(path: Path, saved: Path) -> None:
    x = np.random.default_rng(1).standard_normal((1, 3, 8, 10)).astype(np.float32)
    expected = ort.InferenceSession(path).run(None, {"x": x})
    atc.compile(saved, saved.with_suffix(""), target="c99")
    got = atc.load(saved.with_suffix(""))(x)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("channels", [16, 24, 40])
def test_what_onnxruntime_saves(channels: int, tmp_path: Path) -> None:
    path = network(tmp_path / "net.onnx", channels)
    compare(path, laid_out(path))


@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_are_told_by_the_channels_scales(block: int, tmp_path: Path) -> None:
    path = network(tmp_path / "net.onnx", 32)
    saved = laid_out(path)
    in_blocks(saved, block)
    compare(path, saved)
    assert f"blocks of {block} channels" in load_onnx(saved).metadata_props["atc.warnings"]


def test_what_nothing_tells_is_refused(tmp_path: Path) -> None:
    saved = laid_out(network(tmp_path / "net.onnx", 32, alike=True))
    with pytest.raises(UnsupportedError, match="blocks of 8 or 16") as caught:
        load_onnx(saved)
    assert "ORT_ENABLE_EXTENDED" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "shape", [(12, 3, 3, 3), (0, 3, 3, 3), (16, 0, 3, 3), (16, 3, 0, 3), (16, 12, 3, 3)]
)
def test_filters_in_no_blocks_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = network(tmp_path / "net.onnx", 12)
    model = onnx.load(path)
    filters = next(t for t in model.graph.initializer if t.name == "w0")
    filters.CopyFrom(numpy_helper.from_array(np.zeros(shape, np.float32), "w0"))
    model.graph.node[0].attribute.append(helper.make_attribute("group", 1 + (shape[1] == 12)))
    model.graph.node[0].domain = DOMAIN
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    onnx.save(model, path)
    with pytest.raises(ModelError, match="no blocks"):
        load_onnx(path)
