"""Networks compiled for ranges of shapes: one library, right at every shape of the range."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from projects import build_shared, compile_c, emit_graph, sources, write_project
from shared_models import quantisation_steps

from atc.backends.targets import get_target
from atc.dims import Range
from atc.errors import AtcError, ModelError
from atc.importers.onnx import pin_inputs
from atc.ir.graph import Array, Graph
from atc.lower import lower_model
from atc.options.shapes import shapes
from atc.passes import run_passes
from atc.runtime.network import Network
from atc.select.select import select
from support import runnable

Nodes = list[onnx.NodeProto]

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def node(op: str, inputs: Sequence[str], output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, [*inputs], [output], **attributes)


def value(name: str, data: object) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(data)))


def ints(name: str, *numbers: int) -> onnx.NodeProto:
    return value(name, np.array(numbers, np.int64))


def weights(name: str, *shape: int) -> onnx.NodeProto:
    seed = sum(map(ord, name))
    return value(name, np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def shape_of(name: str, axis: int, output: str) -> Nodes:
    """Return nodes that read one extent of a value as a tensor [1]."""
    return [
        node("Shape", [name], f"{output}_shape"), ints(f"{output}_axis", axis),
        node("Gather", [f"{output}_shape", f"{output}_axis"], output),
    ]  # fmt: skip


def reshaped(output: str, *extents: str, source: str = "x") -> Nodes:
    return [node("Concat", extents, f"{output}_to", axis=0),
            node("Reshape", [source, f"{output}_to"], output)]  # fmt: skip


SCALES = {"align_corners": 3.0}
"""Scales of places that make onnxruntime differ from the standard where an extent is cut off."""

# Each case makes the value of its own name from x [N, 4, H, W] and its relations.
CASES: dict[str, Nodes] = {
    "relu": [node("Relu", ["x"], "relu")],
    "channels": [weights("channels_b", 4, 1, 1), node("Add", ["x", "channels_b"], "channels")],
    "columns": [node("ReduceMean", ["x"], "columns_m", keepdims=1),
                node("Sub", ["x", "columns_m"], "columns")],
    "transposed": [node("Transpose", ["x"], "transposed", perm=[2, 0, 3, 1])],
    "turned": [node("Transpose", ["x"], "turned_t", perm=[0, 2, 3, 1]),
               weights("turned_w", 4, 5), node("MatMul", ["turned_t", "turned_w"], "turned")],
    "gram": [node("Transpose", ["x"], "gram_t", perm=[0, 1, 3, 2]),
             node("MatMul", ["x", "gram_t"], "gram")],
    "flat": [node("Flatten", ["x"], "flat", axis=2)],
    "joined": [node("Concat", ["x", "relu", "x"], "joined", axis=3)],
    "stacked": [node("Concat", ["x", "relu"], "stacked", axis=1)],
    "cut": [ints("cut_s", 1, -2), ints("cut_e", 1 << 62, 1 << 62), ints("cut_a", 2, 3),
            node("Slice", ["x", "cut_s", "cut_e", "cut_a"], "cut")],
    "backwards": [ints("back_s", -1), ints("back_e", -(1 << 62)), ints("back_a", 3),
                  ints("back_d", -2),
                  node("Slice", ["x", "back_s", "back_e", "back_a", "back_d"], "backwards")],
    "few_back": [*shape_of("x", 2, "few_h"), ints("few_4", 4),
                 node("Div", ["few_h", "few_4"], "few_n"), ints("few_0", 0),
                 ints("few_a", 2), ints("few_c", 1), ints("few_d", -1),
                 ints("few_e", -(1 << 62)),
                 node("Slice", ["x", "few_0", "few_n", "few_a"], "few"),
                 node("Slice", ["few", "few_d", "few_e", "few_c", "few_d"], "few_back")],
    "halves": [helper.make_node("Split", ["x"], ["halves", "halves_2"], axis=1, num_outputs=2)],
    "uneven": [helper.make_node("Split", ["x"], ["uneven_1", "uneven"], axis=2, num_outputs=2)],
    "framed": [ints("framed_p", 0, 0, 1, 2, 0, 1, 0, 3), node("Pad", ["x", "framed_p"], "framed")],
    **{f"padded_{mode}": [ints(f"{mode}_p", 0, 0, 1, 1, 0, 0, 1, 2),
                          node("Pad", ["x", f"{mode}_p"], f"padded_{mode}", mode=mode)]
       for mode in ("reflect", "edge", "wrap")},
    "conv": [weights("conv_w", 6, 4, 3, 3), weights("conv_b", 6),
             node("Conv", ["x", "conv_w", "conv_b"], "conv", pads=[1, 1, 1, 1])],
    "strided": [weights("strided_w", 4, 2, 3, 2), node(
        "Conv", ["x", "strided_w"], "strided", strides=[2, 3], pads=[0, 1, 1, 0], group=2)],
    "dilated": [weights("dilated_w", 3, 4, 2, 3), node(
        "Conv", ["x", "dilated_w"], "dilated", dilations=[2, 1], pads=[1, 0, 1, 2])],
    "same": [weights("same_w", 3, 4, 3, 3), node(
        "Conv", ["x", "same_w"], "same", strides=[2, 2], auto_pad="SAME_LOWER")],
    "transposed_conv": [weights("tc_w", 4, 2, 3, 3), node(
        "ConvTranspose", ["x", "tc_w"], "transposed_conv", strides=[2, 2], pads=[1, 0, 0, 1])],
    "pooled": [node("MaxPool", ["x"], "pooled", kernel_shape=[2, 3], strides=[2, 1])],
    "pooled_bytes": [value("pb_s", np.array(0.02, np.float32)), value("pb_z", np.array(9, np.int8)),
                     node("QuantizeLinear", ["x", "pb_s", "pb_z"], "pb_q"),
                     node("MaxPool", ["pb_q"], "pb_t", kernel_shape=[3, 3], strides=[1, 2],
                          pads=[1, 1, 1, 1]),
                     node("MaxPool", ["pb_t"], "pb_m", kernel_shape=[1, 20], pads=[0, 10, 0, 10]),
                     node("DequantizeLinear", ["pb_m", "pb_s", "pb_z"], "pooled_bytes")],
    "averaged": [node("AveragePool", ["x"], "averaged", kernel_shape=[3, 3], strides=[2, 2],
                      pads=[1, 1, 1, 1], ceil_mode=1)],
    "counted": [node("AveragePool", ["x"], "counted", kernel_shape=[3, 2], pads=[1, 0, 1, 1],
                     count_include_pad=1)],
    "global": [node("GlobalAveragePool", ["x"], "global")],
    "top": [node("GlobalMaxPool", ["x"], "top")],
    **{f"softmax_{axis}": [node("Softmax", ["x"], f"softmax_{axis}", axis=axis)]
       for axis in range(4)},
    "log_softmax": [node("LogSoftmax", ["x"], "log_softmax", axis=-1)],
    "rows": [node("ReduceSum", ["x", "rows_a"], "rows", keepdims=0)],
    "means": [ints("means_a", 0, 3), node("ReduceMean", ["x", "means_a"], "means", keepdims=0)],
    "around": [ints("around_a", 0, 2), node("ReduceSum", ["x", "around_a"], "around", keepdims=0)],
    "grey": [ints("grey_a", 1), node("ReduceMax", ["x", "grey_a"], "grey_m", keepdims=1),
             node("AveragePool", ["grey_m"], "grey", kernel_shape=[2, 2], pads=[0, 1, 1, 0])],
    "norm": [ints("norm_a", 1, 2), node("ReduceL2", ["x", "norm_a"], "norm")],
    "best": [node("ArgMax", ["x"], "best", axis=2, keepdims=0)],
    "instance": [weights("in_s", 4), weights("in_b", 4),
                 node("InstanceNormalization", ["x", "in_s", "in_b"], "instance")],
    "layer": [weights("ln_s", 4), node("LayerNormalization", ["turned_t", "ln_s"], "layer")],
    "sums": [value("sums_a", np.array(2, np.int64)), node("CumSum", ["x", "sums_a"], "sums")],
    "leading": [ints("leading_k", 2), helper.make_node(
        "TopK", ["x", "leading_k"], ["leading", "leading_i"], axis=3)],
    "highest": [*shape_of("x", 2, "highest_h"), ints("highest_2", 2),
                node("Div", ["highest_h", "highest_2"], "highest_k"), helper.make_node(
                    "TopK", ["x", "highest_k"], ["highest", "highest_i"], axis=2)],
    "hot": [*shape_of("x", 2, "hot_h"), value("hot_v", np.array([-1, 2], np.float32)),
            node("OneHot", ["best", "hot_h", "hot_v"], "hot", axis=1)],
    "taken": [value("taken_i", np.array([[1, 0], [-1, 2]], np.int64)),
              node("Gather", ["x", "taken_i"], "taken", axis=2)],
    "tiled": [ints("tiled_r", 1, 1, 2, 3), node("Tile", ["x", "tiled_r"], "tiled")],
    "shape": [node("Shape", ["x"], "shape")],
    "size": [node("Size", ["x"], "size")],
    "ratio": [node("Shape", ["x"], "ratio_s", start=2), node("Cast", ["ratio_s"], "ratio", to=1)],
    "folded": [*shape_of("x", 0, "folded_n"), *shape_of("x", 2, "folded_h"), ints("folded_r", -1),
               *reshaped("folded", "folded_n", "folded_r", "folded_h")],
    "doubled": [*shape_of("x", 3, "doubled_w"), ints("doubled_2", 2),
                node("Mul", ["doubled_w", "doubled_2"], "doubled_n"), ints("doubled_r", -1),
                *reshaped("doubled", "doubled_r", "doubled_n")],
    "filled": [node("Shape", ["x"], "filled_s"), node(
        "ConstantOfShape", ["filled_s"], "filled",
        value=numpy_helper.from_array(np.array([2.5], np.float32)))],
    "expanded": [weights("expanded_c", 4, 1, 1), node("Shape", ["x"], "expanded_s"),
                 node("Expand", ["expanded_c", "expanded_s"], "expanded")],
    "steps": [value("steps_0", np.array(0, np.int64)), value("steps_1", np.array(1, np.int64)),
              *shape_of("x", 3, "steps_w"), node("Squeeze", ["steps_w"], "steps_n"),
              node("Range", ["steps_0", "steps_n", "steps_1"], "steps")],
    "positions": [node("Cast", ["steps"], "steps_f", to=1), node("Add", ["x", "steps_f"],
                                                                 "positions")],
    "triangle": [node("Trilu", ["x"], "triangle", upper=0)],
    "eye": [ints("eye_a", 0, 1), node("ReduceMax", ["x", "eye_a"], "eye_m", keepdims=0),
            node("EyeLike", ["eye_m"], "eye", k=1)],
    "squeezed": [ints("squeezed_a", 0, 5), node("Unsqueeze", ["x", "squeezed_a"], "squeezed")],
    "blocks": [node("DepthToSpace", ["x"], "blocks", blocksize=2)],
    "batchnorm": [*(weights(f"bn_{k}", 4) for k in range(3)), value("bn_v", np.ones(4, np.float32)),
                  node("BatchNormalization", ["conv4", "bn_0", "bn_1", "bn_2", "bn_v"],
                       "batchnorm")],
    "where": [value("where_0", np.float32(0)), node("Greater", ["x", "where_0"], "where_c"),
              node("Where", ["where_c", "x", "columns_m"], "where")],
    "sorted": [node("ReduceMax", ["x", "rows_a"], "sorted_m", keepdims=1),
               node("Div", ["x", "sorted_m"], "sorted")],
    "lrn": [node("LRN", ["x"], "lrn", size=3)],
    "lstm": [*shape_of("x", 0, "lstm_n"), ints("lstm_r", -1), ints("lstm_4", 4),
             *reshaped("lstm_x", "lstm_r", "lstm_n", "lstm_4"),
             weights("lstm_w", 2, 12, 4), weights("lstm_rw", 2, 12, 3), helper.make_node(
                 "LSTM", ["lstm_x", "lstm_w", "lstm_rw"], ["lstm", "lstm_h", "lstm_c"],
                 hidden_size=3, direction="bidirectional")],
    **{f"resized_{mode}_{place}": [
        value(f"{mode}_{place}_s", np.array([1, 1, 2, SCALES.get(place, 1.5)], np.float32)),
        node("Resize", ["x", "", f"{mode}_{place}_s"], f"resized_{mode}_{place}", mode=mode,
             coordinate_transformation_mode=place)]
       for mode in ("nearest", "linear")
       for place in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")},
    **{f"scaled_{mode}": [
        value(f"scaled_{mode}_s", np.array([1, 1, 0.6, 1.7], np.float32)),
        node("Resize", ["x", "", f"scaled_{mode}_s"], f"scaled_{mode}", mode=mode)]
       for mode in ("nearest", "linear")},
    "sized": [node("Shape", ["strided"], "sized_s", start=2),
              node("Shape", ["x"], "sized_n", end=2),
              node("Concat", ["sized_n", "sized_s"], "sized_to", axis=0),
              node("Resize", ["x", "", "", "sized_to"], "sized", mode="linear")],
    "widened": [ints("widened_2", 9), node("Shape", ["x"], "widened_s", end=3),
                node("Concat", ["widened_s", "widened_2"], "widened_to", axis=0),
                node("Resize", ["x", "", "", "widened_to"], "widened", mode="nearest",
                     nearest_mode="floor", coordinate_transformation_mode="asymmetric")],
    "attention": [node("Transpose", ["flat3"], "att_k", perm=[0, 2, 1]),
                  node("MatMul", ["att_k", "flat3"], "att_s"),
                  node("Softmax", ["att_s"], "att_p", axis=-1),
                  node("MatMul", ["att_p", "att_k"], "attention")],
}  # fmt: skip
SHARED: Nodes = [
    ints("rows_a", 3), weights("c4", 4, 4, 1, 1), node("Conv", ["x", "c4"], "conv4"),
    ints("flat3_to", 0, 4, -1), node("Reshape", ["x", "flat3_to"], "flat3"),
]  # fmt: skip

SHAPES = [(1, 4, 3, 3), (1, 4, 5, 7), (3, 4, 4, 3), (2, 4, 9, 8), (3, 4, 9, 11), (2, 4, 3, 10)]
RANGE = {"x": (Range(1, 3), 4, Range(3, 9), Range(3, 11))}


def model_of(names: Sequence[str]) -> onnx.ModelProto:
    nodes = [*SHARED, *(n for name in CASES for n in CASES[name])]
    used, kept = set(names), []
    for each in reversed(nodes):
        if used.intersection(each.output):
            kept.append(each)
            used.update(each.input)
    kinds = {"best": INT64, "shape": INT64, "size": INT64, "steps": INT64}
    outputs = [helper.make_value_info(n, helper.make_tensor_type_proto(kinds.get(n, FLOAT), None))
               for n in names]  # fmt: skip
    x = helper.make_tensor_value_info("x", FLOAT, ["n", 4, "h", "w"])
    graph = helper.make_graph(kept[::-1], "g", [x], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def compiled(model: onnx.ModelProto, ranges: object, folder: Path, target: str = "c99") -> Network:
    """Return the network of a model for ranges of its inputs' shapes, built with strict flags."""
    pinned = pin_inputs(onnx_ir.from_proto(model), ranges, "test.onnx")  # type: ignore[arg-type]
    emission = emit_graph(lower_model(pinned, "test.onnx"), target=target)
    project = write_project(folder, emission)
    if target == "c99":
        return Network(build_shared(project, level="-O0"), emission.name)
    flags = ("-O1", "-fPIC", "-shared", "-fvisibility=hidden", *get_target(target).cflags)
    compile_c(project, *flags, "-o", "libnet.so", *sources(project), "-lm")
    return Network(project / "libnet.so", emission.name)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, list[list[Array]]]:
    """All cases in one network, and what onnxruntime makes of each shape."""
    model = model_of([*CASES])
    network = compiled(model, RANGE, tmp_path_factory.mktemp("all"))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return network, [session.run(None, {"x": data(s)}) for s in SHAPES]


