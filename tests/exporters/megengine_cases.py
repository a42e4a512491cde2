"""Models of one operator for each rule of the exporter, which the real MegEngine runs, too.

    python tests/exporters/megengine_cases.py FOLDER

writes NAME.mge, and NAME.npz of the inputs by name and the results o0, o1, ... as
onnx.reference computes them. `run_megengine.py` then compares in an interpreter that has MegEngine.
"""

from __future__ import annotations

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


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Run a model by onnx.reference, which doesn't know a ConvTranspose of groups."""
    if all(node.op_type != "ConvTranspose" for node in model.graph.node):
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

CASES = [*ELEMENTWISE, *MOVEMENT, *LAYERS]


def main(folder: Path) -> None:
    from atc.exporters.megengine import to_megengine

    folder.mkdir(parents=True, exist_ok=True)
    for each in CASES:
        name = each.name.replace(" ", "_")
        (folder / f"{name}.mge").write_bytes(to_megengine(each.model()))
        narrow = {k: v.astype(np.int32) if v.dtype == np.int64 else v
                  for k, v in each.feeds().items()}  # fmt: skip
        results = {f"o{k}": v for k, v in enumerate(each.truth())}
        np.savez(folder / f"{name}.npz", **narrow, **results)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
