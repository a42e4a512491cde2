"""Layouts: which nodes lie how, where relayouts stay, that results don't change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import support
from atc.ir.graph import Graph
from atc.ir.ops import Conv
from atc.passes import run_passes
from atc.passes.layout import LayoutReport, Layouts
from support import assert_close, compile_graph, run_model, runnable

WIDTH = 8
Build = Callable[["Net"], str]


class Net:
    """A model under construction; the input is x [1, channels, size, size]."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.rng = np.random.default_rng(0)
        self.shape = tuple(shape)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(self, *shape: int) -> str:
        scale = np.sqrt(np.prod(shape[1:]))
        return self.constant((self.rng.standard_normal(shape) / scale).astype(np.float32))

    def conv(self, x: str, ic: int, oc: int, k: int = 3, group: int = 1, **more: object) -> str:
        pads = [k // 2] * 4
        w, b = self.weights(oc, ic // group, k, k), self.weights(oc)
        return self.op("Conv", x, w, b, pads=pads, group=group, **more)

    def model(self, *outputs: str) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", 1, self.shape)
        ys = [onnx.ValueInfoProto(name=y) for y in outputs]
        graph = helper.make_graph(self.nodes, "net", [x], ys, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def chain(net: Net) -> str:
    y = net.op("Relu", net.conv("x", 3, 20))
    y = net.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    y = net.op("Relu", net.conv(y, 20, 24))
    y = net.op("GlobalAveragePool", net.op("HardSwish", net.conv(y, 24, 40, 1)))
    return net.op("Gemm", net.op("Flatten", y), net.weights(40, 10))


def residual(net: Net) -> str:
    x = net.conv("x", 16, 16)
    y = net.op("Relu", net.conv(x, 16, 16))
    return net.conv(net.op("Relu", net.op("Add", net.conv(y, 16, 16), x)), 16, 12)


def late_residual(net: Net) -> str:
    """The sum's other operand is the plain input."""
    return net.conv(net.op("Add", net.conv("x", 16, 16), "x"), 16, 16)


def inverted(net: Net) -> str:
    y = net.op(
        "Clip", net.conv("x", 16, 48, 1), net.constant(np.float32(0)), net.constant(np.float32(6))
    )
    y = net.op("Relu", net.conv(y, 48, 48, 3, 48, strides=[2, 2]))
    return net.conv(y, 48, 20, 1)


def squeeze(net: Net) -> str:
    """Squeeze-and-excite: a gate per channel."""
    x = net.conv("x", 16, 24)
    g = net.op("Relu", net.conv(net.op("GlobalAveragePool", x), 24, 6, 1))
    g = net.op("Sigmoid", net.conv(g, 6, 24, 1))
    return net.conv(net.op("Mul", x, g), 24, 16, 1)


def spatial_gate(net: Net) -> str:
    x = net.conv("x", 16, 16)
    m = net.op("ReduceMean", x, net.constant(np.array([1])), keepdims=1)
    return net.conv(net.op("Mul", x, net.op("Sigmoid", m)), 16, 16)


def branches(net: Net) -> str:
    a = net.op("Relu", net.conv("x", 16, 16))
    b = net.op("AveragePool", net.conv("x", 16, 8), kernel_shape=[3, 3], pads=[1] * 4)
    y = net.op("Concat", a, b, net.conv(a, 16, 12), axis=1)
    return net.conv(y, 36, 16)


def ragged_branches(net: Net) -> str:
    y = net.op("Concat", net.conv("x", 16, 12), net.conv("x", 16, 20), axis=1)
    return net.conv(y, 32, 16)


def halves(net: Net) -> str:
    """Channels cut in two at a whole block, as in cross-stage networks."""
    x = net.op("Relu", net.conv("x", 16, 32))
    a = net.op("Slice", x, *(net.constant(np.array([v])) for v in (0, 16, 1)))
    b = net.op("Slice", x, *(net.constant(np.array([v])) for v in (16, 32, 1)))
    return net.op("Concat", net.op("Sigmoid", net.conv(a, 16, 16)), net.op("Tanh", b), axis=1)


def upsampled(net: Net) -> str:
    """A skip connection: nearest upsampling beside what it is joined with."""
    x = net.op("Relu", net.conv("x", 16, 16))
    y = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    y = net.op("Resize", net.conv(y, 16, 24), "", scales, mode="nearest",
               coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    return net.conv(net.op("Concat", x, net.op("Relu", y), axis=1), 40, 16)


def interpolated(net: Net) -> str:
    """Channels that fill no whole block, upsampled by a broken factor and sampled cubically."""
    y = net.op("MaxPool", net.conv("x", 16, 20), kernel_shape=[2, 2], strides=[2, 2])
    sizes = net.constant(np.array([1, 20, 13, 9]))
    y = net.op("Relu", net.op("Resize", y, "", "", sizes, mode="linear"))
    scales = net.constant(np.array([1, 1, 0.75, 1.5], np.float32))
    return net.conv(net.op("Resize", net.conv(y, 20, 24), "", scales, mode="cubic"), 24, 16)


def cropped(net: Net) -> str:
    """Every second pixel of a cut and flipped image."""
    bounds = ([7, 1], [-9, 10], [2, 3], [-2, 3])
    x = net.conv("x", 16, 20)
    y = net.op("Slice", x, *(net.constant(np.array(bounds[k])) for k in (0, 1, 2, 3)))
    return net.conv(net.op("Relu", y), 20, 16)


def odd_slice(net: Net) -> str:
    x = net.conv("x", 16, 32)
    a = net.op("Slice", x, *(net.constant(np.array([v])) for v in (5, 21, 1)))
    return net.conv(net.op("Relu", a), 16, 16)


def transposed(net: Net) -> str:
    """What only plain layouts can do, between convolutions."""
    x = net.op("Transpose", net.conv("x", 16, 16), perm=[0, 1, 3, 2])
    return net.conv(net.op("Softmax", x, axis=1), 16, 16)


def transposed_residual(net: Net) -> str:
    """A shortcut from a value that lies with its channels last, as in ConvNeXt."""
    y = net.op("Transpose", net.conv("x", 3, 20), perm=[0, 2, 3, 1])
    y = net.op("Transpose", net.op("Softmax", y), perm=[0, 3, 1, 2])
    return net.op("Add", net.conv(net.conv(y, 20, 20, 7, group=20), 20, 20, 1), y)


def normalised(net: Net) -> str:
    x = net.conv("x", 16, 20)
    scale = net.constant(net.rng.uniform(1, 2, (1, 20, 1, 1)).astype(np.float32))
    grid = net.constant(net.rng.standard_normal((1, 20, 10, 10)).astype(np.float32))
    return net.conv(net.op("Tanh", net.op("Div", net.op("Add", x, grid), scale)), 20, 16)


def libm(net: Net) -> str:
    return net.conv(net.op("Atan", net.conv("x", 16, 20)), 20, 16)


def masked(net: Net) -> str:
    x = net.conv("x", 16, 16)
    mask = net.op("Greater", "x", net.constant(np.float32(0)))
    return net.conv(net.op("Where", mask, x, net.constant(np.float32(-1))), 16, 16)


def whole_images(net: Net) -> str:
    """As VGG's first dense layer is exported: windows as large as the image."""
    y = net.op("MaxPool", net.conv("x", 16, 24), kernel_shape=[2, 2], strides=[2, 2])
    y = net.op("Relu", net.op("Conv", y, net.weights(40, 24, 5, 5), net.weights(40)))
    residual = net.op("Conv", "x", net.weights(40, 16, 10, 10), net.weights(40))
    y = net.op("Conv", net.op("Add", y, residual), net.weights(16, 40, 1, 1), net.weights(16))
    return net.op("Flatten", y)


NETS: dict[str, tuple[Build, tuple[int, ...]]] = {
    "chain": (chain, (1, 3, 20, 20)),
    "chain, batch": (chain, (2, 3, 13, 15)),
    "transposed residual": (transposed_residual, (1, 3, 12, 10)),
    **{
        f.__name__: (f, (1, 16, 10, 10))
        for f in (residual, late_residual, inverted, squeeze, spatial_gate, branches,
                  ragged_branches, halves, upsampled, interpolated, cropped, odd_slice,
                  transposed, normalised, libm, masked, whole_images)
    },
    "whole images, batch": (whole_images, (3, 16, 10, 10)),
}  # fmt: skip


def build(name: str) -> onnx.ModelProto:
    make, shape = NETS[name]
    net = Net(shape)
    return net.model(make(net))


def channels_last(net: Net) -> str:
    """As TensorFlow's models come: a transpose before and after every convolution."""

    def conv(x: str, ic: int, oc: int, k: int = 3, group: int = 1, **more: object) -> str:
        x = net.op("Transpose", x, perm=[0, 3, 1, 2])
        y = net.op("Conv", x, net.weights(oc, ic // group, k, k), group=group,
                   pads=[k // 2] * 4, **more)  # fmt: skip
        y = net.op("Transpose", y, perm=[0, 2, 3, 1])
        return net.op("Add", y, net.weights(oc))

    x = net.op("Relu", conv("x", 3, 16, strides=[2, 2]))
    y = net.op("Relu", conv(x, 16, 32, 1))
    y = net.op("Relu", conv(y, 32, 32, 3, 32))
    x = net.op("Add", conv(y, 32, 16, 1), x)
    y = net.op("Concat", x, net.op("Relu", conv(x, 16, 8, 1)), axis=3)
    y = net.op("Pad", y, net.constant(np.array([0, 1, 1, 0, 0, 1, 1, 0])))
    y = net.op("MaxPool", net.op("Transpose", y, perm=[0, 3, 1, 2]), kernel_shape=[2, 2])
    y = net.op("Transpose", y, perm=[0, 2, 3, 1])
    return net.op("ReduceMean", y, net.constant(np.array([1, 2])), keepdims=0)


def padded_pixels(net: Net) -> str:
    """A 1x1 convolution of channels that lie last, with padding at the end of the columns alone."""
    x = net.op("Transpose", net.conv("x", 64, 64, 1), perm=[0, 2, 3, 1])
    x = net.op("LayerNormalization", x, net.weights(64))
    y = net.op("Transpose", x, perm=[0, 3, 1, 2])
    y = net.op("Conv", y, net.weights(64, 64, 1, 1), pads=[0, 0, 0, 1], strides=[2, 1])
    return net.op("Transpose", y, perm=[0, 2, 3, 1])


def mixed_tokens(net: Net) -> str:
    """SegFormer's feed-forward layer: a depthwise convolution of tokens' channels, a function."""
    x = net.op("MatMul", net.op("Reshape", "x", net.constant(np.array([1, 80, 32]))),
               net.weights(32, 64))  # fmt: skip
    image = net.constant(np.array([1, 64, 8, 10]))
    y = net.conv(net.op("Reshape", net.op("Transpose", x, perm=[0, 2, 1]), image), 64, 64, 3, 64)
    y = net.op("Reshape", y, net.constant(np.array([1, 64, 80])))
    y = net.op("HardSwish", net.op("Transpose", y, perm=[0, 2, 1]))
    return net.op("MatMul", y, net.weights(64, 32))


NETS["channels last"] = (channels_last, (1, 18, 20, 3))
NETS["mixed tokens"] = (mixed_tokens, (1, 80, 32))
NETS["padded pixels"] = (padded_pixels, (1, 64, 8, 8))


def blocked(name: str) -> Graph:
    return run_passes(compile_graph(build(name)), width=WIDTH)


def kinds(graph: Graph) -> Counter[str]:
    return Counter(node.op.kind for node in graph.nodes)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["x86-64-avx2", "x86-64-avx512"])
@pytest.mark.parametrize("name", list(NETS))
def test_blocking_keeps_results(name: str, target: str) -> None:
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    model, shape = build(name), NETS[name][1]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    assert_close(run_model(model, [x], target), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["nchw", "nhwc", "nchw8c"])
@pytest.mark.parametrize("name", list(NETS))
def test_any_layout_keeps_results(
    name: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not runnable("x86-64-avx2"):
        pytest.skip("this CPU can't run x86-64-avx2")
    forced = partial(run_passes, layouts=Layouts(layout))
    monkeypatch.setattr(support, "run_passes", forced)
    model, shape = build(name), NETS[name][1]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    assert_close(run_model(model, [x], "x86-64-avx2"), expected, rtol=1e-4, atol=2e-5)


def test_channels_last_keep_results() -> None:
    """Two networks at once, one of them with depthwise windows and pooling over them."""
    net = Net((1, 32, 9, 11))
    y = net.op("Relu", net.conv("x", 32, 32, 3, 32))
    y = net.op("Softmax", net.op("Transpose", y, perm=[0, 2, 3, 1]), axis=3)
    y = net.conv(net.op("Transpose", y, perm=[0, 3, 1, 2]), 32, 48, 1)
    y = net.op("AveragePool", y, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    model = net.model(net.op("Transpose", y, perm=[0, 2, 3, 1]))
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    for layouts in (Layouts("nhwc"), Layouts()):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(support, "run_passes", partial(run_passes, layouts=layouts))
            assert_close(run_model(model, [x]), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.few(10)
@pytest.mark.parametrize("name", list(NETS))
def test_no_single_layout_is_estimated_to_cost_less(name: str) -> None:
    diagnostics: list[LayoutReport] = []
    run_passes(compile_graph(build(name)), width=WIDTH, layouts=Layouts(report=diagnostics.append))
    (report,) = diagnostics
    assert set(report.totals) == {"nchw", "nhwc", "nchw8c", "auto"}
    assert report.totals["auto"].cycles == min(t.cycles for t in report.totals.values())
    for region in report.regions:
        assert region.cycles >= min(region.alternatives.values()) >= 0


def test_transposes_between_convolutions_are_gone() -> None:
    found = kinds(blocked("channels last"))
    assert found["Map"] == 0
    assert (found["Block"], found["Unblock"]) == (0, 1)  # only that of the input


def test_a_function_behind_a_transpose_joins_the_convolution() -> None:
    """The products on both sides read and write what has its channels last."""
    assert kinds(blocked("mixed tokens")) == {"MatMul": 2, "ConvBlocked": 1, "Reshape": 1}


def test_a_forced_layout_is_taken_where_it_can_be() -> None:
    graph = compile_graph(build("inverted"))
    counts = {
        layout: kinds(run_passes(graph, width=WIDTH, layouts=Layouts(layout)))
        for layout in ("nchw", "nhwc", "nchw8c")
    }
    assert counts["nchw"]["ConvBlocked"] == counts["nchw"]["Block"] == 0
    assert (counts["nhwc"]["ConvBlocked"], counts["nhwc"]["MatMul"]) == (1, 2)
    assert counts["nchw8c"]["ConvBlocked"] == 3


@pytest.mark.parametrize(
    ("name", "blocks", "unblocks"),
    [
        ("chain", 0, 0),  # the first layer reads plain data, one pixel is a view of the last
        ("residual", 1, 1),
        ("late_residual", 1, 1),  # the input is blocked once for both its readers
        ("inverted", 1, 1),
        ("squeeze", 1, 1),
        ("branches", 1, 1),
        ("halves", 1, 1),
        ("normalised", 1, 1),
        ("upsampled", 1, 1),
        ("interpolated", 1, 1),
        ("cropped", 1, 1),
    ],
)
def test_relayouts_stay_at_the_borders(name: str, blocks: int, unblocks: int) -> None:
    found = kinds(blocked(name))
    assert (found["Block"], found["Unblock"]) == (blocks, unblocks)
    assert found["Conv"] == 0


def test_nothing_is_blocked_without_vectors() -> None:
    found = kinds(run_passes(compile_graph(build("residual"))))
    assert found["ConvBlocked"] == found["Block"] == 0


def test_a_convolution_too_small_to_pay_stays_plain() -> None:
    net = Net((1, 16, 10, 10))
    found = kinds(run_passes(compile_graph(net.model(net.conv("x", 16, 2, 1))), width=16))
    assert found["ConvBlocked"] == 0


@pytest.mark.parametrize("batch", [1, 3])
def test_windows_as_large_as_the_image_are_products(batch: int) -> None:
    net = Net((batch, 64, 7, 7))
    y = net.op("Relu", net.op("Conv", "x", net.weights(256, 64, 7, 7), net.weights(256)))
    found = kinds(run_passes(compile_graph(net.model(y)), width=WIDTH))
    assert found == {"MatMul": 1}


@pytest.mark.parametrize(("group", "blocked_ones"), [(1, 1), (2, 0)])
def test_weights_computed_at_run_time_are_blocked_of_one_group(
    group: int, blocked_ones: int
) -> None:
    net = Net((16, 16, 3, 3))
    filters = net.op("Relu", "x" if group == 1 else net.op("Split", "x", axis=1, num_outputs=2))
    y = net.op("Conv", "x", filters, pads=[1] * 4, group=group)
    found = kinds(run_passes(compile_graph(net.model(y)), width=WIDTH))
    assert found["ConvBlocked"] == blocked_ones


def test_a_plain_reader_and_a_blocked_one_share_the_value() -> None:
    net = Net((1, 16, 10, 10))
    x = net.conv("x", 16, 16)
    model = net.model(net.op("Softmax", x, axis=-1), net.conv(x, 16, 16))
    assert kinds(run_passes(compile_graph(model), width=WIDTH))["Unblock"] == 2


def test_a_shortcut_with_its_channels_last_leaves_the_convolution_blocked() -> None:
    plain = [n.op for n in blocked("transposed residual").nodes if isinstance(n.op, Conv)]
    assert all(op.group == 1 for op in plain)  # those of the image may be