def data(shape: Sequence[int]) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def results(everything: tuple[Network, list[list[Array]]]) -> list[dict[str, Array]]:
    return [everything[0].run({"x": data(shape)}) for shape in SHAPES]


@pytest.mark.parametrize("case", CASES)
def test_an_operator_at_every_shape(
    case: str, everything: tuple[Network, list[list[Array]]], results: list[dict[str, Array]]
) -> None:
    for shape, expected, found in zip(SHAPES, everything[1], results, strict=True):
        want = expected[[*CASES].index(case)]
        assert found[case].shape == want.shape, shape
        np.testing.assert_allclose(found[case], want, rtol=1e-4, atol=1e-4, err_msg=str(shape))


HOT = ["channels", "turned", "gram", "softmax_1", "softmax_3", "rows", "layer", "attention", "conv",
       "log_softmax", "around", "grey"]  # fmt: skip
VECTORS = ("x86-64-avx512", "x86-64-avx2", "x86-64-sse2")


@pytest.mark.parametrize(
    ("target", "cases"),
    [
        pytest.param(t, cases, marks=[] if cases is HOT and t == VECTORS[1] else pytest.mark.slow)
        for t in VECTORS for cases in (HOT, [*CASES])
    ],
)  # fmt: skip
def test_vector_kernels_at_every_shape(target: str, cases: list[str], tmp_path: Path) -> None:
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    model = model_of(cases)
    network = compiled(model, RANGE, tmp_path, target)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for shape in SHAPES:
        found = network.run({"x": data(shape)})
        for case, want in zip(cases, session.run(None, {"x": data(shape)}), strict=True):
            assert found[case].shape == want.shape, (case, shape)
            np.testing.assert_allclose(
                found[case], want, rtol=1e-4, atol=1e-4, err_msg=f"{case} {shape}"
            )


