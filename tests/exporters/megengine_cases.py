"""Models of one operator for each rule of the exporter, which the real MegEngine runs, too.

    python tests/exporters/megengine_cases.py FOLDER

writes NAME.mge, and NAME.npz of the inputs by name and the results o0, o1, ... as
onnx.reference computes them, and likewise NAME_of_parts of operands that are cut from larger ones.
`run_megengine.py` then compares in an interpreter that has MegEngine.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 4)).astype(np.float32)
UNIT = RNG.uniform(0.1, 0.9, (2, 3, 4)).astype(np.float32)
IMAGE = RNG.normal(size=(2, 4, 7, 6)).astype(np.float32)
WHOLE = RNG.integers(-9, 10, (2, 3, 4)).astype(np.int64)
DIVISOR = RNG.choice([-4, -3, -1, 2, 5], (2, 3, 4)).astype(np.int64)
TRUTHS = X > 0


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """A model of one node: operands that are inputs, and those that are constants, by place."""

    name: str
    op: str
    inputs: Sequence[np.ndarray]
    constants: Mapping[int, Any] = field(default_factory=dict)
    outputs: int = 1
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        given = iter(enumerate(self.inputs))
        operands, infos, initializers = [], [], []
        for place in range(len(self.inputs) + len(self.constants)):
            if place in self.constants:
                value = self.constants[place]
                operands.append("" if value is None else f"c{place}")
                if value is not None:
                    initializers.append(numpy_helper.from_array(np.asarray(value), f"c{place}"))
                continue
            k, array = next(given)
            operands.append(f"x{k}")
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            infos.append(helper.make_tensor_value_info(f"x{k}", kind, array.shape))
        made = [f"y{k}" for k in range(self.outputs)]
        node = helper.make_node(self.op, operands, made, "node", **self.attributes)
        graph = helper.make_graph([node], "case", infos, [helper.make_empty_tensor_value_info(o)
                                  for o in made], initializers)  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)],
                                  ir_version=10)  # fmt: skip
        return onnx.shape_inference.infer_shapes(model, data_prop=True)

    def feeds(self) -> dict[str, np.ndarray]:
        return {f"x{k}": array for k, array in enumerate(self.inputs)}

    def truth(self) -> list[np.ndarray]:
        return run(self.model(), self.feeds())


_OTHERS = ("ConvTranspose", "GRU", "LSTM", "RNN")
"""Of groups; of lengths, both directions, activations."""


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Run a model by onnx.reference, or by onnxruntime where the former lacks forms of it."""
    if all(node.op_type not in _OTHERS for node in model.graph.node):
        return [np.asarray(v) for v in ReferenceEvaluator(model).run(None, dict(feeds))]
    session = onnxruntime.InferenceSession(model.SerializeToString(), _quiet())
    return [np.asarray(v) for v in session.run(None, dict(feeds))]


def _quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def case(
    name: str, op: str, *inputs: np.ndarray, constants: Mapping[int, Any] | None = None,
    outputs: int = 1, **attributes: Any,
) -> Case:  # fmt: skip
    arrays = [np.asarray(x) for x in inputs]
    return Case(name, op, arrays, constants or {}, outputs, attributes)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


_ANY = "Abs Atan Ceil Cos Erf Exp Floor HardSwish Neg Relu Round Sigmoid Sign Sin Softplus Tan Tanh"
_FUNCTIONS = "Elu Gelu HardSigmoid LogSoftmax Mish Selu Softsign ThresholdedRelu"
_UNIT = "Acos Asin Log Reciprocal Sqrt"