@pytest.mark.parametrize("op", ["MatMul", "Attention", "Softmax", "Reduce", "Map"])
def test_ranges_take_vector_kernels(op: str) -> None:
    model = model_of(["turned", "attention", "softmax_2", "rows", "relu"])
    pinned = pin_inputs(onnx_ir.from_proto(model), RANGE, "test.onnx")  # type: ignore[arg-type]
    target = get_target("x86-64-avx512")
    graph = run_passes(lower_model(pinned, "test.onnx"), width=16)
    chosen = select(graph, target).values()
    own = [c.candidate.kernel.portable for c in chosen if c.workload.op.kind == op]
    assert own
    assert not all(own)


# ---- shapes, memory and status codes ------------------------------------------------------------

SHAPE, ARENA, ARGUMENT = -8, -2, -1


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Network:
    model = model_of(["conv", "softmax_3", "joined"])
    return compiled(model, RANGE, tmp_path_factory.mktemp("small"))


class Interface:
    """The C functions of a network, called as C would."""

    def __init__(self, network: Network) -> None:
        library = network._library
        assert library is not None
        self.ffi, self.call = library.ffi, library.function
        self.context = self.ffi.new("uint64_t[]", self.call("context_size")() // 8 + 1)

    def shapes(self, *shapes: Sequence[int]) -> object:
        self.kept = [self.ffi.new("int64_t[]", [*s]) for s in shapes]
        return self.ffi.new("int64_t *[]", self.kept)

    def init(self, size: int) -> int:
        self.memory = np.full(size + 128, 0xA5, np.uint8)
        start = self.memory.ctypes.data
        self.arena = -start % 64
        address = self.ffi.cast("void *", start + self.arena)
        status: int = self.call("init")(self.context, address, size)
        return status


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "shape", [(0, 4, 3, 3), (4, 4, 3, 3), (1, 5, 3, 3), (1, 4, 2, 3), (1, 4, 3, 12),
              (1, 4, 3, -1), (1, 4, 3, 1 << 62)]
)  # fmt: skip
def test_a_shape_outside_the_range_is_a_status(small: Network, shape: tuple[int, ...]) -> None:
    c = Interface(small)
    assert c.init(c.call("arena_size")()) == 0
    assert c.call("set_input_shapes")(c.context, c.shapes(shape)) == SHAPE
    assert c.call("arena_size_for")(c.shapes(shape)) == 0


def test_shapes_are_set_before_a_run(small: Network) -> None:
    c = Interface(small)
    assert c.call("set_input_shapes")(c.context, c.shapes((1, 4, 3, 3))) == ARGUMENT
    assert c.init(c.call("arena_size")()) == 0
    buffers = [np.zeros(10000, np.float32) for _ in range(4)]
    pointers = [c.ffi.from_buffer(b) for b in buffers]
    inputs, outputs = c.ffi.new("void *[]", pointers[:1]), c.ffi.new("void *[]", pointers[1:])
    assert c.call("run_tensors")(c.context, inputs, outputs) == SHAPE
    assert c.call("set_input_shapes")(c.context, c.ffi.NULL) == ARGUMENT
    assert c.call("set_input_shapes")(c.context, c.shapes((1, 4, 3, 3))) == 0
    assert c.call("run_tensors")(c.context, inputs, outputs) == 0


def test_a_refused_shape_changes_nothing(small: Network) -> None:
    c = Interface(small)
    c.init(c.call("arena_size_for")(c.shapes((2, 4, 5, 6))))
    assert c.call("set_input_shapes")(c.context, c.shapes((2, 4, 5, 6))) == 0
    assert c.call("set_input_shapes")(c.context, c.shapes((9, 4, 5, 6))) == SHAPE
    assert c.call("set_input_shapes")(c.context, c.shapes((3, 4, 9, 11))) == ARENA
    extents = c.ffi.new("int64_t[4]")
    assert c.call("output_shape")(c.context, 1, extents) == 0
    assert list(extents) == [2, 4, 5, 6]
    assert c.call("output_shape")(c.context, 3, extents) == ARGUMENT