ELEMENTWISE = [
    *(case(op, op, X * 2) for op in _ANY.split()),
    *(case(op, op, X) for op in _FUNCTIONS.split()),
    *(case(op, op, UNIT) for op in _UNIT.split()),
    *(case(f"{op} of ints", op, WHOLE) for op in ("Abs", "Neg", "Sign")),
    case("Acosh", "Acosh", UNIT + 1),
    *(case(op, op, UNIT) for op in ("Asinh", "Atanh", "Cosh", "Sinh")),
    case("Round of ties", "Round", np.float32([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1e9, np.inf])),
    *(case(op, op, X, normal(3, 1)) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")),
    *(case(f"{op} of ints", op, WHOLE, DIVISOR) for op in ("Add", "Sub", "Mul", "Div", "Mod")),
    case("Mod of floats", "Mod", X, normal(4), fmod=1),
    case("Sum", "Sum", X, X + 1, normal(4)),
    case("Pow", "Pow", UNIT, X),
    case("Pow of a constant", "Pow", X, constants={1: np.int64(2)}),
    case("a single number", "Add", np.float32(3), constants={1: np.float32(4)}),
    *(case(op, op, WHOLE, WHOLE[::-1].copy())
      for op in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")),
    *(case(op, op, TRUTHS, TRUTHS[::-1].copy()) for op in ("And", "Or", "Xor")),
    case("Not", "Not", TRUTHS),
    *(case(op, op, np.float32([1, np.nan, np.inf, -np.inf])) for op in ("IsNaN", "IsInf")),
    case("Where", "Where", TRUTHS, X, normal(3, 1)),
    case("Where of truths", "Where", TRUTHS, TRUTHS[::-1].copy(), ~TRUTHS),
    case("Where of infinities", "Where", TRUTHS, np.full_like(X, np.inf), np.full_like(X, np.nan)),
    case("Clip", "Clip", X, constants={1: np.float32(-0.5), 2: np.float32(0.75)}),
    case("Clip above", "Clip", X, constants={1: None, 2: np.float32(0.75)}),
    case("LeakyRelu", "LeakyRelu", X, alpha=0.2),
    case("PRelu", "PRelu", X, constants={1: normal(3, 1)}),
    case("Equal truths", "Equal", TRUTHS, TRUTHS[::-1].copy()),
    *(case(f"{op} that changes nothing", op, X, constants=c, **a) for op, c, a in (
        ("Cast", {}, {"to": onnx.TensorProto.FLOAT}), ("Reshape", {1: ints(2, 3, 4)}, {}),
        ("Expand", {1: ints(2, 1, 1)}, {}), ("Transpose", {}, {"perm": [0, 1, 2]}),
        ("Slice", {1: ints(0), 2: ints(9)}, {}), ("Tile", {1: ints(1, 1, 1)}, {}),
        ("Concat", {}, {"axis": 0}), ("Sum", {}, {}), ("Pad", {1: ints(0, 0, 0, 0, 0, 0)}, {}),
    )),
    *(case(f"{op} of {name}", op, X, constants={1: np.float32(number)})
      for op in ("Add", "Sub", "Mul", "Div", "Pow", "Max") for name, number in (("0", 0), ("1", 1))
      if (op, number) not in (("Div", 0), ("Pow", 0))),
    *(case(f"{op} of many {number}", op, X, constants={1: np.full((3, 1), number, np.float32)})
      for op, number in (("Add", 0), ("Mul", 1), ("Mul", 0))),
    case("0 and a tensor", "Add", X, constants={0: np.float32(0)}),
    case("Cast of ints", "Cast", WHOLE, to=onnx.TensorProto.INT32),
    case("to ints", "Cast", X * 3, to=onnx.TensorProto.INT32),
    case("to truths", "Cast", np.float32([0, 0.25, -0.5, 2]), to=onnx.TensorProto.BOOL),
    case("of truths", "Cast", TRUTHS, to=onnx.TensorProto.FLOAT),
    case("Trilu", "Trilu", X, constants={1: np.int64(1)}),
    case("Trilu below", "Trilu", X, upper=0),
    case("OneHot", "OneHot", ints(0, -1, 3, 9), constants={1: np.int64(4), 2: np.float32([0, 1])}),
    case("OneHot along 0", "OneHot", ints(0, -1, 3).reshape(1, 3), axis=0,
         constants={1: np.int64(4), 2: np.float32([5, -1])}),
]  # fmt: skip

MOVEMENT = [
    case("Reshape", "Reshape", X, constants={1: ints(4, -1)}),
    case("Flatten", "Flatten", X, axis=2),
    case("Squeeze", "Squeeze", X[:, :1], constants={1: ints(1)}),
    case("Squeeze to a number", "Squeeze", X[:1, :1, :1], constants={1: ints(0, 1, 2)}),
    case("Unsqueeze", "Unsqueeze", X, constants={1: ints(0, -1)}),
    case("Transpose", "Transpose", X, perm=[2, 0, 1]),
    case("Expand", "Expand", X[:, :1], constants={1: ints(5, 2, 3, 4)}),
    case("Tile", "Tile", X, constants={1: ints(2, 1, 3)}),
    case("Concat", "Concat", X, X + 1, axis=-1),
    case("Split", "Split", X, constants={1: ints(1, 3)}, outputs=2, axis=2),
    case("Slice", "Slice", X, constants={1: ints(-2, 1), 2: ints(9, 4), 3: ints(1, 2)}),
    case("Slice backwards", "Slice", X, constants={1: ints(2**63 - 1, 2), 2: ints(-(2**63), 0),
         3: ints(2, 1), 4: ints(-2, -1)}),
    case("Gather", "Gather", X, ints(2, 0, -1).reshape(1, 3), axis=1),
    case("Gather one", "Gather", X, constants={1: np.int64(-1)}, axis=2),
    case("Gather one of one axis", "Gather", X[0, 0], constants={1: np.int64(2)}),
    case("GatherElements of one axis", "GatherElements", X[0, 0], ints(1, -2), axis=0),
    case("GatherElements", "GatherElements", X, RNG.integers(-3, 3, (2, 5, 4)), axis=1),
    case("Pad", "Pad", IMAGE, constants={1: ints(0, 0, 1, 2, 0, 0, 3, 0), 2: np.float32(1.5)}),
    case("Pad by edges", "Pad", IMAGE, constants={1: ints(1, 0, 0, 1), 2: None, 3: ints(2, 3)},
         mode="edge"),
    case("Pad by reflections", "Pad", IMAGE, mode="reflect",
         constants={1: ints(0, 0, 1, 2, 0, 0, 3, 1)}),
    case("DepthToSpace", "DepthToSpace", IMAGE, blocksize=2),
    case("DepthToSpace by columns", "DepthToSpace", IMAGE, blocksize=2, mode="CRD"),
    case("SpaceToDepth", "SpaceToDepth", IMAGE[:, :, :6], blocksize=2),
]  # fmt: skip

FILTERS, BIAS = normal(6, 4, 3, 3), normal(6)
LAYERS = [
    case("MatMul", "MatMul", X, constants={1: normal(4, 5)}),
    case("MatMul of stacks", "MatMul", normal(2, 1, 3, 4), normal(5, 4, 2)),
    case("MatMul of one and a stack", "MatMul", normal(3, 4), normal(2, 4, 5)),
    case("MatMul of vectors", "MatMul", normal(4), normal(4)),
    case("MatMul of a vector and a stack", "MatMul", normal(4), normal(2, 4, 3)),
    case("Gemm", "Gemm", normal(4, 3), transA=1, transB=1, alpha=0.5, beta=2.0,
         constants={1: normal(5, 4), 2: normal(5)}),
    case("Conv", "Conv", IMAGE, constants={1: FILTERS, 2: BIAS}, pads=[1, 1, 1, 1]),
    case("Conv of strides", "Conv", IMAGE, constants={1: FILTERS}, strides=[2, 1],
         dilations=[1, 2]),
    case("Conv padded on one side", "Conv", IMAGE, constants={1: FILTERS}, pads=[0, 1, 2, 0]),
    case("Conv as large as its image", "Conv", IMAGE, constants={1: FILTERS}, strides=[2, 2],
         auto_pad="SAME_UPPER"),
    case("Conv of groups", "Conv", IMAGE, constants={1: normal(6, 2, 3, 3), 2: BIAS}, group=2),
    case("Conv of depths", "Conv", IMAGE, constants={1: normal(4, 1, 3, 3)}, group=4),
    case("Conv of one axis", "Conv", X, constants={1: normal(5, 3, 2), 2: normal(5)}, pads=[1, 0]),
    case("Conv of three axes", "Conv", normal(1, 2, 4, 4, 3), pads=[1, 0, 1, 1, 0, 1],
         constants={1: normal(3, 2, 3, 2, 2)}),
    case("ConvTranspose", "ConvTranspose", IMAGE, constants={1: normal(4, 3, 3, 2), 2: normal(3)},
         strides=[2, 3], pads=[1, 0, 0, 1], output_padding=[1, 1]),
    case("ConvTranspose of groups", "ConvTranspose", IMAGE, constants={1: normal(4, 3, 2, 2)},
         group=2, strides=[2, 2]),
    case("MaxPool", "MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 0, 1]),
    case("MaxPool of one axis", "MaxPool", X, kernel_shape=[2]),
    case("AveragePool", "AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    case("AveragePool of all", "AveragePool", IMAGE, kernel_shape=[2, 3], pads=[1, 0, 0, 1],
         count_include_pad=1),
    case("GlobalAveragePool", "GlobalAveragePool", IMAGE),
    case("GlobalMaxPool", "GlobalMaxPool", IMAGE),
    *(case(op, op, X, constants={1: ints(0, 2)}, keepdims=0)
      for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd",
                 "ReduceSumSquare", "ReduceL1", "ReduceL2")),
    *(case(f"{op} of one axis", op, X, constants={1: ints(1)})
      for op in ("ReduceSum", "ReduceMax", "ReduceL2")),
    case("ReduceMean of no axis", "ReduceMean", X, constants={1: ints()}, noop_with_empty_axes=1),
    case("ReduceSum of all", "ReduceSum", X, keepdims=0),
    case("ReduceSum of ints", "ReduceSum", WHOLE, constants={1: ints(-1)}),
    case("CumSum", "CumSum", X, constants={1: np.int64(-2)}, exclusive=1, reverse=1),
    case("ReduceMax of one axis alone", "ReduceMax", X[0, 0], keepdims=0),
    case("Softmax", "Softmax", X, axis=1),
    case("LayerNormalization", "LayerNormalization", X, axis=1,
         constants={1: normal(3, 4), 2: normal(3, 4)}),
    case("LayerNormalization without bias", "LayerNormalization", X, constants={1: normal(4)}),
    case("BatchNormalization", "BatchNormalization", IMAGE,
         constants={1: normal(4), 2: normal(4), 3: normal(4), 4: UNIT[0, 0]}),
    case("ReduceLogSumExp", "ReduceLogSumExp", 100 * X, constants={1: ints(1)}),
    case("ReduceLogSumExp of all", "ReduceLogSumExp", X, keepdims=0),
    case("InstanceNormalization", "InstanceNormalization", IMAGE,
         constants={1: normal(4), 2: normal(4)}),
    case("GroupNormalization", "GroupNormalization", IMAGE, num_groups=2,
         constants={1: normal(4), 2: normal(4)}),
    case("Mean", "Mean", X, normal(4)),
    *(case(op, op, X, constants=c) for op, c in (
        ("Celu", {}), ("Shrink", {}))),
    case("ArgMax", "ArgMax", X, axis=1),
    case("ArgMax of one axis", "ArgMax", X[0, 0], axis=0, keepdims=0),
    case("ArgMin", "ArgMin", X, axis=-1, keepdims=0),
    case("TopK", "TopK", X, constants={1: ints(2)}, axis=1, outputs=2),
    case("TopK of one axis", "TopK", X[0, 0], constants={1: ints(2)}, outputs=2),
    case("TopK of the least", "TopK", X, constants={1: ints(3)}, largest=0, outputs=2),
]  # fmt: skip

SQUARE = normal(3, 3, 4)
INDICES = [
    case("GatherND", "GatherND", X, ints(1, -1, 0, 2).reshape(2, 2)),
    case("GatherND of one axis", "GatherND", X[0, 0], ints(1, -2).reshape(2, 1)),
    case("GatherND of elements", "GatherND", X, constants={1: ints(1, -1, 3).reshape(1, 3)}),
    case("GatherND of one slice", "GatherND", X, ints(1)),
    case("GatherND of batches", "GatherND", X, ints(1, 0, -3, 2).reshape(2, 2, 1), batch_dims=1),
    case("GatherND of ints", "GatherND", WHOLE, ints(1, 2).reshape(2, 1) - 2),
    case("GatherND of truths", "GatherND", TRUTHS, ints(1, 0).reshape(2, 1)),
    case("ScatterND", "ScatterND", X, ints(1, -1, 0, 2).reshape(2, 2), normal(2, 4)),
    case("ScatterND of elements", "ScatterND", X, constants={
        1: ints(1, -1, 3, 0, 0, 0).reshape(2, 3), 2: normal(2)}),
    case("ScatterND of one slice", "ScatterND", X, ints(1), normal(3, 4)),
    case("ScatterND that adds", "ScatterND", X, ints(1, 1, 0).reshape(3, 1), normal(3, 3, 4),
         reduction="add"),
    case("ScatterND of ints", "ScatterND", WHOLE, ints(1).reshape(1, 1), WHOLE[:1] + 1),
    case("ScatterND of truths", "ScatterND", TRUTHS, ints(1).reshape(1, 1), ~TRUTHS[:1]),
    case("ScatterElements", "ScatterElements", X, ints(2, 0, -2, 1).reshape(2, 2, 1),
         normal(2, 2, 1), axis=1),
    case("ScatterElements of one axis", "ScatterElements", X[0, 0], ints(1, -1), normal(2)),
    case("ScatterElements that adds", "ScatterElements", X, np.full((2, 3, 4), -1), normal(2, 3, 4),
         axis=2, reduction="add"),
    case("ScatterElements of constants", "ScatterElements", X, normal(1, 2, 2), axis=-1,
         constants={1: ints(3, 0, 1, 2).reshape(1, 2, 2)}),
]  # fmt: skip

EINSUMS = [
    *(case(f"Einsum {equation}", "Einsum", *xs, equation=equation) for equation, *xs in (
        ("ij,jk->ik", normal(3, 4), normal(4, 5)), ("bij,bkj->bik", X, normal(2, 5, 4)),
        ("bhqd,bhkd->bhqk", normal(2, 2, 3, 4), normal(2, 2, 5, 4)), ("ij->ji", X[0]),
        ("ijk->", X), ("ijk->k", X), ("i,j->ij", normal(3), normal(4)), ("ij,ij", X[0], X[1]),
        ("ij,ij->ij", X[0], X[1]), ("ij,jk,kl->li", normal(3, 4), normal(4, 2), normal(2, 5)),
        ("iij->ij", SQUARE), ("ii->", SQUARE[:, :, 0]), ("...ij,...jk->...ik", X, normal(1, 4, 5)),
        ("b...d,d->b...", normal(2, 3, 2, 4), normal(4)), ("...,...", X, normal(2, 1, 4)),
        ("ba , ac", normal(3, 4), normal(4, 2)), ("ij,kl->ik", X[0], normal(2, 5)),
        ("ab,b->a", normal(3, 1), normal(4)), ("i,i->", normal(4), normal(4)),
    )),
    case("Einsum of a constant", "Einsum", X, constants={1: normal(4, 2, 2)},
         equation="abc,cde->abde"),
    case("Einsum of ints", "Einsum", WHOLE, WHOLE[0], equation="abc,bc->bac"),
]  # fmt: skip

SMALL = IMAGE[:, :2, :4, :5]


def resize(
    name: str, sizes: Sequence[int] = (), scales: Sequence[float] = (), x: np.ndarray = SMALL,
    roi: Sequence[float] | None = None, **attributes: Any,
) -> Case:  # fmt: skip
    """Return a Resize of the last axes."""
    rank = x.ndim
    lead = rank - max(len(sizes), len(scales))
    constants: dict[int, Any] = {1: None if roi is None else np.float32(roi)}
    if sizes:
        constants |= {2: None, 3: ints(*x.shape[:lead], *sizes)}
    else:
        constants[2] = np.float32([*[1] * lead, *scales])
    return case(f"Resize {name}", "Resize", x, constants=constants, **attributes)


_PLACES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel",
           "half_pixel_symmetric")  # fmt: skip

RESIZES = [
    *(resize(f"{mode} {how}", (7, 3), mode=mode, coordinate_transformation_mode=how)
      for mode in ("nearest", "linear", "cubic") for how in _PLACES),
    *(resize(f"nearest {how}", (6, 7), mode="nearest", nearest_mode=how,
             coordinate_transformation_mode="asymmetric")
      for how in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")),
    *(resize(f"{mode} by scales", (), (1.6, 0.7), mode=mode) for mode in ("linear", "cubic")),
    resize("twice", (), (2, 2), mode="nearest"),
    resize("linear twice", (), (2, 2), mode="linear"),
    resize("linear of halves", (), (0.5, 0.6), mode="linear"),
    resize("linear to one", (1, 1), mode="linear"),
    resize("antialiased", (2, 3), mode="linear", antialias=1),
    resize("cubic antialiased", (2, 3), mode="cubic", antialias=1),
    resize("cubic without edges", (7, 8), mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5),
    resize("of one axis", (9,), mode="linear", x=X),
    resize("of three axes", (2, 3, 5), mode="linear", x=normal(1, 2, 3, 2, 4)),
    resize("of all axes", (3, 3, 2), mode="linear", x=X),
    resize("of ints", (6, 2), mode="nearest", x=WHOLE),
    resize("that changes nothing", (4, 5), mode="linear"),
    resize("of a part", (3, 4), mode="linear", roi=[0, 0, 0.2, -0.3, 1, 1, 0.9, 1.2],
           coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.0),
    case("Resize of axes", "Resize", SMALL, axes=[3, 2], mode="linear",
         constants={1: None, 2: None, 3: ints(10, 6)}),
    case("Resize not larger", "Resize", SMALL, axes=[2, 3], mode="linear",
         keep_aspect_ratio_policy="not_larger", constants={1: None, 2: None, 3: ints(10, 6)}),
]  # fmt: skip


def recurrent(
    name: str, op: str, *, directions: int = 1, absent: Sequence[int] = (), given: bool = True,
    outputs: int | None = None, lengths: Sequence[int] | None = None, **attributes: Any,
) -> Case:  # fmt: skip
    """Return a layer of 4 steps, 2 rows, 3 inputs, 5 units; operands `absent` are left out."""
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    lead = (2, directions) if attributes.get("layout") else (directions, 2)
    x = normal(2, 4, 3) if attributes.get("layout") else normal(4, 2, 3)
    constants: dict[int, Any] = {
        1: normal(directions, gates * 5, 3), 2: normal(directions, gates * 5, 5),
        3: normal(directions, 2 * gates * 5), 4: None, 5: normal(*lead, 5),
    }  # fmt: skip
    if op == "LSTM":
        constants |= {6: normal(*lead, 5), 7: normal(directions, 15)}
    constants |= dict.fromkeys(absent)
    inputs = [x]
    if lengths is not None:
        constants[4] = np.int32(lengths)
        if not given:
            del constants[4]
            inputs.append(np.int32(lengths))
    count = outputs or (3 if op == "LSTM" else 2)
    return case(f"{op} {name}".strip(), op, *inputs, constants=constants, outputs=count,
                hidden_size=5, **attributes)  # fmt: skip


RECURRENT = [
    *(recurrent("", op) for op in ("RNN", "GRU", "LSTM")),
    *(recurrent("backwards", op, direction="reverse") for op in ("RNN", "GRU", "LSTM")),
    *(recurrent("in both directions", op, directions=2, direction="bidirectional")
      for op in ("RNN", "GRU", "LSTM")),
    *(recurrent("of lengths", op, directions=2, direction="bidirectional", lengths=(4, 2))
      for op in ("RNN", "GRU", "LSTM")),
    recurrent("of lengths that are inputs", "LSTM", lengths=(0, 3), given=False),
    recurrent("of lengths backwards", "GRU", lengths=(1, 3), given=False, direction="reverse"),
    recurrent("without states and bias", "LSTM", absent=(3, 5, 6, 7)),
    recurrent("without states and bias", "GRU", absent=(3, 5)),
    recurrent("of one result", "LSTM", outputs=1),
    recurrent("linear before reset", "GRU", linear_before_reset=1),
    recurrent("linear before reset without bias", "GRU", linear_before_reset=1, absent=(3,)),
    recurrent("of coupled gates", "LSTM", absent=(7,), input_forget=1),
    recurrent("clipped", "LSTM", absent=(7,), clip=0.5),
    recurrent("clipped", "GRU", clip=0.4),
    recurrent("of other functions", "LSTM", activations=["HardSigmoid", "Softsign", "ScaledTanh"],
              activation_alpha=[0.3, 1.5], activation_beta=[0.4, 0.6], absent=(7,)),
    *(recurrent(f"of {name}", "RNN", activations=[name], **given) for name, given in (
        ("Relu", {}), ("Affine", {"activation_alpha": [0.5], "activation_beta": [0.1]}),
        ("LeakyRelu", {"activation_alpha": [0.1]}), ("Elu", {"activation_alpha": [0.7]}),
        ("ThresholdedRelu", {"activation_alpha": [0.3]}), ("Softplus", {"clip": 2.0}),
        ("Sigmoid", {}))),
]  # fmt: skip

CASES = [*ELEMENTWISE, *MOVEMENT, *LAYERS, *INDICES, *EINSUMS, *RESIZES, *RECURRENT]


def of_parts(each: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a case whose operands are the middles of larger rows, and what it is fed."""
    model, feeds = each.model(), each.feeds()
    graph = model.graph
    for info in graph.input:
        name, x = info.name, feeds[info.name]
        if not x.ndim:
            continue
        info.name = f"whole_{name}"
        feeds[info.name] = np.pad(feeds.pop(name), [(0, 0)] * (x.ndim - 1) + [(1, 2)], mode="wrap")
        info.type.tensor_type.shape.dim[x.ndim - 1].dim_value += 3
        bounds = {f"{name}_from": 1, f"{name}_to": 1 + x.shape[-1], f"{name}_axis": x.ndim - 1}
        graph.initializer.extend(numpy_helper.from_array(ints(n), k) for k, n in bounds.items())
        graph.node.insert(0, helper.make_node("Slice", [info.name, *bounds], [name]))
    return model, feeds


def write(path: Path, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], case: Case) -> None:
    from atc.exporters.megengine import to_megengine

    path.with_suffix(".mge").write_bytes(to_megengine(model))
    narrow = {k: v.astype(np.int32) if v.dtype == np.int64 else v for k, v in feeds.items()}
    results = {f"o{k}": v for k, v in enumerate(case.truth())}
    np.savez(path.with_suffix(".npz"), **narrow, **results)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for each in CASES:
        name = re.sub(r"\W", "_", each.name)
        write(folder / name, each.model(), each.feeds(), each)
        write(folder / f"{name}_of_parts", *of_parts(each), each)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