@pytest.mark.few(2)
@pytest.mark.parametrize("shape", SHAPES)
def test_smaller_shapes_take_less_memory(
    everything: tuple[Network, list[list[Array]]], shape: tuple[int, ...]
) -> None:
    network, expected = everything
    c = Interface(network)
    size = c.call("arena_size_for")(c.shapes(shape))
    whole, largest = c.call("arena_size")(), c.call("arena_size_for")(c.shapes((3, 4, 9, 11)))
    assert 0.99 * whole <= largest <= whole  # extents that follow from others are bounded roughly
    assert 0 < size <= largest
    assert (size == largest) == (shape == (3, 4, 9, 11))
    assert c.init(size) == 0
    assert c.call("set_input_shapes")(c.context, c.shapes(shape)) == 0
    wanted = expected[SHAPES.index(shape)]
    arrays = [data(shape), *(np.full(w.size + 8, 77, w.dtype) for w in wanted)]
    pointers = [c.ffi.from_buffer(a) for a in arrays]
    inputs, outputs = c.ffi.new("void *[]", pointers[:1]), c.ffi.new("void *[]", pointers[1:])
    assert c.call("run_tensors")(c.context, inputs, outputs) == 0
    assert (c.memory[: c.arena] == 0xA5).all()
    assert (c.memory[c.arena + size :] == 0xA5).all()
    for got, want in zip(arrays[1:], wanted, strict=True):
        assert (got[want.size :] == 77).all()
        np.testing.assert_allclose(got[: want.size], want.ravel(), rtol=1e-4, atol=1e-4)


def test_python_takes_any_shape_of_the_range(small: Network) -> None:
    assert str(small.inputs[0]) == "x: float32 [1~3, 4, 3~9, 3~11]"
    x = data((2, 4, 6, 5))
    conv, softmax, joined = small(x)
    assert (conv.shape, softmax.shape, joined.shape) == ((2, 6, 6, 5), x.shape, (2, 4, 6, 15))
    bound = small.bind(x)
    np.testing.assert_array_equal(bound()[1], softmax)
    out = np.empty_like(softmax)
    small(x, out=[None, out, None])
    np.testing.assert_array_equal(out, softmax)
    with pytest.raises(ValueError, match=r"'x' must have a shape in \[1~3, 4, 3~9, 3~11\]"):
        small(data((2, 4, 6, 12)))
    with pytest.raises(ValueError, match="softmax_3"):
        small(x, out=[None, np.empty((2, 4, 6, 6), np.float32), None])


# ---- several inputs -----------------------------------------------------------------------------


def two_inputs(a: Sequence[object], b: Sequence[object], op: str = "Add") -> onnx.ModelProto:
    graph = helper.make_graph(
        [node(op, ["a", "b"], "y")], "g",
        [helper.make_tensor_value_info(n, FLOAT, s) for n, s in (("a", a), ("b", b))],
        [helper.make_tensor_value_info("y", FLOAT, None)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_axes_of_one_name_have_one_extent(tmp_path: Path) -> None:
    ranges = {"a": (Range(1, 5), 3), "b": (Range(1, 5), 1)}
    network = compiled(two_inputs(["n", 3], ["n", 1]), ranges, tmp_path)
    a, b = data((4, 3)), data((4, 1))
    np.testing.assert_allclose(network(a, b), a + b)
    with pytest.raises(ValueError, match=r"out of its range.*\[4, 3\], \[1, 1\]"):
        network(a, b[:1])


def test_axes_of_unlike_names_broadcast_when_the_network_runs(tmp_path: Path) -> None:
    ranges = {"a": (Range(1, 5), Range(1, 4)), "b": (Range(1, 5), 4)}
    network = compiled(two_inputs(["n", "m"], ["k", 4]), ranges, tmp_path)
    for first, second in [((3, 4), (3, 4)), ((1, 4), (5, 4)), ((5, 1), (1, 4)), ((1, 1), (1, 4))]:
        a, b = data(first), data(second)
        np.testing.assert_allclose(network(a, b), a + b)
    for wrong in [((2, 4), (3, 4)), ((3, 3), (3, 4)), ((3, 2), (1, 4))]:
        with pytest.raises(ValueError, match="out of its range"):
            network(*map(data, wrong))


def test_axes_of_unlike_names_are_joined_when_the_network_runs(tmp_path: Path) -> None:
    model = two_inputs(["n", 3], ["k", 2], "Concat")
    model.graph.node[0].attribute.append(helper.make_attribute("axis", 1))
    ranges = {"a": (Range(1, 5), 3), "b": (Range(1, 5), 2)}
    network = compiled(model, ranges, tmp_path)
    for n in (1, 4):
        a, b = data((n, 3)), data((n, 2))
        np.testing.assert_array_equal(network(a, b), np.concatenate([a, b], 1))
    with pytest.raises(ValueError, match="out of its range"):
        network(data((4, 3)), data((1, 2)))


def test_ranges_whose_shapes_never_fit_are_refused() -> None:
    model = two_inputs(["n", 3], ["k", 3])
    ranges = {"a": (Range(2, 3), 3), "b": (Range(4, 5), 3)}
    pinned = pin_inputs(onnx_ir.from_proto(model), ranges, "test.onnx")
    with pytest.raises(ModelError, match="broadcast"):
        lower_model(pinned, "test.onnx")


def test_a_tensor_beside_extents_may_be_small_or_large(tmp_path: Path) -> None:
    nodes = [*shape_of("x", 0, "rows"), ints("rest", -1), *reshaped("y", "rows", "rest")]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", FLOAT, ["n", 40, 30])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    network = compiled(model, {"x": (Range(1, 6), 40, 30)}, tmp_path)
    for n in (1, 6):
        x = data((n, 40, 30))
        np.testing.assert_array_equal(network(x), x.reshape(n, -1))


# ---- nothing there ------------------------------------------------------------------------------

NEEDS_SOME = {
    "padded_reflect", "padded_edge", "padded_wrap", "conv", "strided", "dilated", "same", "pooled",
    "pooled_bytes", "transposed_conv", "averaged", "counted", "global", "top", "best", "hot",
    "highest", "leading", "taken", "folded", "doubled", "batchnorm", "lstm", "sized", "widened",
    "attention", "means", "uneven", "grey",
}
"""Cases of which an extent of 0 is refused, or has no meaning."""
RESIZED = ("resized", "scaled")
EMPTY = [name for name in CASES if name not in NEEDS_SOME and not name.startswith(RESIZED)]
FEW = ["gram", "softmax_3", "rows", "joined", "layer"]
FROM_NONE = {"x": (Range(0, 3), 4, Range(0, 9), Range(0, 11))}
NONE = [(0, 4, 3, 3), (1, 4, 0, 3), (2, 4, 5, 0), (0, 4, 0, 0), (2, 4, 5, 7), (1, 4, 1, 1)]


@pytest.mark.parametrize(
    ("target", "cases"),
    [("c99", FEW), *(pytest.param(t, EMPTY, marks=pytest.mark.slow) for t in ("c99", *VECTORS))],
)
def test_an_operator_on_nothing(target: str, cases: list[str], tmp_path: Path) -> None:
    if target != "c99" and not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    model = model_of(cases)
    network = compiled(model, FROM_NONE, tmp_path, target)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for shape in NONE:
        found = network.run({"x": data(shape)})
        for case, want in zip(cases, session.run(None, {"x": data(shape)}), strict=True):
            assert found[case].shape == want.shape, (case, shape)
            if case == "gram" and not shape[3]:
                want = np.zeros_like(want)  # which onnxruntime leaves unwritten
            np.testing.assert_allclose(
                found[case], want, rtol=1e-4, atol=1e-4, err_msg=f"{case} {shape}"
            )


def test_nothing_is_broadcast_to_nothing(tmp_path: Path) -> None:
    ranges = {"a": (Range(0, 5), 3), "b": (Range(0, 5), 1)}
    network = compiled(two_inputs(["n", 3], ["k", 1]), ranges, tmp_path)
    for n, k in [(0, 1), (1, 0), (0, 0), (1, 4), (4, 1), (4, 4)]:
        a, b = data((n, 3)), data((k, 1))
        np.testing.assert_allclose(network(a, b), a + b)
    for n, k in [(0, 2), (2, 0), (2, 3)]:
        with pytest.raises(ValueError, match="out of its range"):
            network(data((n, 3)), data((k, 1)))


def test_no_address_is_needed_for_nothing(tmp_path: Path) -> None:
    model = two_inputs(["p", 2], ["s", 2], "Concat")
    model.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
    network = compiled(model, {"a": (Range(0, 4), 2), "b": (Range(1, 4), 2)}, tmp_path)
    c, b, y = Interface(network), data((3, 2)), np.zeros((3, 2), np.float32)
    assert c.init(c.call("arena_size")()) == 0
    inputs = c.ffi.new("void *[]", [c.ffi.NULL, c.ffi.from_buffer(b)])
    outputs = c.ffi.new("void *[]", [c.ffi.from_buffer(y)])
    assert c.call("set_input_shapes")(c.context, c.shapes((0, 2), (3, 2))) == 0
    assert c.call("run_tensors")(c.context, inputs, outputs) == 0
    np.testing.assert_array_equal(y, b)
    assert c.call("set_input_shapes")(c.context, c.shapes((1, 2), (2, 2))) == 0
    assert c.call("run_tensors")(c.context, inputs, outputs) == ARGUMENT


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["c99", "host"])
def test_attention_of_no_rows(target: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, rows, 8])
              for name, rows in [("q", "n"), ("k", 5), ("v", 5), ("y", "n")]]  # fmt: skip
    graph = helper.make_graph(nodes, "net", values[:3], values[3:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    network = compiled(model, {"q": (2, Range(0, 4), 8)}, tmp_path, target)
    k, v = data((2, 5, 8)), data((2, 5, 8))[:, ::-1]
    for n in (0, 1, 4):
        q = data((2, n, 8))
        scores = np.exp(q @ k.transpose(0, 2, 1))
        np.testing.assert_allclose(
            network(q, k, v), scores / scores.sum(-1, keepdims=True) @ v, atol=1e-5
        )


# ---- extents that follow from others ------------------------------------------------------------


def test_what_does_not_follow_from_other_extents_is_a_status(tmp_path: Path) -> None:
    model = two_inputs(["1 + n"], ["n"], "Concat")
    model.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
    network = compiled(model, {"b": (Range(0, 4),)}, tmp_path)
    assert [str(t) for t in network.inputs] == ["a: float32 [1~5]", "b: float32 [0~4]"]
    for n in (0, 1, 4):
        a, b = data((n + 1,)), data((n,))
        np.testing.assert_array_equal(network(a, b), np.concatenate([a, b]))
    header = (tmp_path / "include" / "net.h").read_text()
    assert "shapes[0][0] == shapes[1][0] + 1 */" in header
    c = Interface(network)
    assert c.init(c.call("arena_size")()) == 0
    for a, b in [(1, 1), (3, 4), (5, 3), (6, 5)]:
        assert c.call("set_input_shapes")(c.context, c.shapes((a,), (b,))) == SHAPE


def test_what_is_no_multiple_is_a_status(tmp_path: Path) -> None:
    """Of a name that no axis has itself; another input is what is left."""
    model = two_inputs(["4*n + 1"], ["3*n"], "Concat")
    model.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
    network = compiled(model, {"a": (Range(4, 22),)}, tmp_path)
    assert [str(t) for t in network.inputs] == ["a: float32 [5~21]", "b: float32 [3~15]"]
    for n in (1, 2, 5):
        a, b = data((4 * n + 1,)), data((3 * n,))
        np.testing.assert_array_equal(network(a, b), np.concatenate([a, b]))
    header = (tmp_path / "include" / "net.h").read_text()
    assert "shapes[1][0] == 3 * ((shapes[0][0] - 1) / 4) */" in header
    assert "shapes[0][0] % 4 == 1" in header
    c = Interface(network)
    assert c.init(c.call("arena_size")()) == 0
    for a, b in [(1, 0), (6, 3), (7, 3), (9, 3), (25, 18)]:
        assert c.call("set_input_shapes")(c.context, c.shapes((a,), (b,))) == SHAPE


def test_a_relation_that_is_needed_is_asked_for() -> None:
    nodes = [*shape_of("mask", 0, "total"), ints("one", 1), node("Concat", ["one", "total"], "to",
             axis=0), node("Concat", ["past", "x"], "all", axis=0),
             node("Reshape", ["all", "to"], "y")]  # fmt: skip
    names = {"mask": "t", "past": "p", "x": "s"}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, FLOAT, [d]) for n, d in names.items()],
        [helper.make_tensor_value_info("y", FLOAT, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    ranges = {"mask": (Range(1, 9),), "past": (Range(0, 4),), "x": (Range(1, 5),)}

    def lowered(text: str) -> Graph:
        given = {**ranges, **shapes(text)}
        pinned = pin_inputs(onnx_ir.from_proto(model), given, "test.onnx")
        return lower_model(pinned, "test.onnx")

    with pytest.raises(AtcError, match=r"past\[0\] \+ x\[0\].*mask\[0\].*mask:1,s\+p"):
        lowered("")
    assert str(lowered("mask:s+p").types["y"]) == "f32[1,d[0] + d[1]]"


# ---- real models --------------------------------------------------------------------------------

MODELS = Path(__file__).parents[3] / "shared" / "models"
RANGES = {
    "kws_qdq": [(Range(1, 4), 1960)],
    "magika_fast": [(Range(1, 4), 1024)],
    "ort_superres": [(Range(1, 2), 1, 224, 224)],
    "ppocr_cls": [(Range(1, 4), 3, Range(32, 48), Range(64, 192))],
    "silero_vad_16k_op15": [(Range(1, 4), 576), (2, Range(1, 4), 128), ()],
    "vespa_tiny_bert": [(Range(1, 4), Range(1, 64))],
}


@pytest.mark.slow
@pytest.mark.skipif(not MODELS.is_dir(), reason="../shared/models is not there")
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "vespa_tiny_bert" else pytest.mark.slow) for n in RANGES],
)
def test_a_real_model_over_a_range_is_right_on_every_stored_case(name: str, tmp_path: Path) -> None:
    folder = MODELS / name
    meta = json.loads((folder / "meta.json").read_text())
    ranges = dict(zip(meta["inputs"], RANGES[name], strict=True))
    network = compiled(onnx.load(folder / "model.onnx"), ranges, tmp_path)
    for k, case in enumerate(meta["cases"]):
        with np.load(folder / f"case{k}_in.npz") as given:
            inputs = [given[f"i{j}"] for j in range(len(given.files))]
        results = network.run(dict(zip(meta["inputs"], inputs, strict=True)))
        steps = quantisation_steps(folder / "model.onnx")
        with np.load(folder / f"case{k}_out.npz") as stored:
            wanted = [stored[f"o{j}"] for j in range(len(stored.files))]
        for got, want, noise, step in zip(
            results.values(), wanted, case["noise_floor"], steps, strict=True
        ):
            assert got.shape == want.shape
            scale = float(np.abs(want).max(initial=0.0))
            allowed = max(1e-4 * scale, 4 * noise, step)
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=allowed)


# ---- no wild reads or writes --------------------------------------------------------------------

DRIVER = """
#include <stdio.h>
#include <stdlib.h>
#include "net.h"

/* Runs the network at one shape in memory of exactly the size that it needs. */
int main(int argc, char **argv)
{
  const int64_t shape[] = {atoi(argv[1]), 4, atoi(argv[2]), atoi(argv[3])};
  const int64_t *const shapes[] = {shape};
  const size_t size = net_arena_size_for(shapes);
  const float *x = calloc((size_t)(shape[0] * 4 * shape[2] * shape[3]), sizeof *x);
  const void *inputs[] = {x};
  void *outputs[256], *arena = aligned_alloc(64, size);
  net_context ctx;
  int status = net_init(&ctx, arena, size);

  if (status == 0) status = net_set_input_shapes(&ctx, shapes);
  for (size_t k = 0; status == 0 && k < net_output_count(); k++) {
    const net_tensor_info *info = net_output_info(k);
    int64_t extents[8], count = 1, most = 1;
    status = net_output_shape(&ctx, k, extents);
    for (int axis = 0; axis < info->rank; axis++) {
      count *= extents[axis];
      most *= info->shape[axis];
    }
    outputs[k] = malloc(info->size / (size_t)most * (size_t)count);
  }
  if (status == 0) status = net_run_tensors(&ctx, inputs, outputs);
  for (size_t k = 0; k < net_output_count(); k++) free(outputs[k]);
  free(arena);
  free((void *)x);
  return argc == 4 ? -status : 99;
}
"""

SOME = [
    "strided", "pooled", "framed", "gram", "softmax_1", "lstm", "sized", "padded_reflect", "cut"
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cases", "ranges", "points"),
    [
        pytest.param(SOME, RANGE, SHAPES, id="some"),
        pytest.param([*CASES], RANGE, SHAPES, id="all", marks=pytest.mark.slow),
        pytest.param(EMPTY, FROM_NONE, NONE, id="nothing", marks=pytest.mark.slow),
    ],
)
def test_memory_of_the_exact_size_is_enough(
    cases: list[str],
    ranges: dict[str, tuple[int | Range, ...]],
    points: list[tuple[int, ...]],
    tmp_path: Path,
) -> None:
    pinned = pin_inputs(onnx_ir.from_proto(model_of(cases)), ranges, "test.onnx")
    folder = write_project(tmp_path, emit_graph(lower_model(pinned, "test.onnx")))
    (folder / "driver.c").write_text(DRIVER)
    flags = ("-std=c11", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    compile_c(folder, *flags, "driver.c", *sources(folder), "-o", "driver", "-lm")
    for n, _, h, w in points:
        line = [str(folder / "driver"), str(n), str(h), str(w)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:2000]
