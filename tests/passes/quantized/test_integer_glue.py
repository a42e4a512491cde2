"""What surrounds convolutions of bytes, against the definitions in float64, on every target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from atc.ir.graph import DType
from atc.ir.ops import ArgReduce, Conv, Map, Pool, Reduce
from atc.ir.ops.data import Concat, Gather, Pad
from atc.passes import run_passes
from support import compile_graph, run_models, runnable

Array = NDArray[Any]
node = helper.make_node
SHAPE = (1, 19, 9, 10)
X_SCALE, Y_SCALE, Z_SCALE = np.float32(0.03125), np.float32(0.0125), np.float32(0.05)
_erf = np.vectorize(math.erf)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


@dataclass(frozen=True)
class Case:
    """Nodes from `xf` (and `zf`, on another scale) to `yf`, and what they are in float64.

    `ops` are what integers must be the operands of; `y` is the result's scale.
    """

    nodes: Sequence[onnx.NodeProto]
    truth: Callable[[Array, Array], Array]
    ops: tuple[type, ...] = (Map,)
    y: np.float32 = Y_SCALE


def windows(x: Array, k: int, stride: int, pad: int, value: float = 0.0) -> Array:
    around = [(0, 0), (0, 0), (pad, pad), (pad, pad)]
    seen = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, around, constant_values=value), (k, k), (2, 3)
    )
    return seen[:, :, ::stride, ::stride].reshape(*seen[:, :, ::stride, ::stride].shape[:4], -1)


def average(x: Array, k: int, stride: int, pad: int, whole: bool) -> Array:
    counts = np.full_like(x, 1.0)
    total = windows(x, k, stride, pad).sum(-1)
    return total / (k * k if whole else windows(counts, k, stride, pad).sum(-1))


SILU = [
    node("Sigmoid", ["xf"], ["s"]), node("QuantizeLinear", ["s", "ys", "yz"], ["sq"]),
    node("DequantizeLinear", ["sq", "ys", "yz"], ["sf"]), node("Mul", ["xf", "sf"], ["yf"]),
]  # fmt: skip
CASES = {
    "Sigmoid": Case([node("Sigmoid", ["xf"], ["yf"])], lambda x, z: sigmoid(x)),
    "Tanh": Case([node("Tanh", ["xf"], ["yf"])], lambda x, z: np.tanh(x)),
    "LeakyRelu": Case(
        [node("LeakyRelu", ["xf"], ["yf"], alpha=0.1)], lambda x, z: np.where(x < 0, 0.1 * x, x)
    ),
    "HardSwish": Case(
        [node("HardSwish", ["xf"], ["yf"])], lambda x, z: x * np.clip(x / 6 + 0.5, 0, 1)
    ),
    "Gelu": Case(
        [node("Gelu", ["xf"], ["yf"])], lambda x, z: x * 0.5 * (1 + _erf(x / math.sqrt(2)))
    ),
    "Clip": Case(
        [node("Relu", ["xf"], ["r"]), node("Clip", ["r", "", "one"], ["yf"])],
        lambda x, z: np.clip(x, 0, 1),
    ),
    "another scale": Case([node("Identity", ["xf"], ["yf"])], lambda x, z: x, y=Z_SCALE),
    "AveragePool": Case(
        [node("AveragePool", ["xf"], ["yf"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)],
        lambda x, z: average(x, 3, 2, 1, False), (Conv,),
    ),
    "AveragePool with padding": Case(
        [node("AveragePool", ["xf"], ["yf"], kernel_shape=[3, 3], pads=[1] * 4,
              count_include_pad=1)],
        lambda x, z: average(x, 3, 1, 1, True), (Conv,),
    ),
    "AveragePool, ties": Case(
        [node("AveragePool", ["xf"], ["yf"], kernel_shape=[2, 2])],
        lambda x, z: average(x, 2, 1, 0, True), (Conv,), X_SCALE,
    ),
    "AveragePool of all": Case(
        [node("AveragePool", ["xf"], ["yf"], kernel_shape=[9, 10])],
        lambda x, z: x.mean((2, 3), keepdims=True), (Reduce,), np.float32(0.001),
    ),
    "GlobalAveragePool": Case(
        [node("GlobalAveragePool", ["xf"], ["yf"])],
        lambda x, z: x.mean((2, 3), keepdims=True), (Reduce,), np.float32(0.001),
    ),
    "ReduceMean": Case(
        [node("ReduceMean", ["xf", "channels"], ["yf"], keepdims=0)],
        lambda x, z: x.mean(1), (Reduce,), np.float32(0.004),
    ),
    "ReduceMax": Case(
        [node("ReduceMax", ["xf", "channels"], ["yf"])],
        lambda x, z: x.max(1, keepdims=True), (Reduce,), Z_SCALE,
    ),
    "MaxPool": Case(
        [node("MaxPool", ["xf"], ["yf"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)],
        lambda x, z: windows(x, 3, 2, 1, -np.inf).max(-1), (Pool,), Z_SCALE,
    ),
    "Add": Case([node("Add", ["xf", "zf"], ["yf"])], lambda x, z: x + z, y=Z_SCALE),
    "Mul": Case([node("Mul", ["xf", "zf"], ["yf"])], lambda x, z: x * z),
    "Concat": Case(
        [node("Concat", ["xf", "zf", "xf"], ["yf"], axis=1)],
        lambda x, z: np.concatenate([x, z, x], 1), (Concat,), X_SCALE,
    ),
    "Pad": Case(
        [node("Pad", ["xf", "pads"], ["yf"])],
        lambda x, z: np.pad(x, [(0, 0), (0, 0), (1, 2), (0, 1)]), (Pad,), X_SCALE,
    ),
    "Gather": Case(
        [node("Gather", ["xf", "picks"], ["yf"], axis=2)],
        lambda x, z: x[:, :, [8, 0, 3]], (Gather,), X_SCALE,
    ),
    "Resize": Case(
        [node("Resize", ["xf", "", "scales"], ["yf"], coordinate_transformation_mode="asymmetric",
              nearest_mode="floor")],
        lambda x, z: x.repeat(2, 2).repeat(3, 3), (Map,), X_SCALE,
    ),
    "Transpose": Case(
        [node("Transpose", ["xf"], ["yf"], perm=[0, 2, 3, 1])],
        lambda x, z: x.transpose(0, 2, 3, 1), (Map,), X_SCALE,
    ),
}  # fmt: skip


SUM = [
    node("Add", ["xf", "zf"], ["a"]), node("QuantizeLinear", ["a", "qs", "yz"], ["aq"]),
    node("DequantizeLinear", ["aq", "qs", "yz"], ["af"]),
    node("ReduceSum", ["af", "channels"], ["yf"]),
]  # fmt: skip
TWICE = {"SiLU": SILU, "sum": SUM}
"""What is quantized on the way, too."""
Q_SCALE = np.float32(0.0377)


def twice(name: str, x: Array, z: Array, zero: int, dtype: Any) -> Array:
    """The result on Y_SCALE."""
    if name == "SiLU":
        return silu(x, z, zero, dtype) / np.float64(Y_SCALE)
    held = np.clip(np.rint((x + z) / np.float64(Q_SCALE)) + zero, *_range(dtype)) - zero
    return held.sum(1, keepdims=True) * np.float64(Q_SCALE) / np.float64(Y_SCALE)


def silu(x: Array, z: Array, zero: int, dtype: Any) -> Array:
    s = np.clip(np.rint(sigmoid(x) / np.float64(Y_SCALE)) + zero, *_range(dtype)) - zero
    return x * s * np.float64(Y_SCALE)


def _range(dtype: Any) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def zeros(dtype: Any) -> tuple[int, int, int]:
    """Return the zero points of x, z and y."""
    low = _range(dtype)[0]
    return low + 121, low + 130, low + 60


def model(nodes: Sequence[onnx.NodeProto], dtype: Any, scale: np.float32) -> onnx.ModelProto:
    xz, zz, yz = zeros(dtype)
    constants = {
        "xs": X_SCALE, "xz": np.array(xz, dtype), "zs": Z_SCALE, "zz": np.array(zz, dtype),
        "ys": Y_SCALE, "qs": Q_SCALE, "yz": np.array(yz, dtype), "rs": scale,
        "rz": np.array(xz if scale == X_SCALE else yz, dtype), "one": np.float32(1),
        "channels": np.array([1]), "picks": np.array([8, 0, 3]),
        "pads": np.array([0, 0, 1, 0, 0, 0, 2, 1]), "scales": np.array([1, 1, 2, 3], np.float32),
    }  # fmt: skip
    all_nodes = [
        node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        node("DequantizeLinear", ["z", "zs", "zz"], ["zf"]), *nodes,
        node("QuantizeLinear", ["yf", "rs", "rz"], ["y"]),
    ]  # fmt: skip
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        all_nodes, "glue",
        [helper.make_tensor_value_info(n, code, SHAPE) for n in "xz"],
        [helper.make_tensor_value_info("y", code, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True)


def inputs(dtype: Any) -> list[Array]:
    rng = np.random.default_rng(5)
    low, high = _range(dtype)
    return [rng.integers(low, high + 1, SHAPE).astype(dtype) for _ in "xz"]


def exact(name: str, dtype: Any) -> Array:
    """The result before it is rounded, in units of its scale, in float64."""
    xz, zz, yz = zeros(dtype)
    x, z = (v.astype(np.float64) for v in inputs(dtype))
    x, z = (x - xz) * np.float64(X_SCALE), (z - zz) * np.float64(Z_SCALE)
    if name in TWICE:
        return twice(name, x, z, yz, dtype)
    return CASES[name].truth(x, z) / np.float64(CASES[name].y)


ALL = [(name, dtype) for name in [*CASES, *TWICE] for dtype in (np.uint8, np.int8)]


def model_of(name: str, dtype: Any) -> onnx.ModelProto:
    if name in TWICE:
        return model(TWICE[name], dtype, Y_SCALE)
    return model(CASES[name].nodes, dtype, CASES[name].y)


TARGETS = ("c99", "x86-64-sse2", "x86-64-avx2", "x86-64-avx512")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "dtype"),
    [pytest.param(t, d, marks=() if (t, d) == (TARGETS[-1], np.uint8) else pytest.mark.slow)
     for t in TARGETS for d in (np.uint8, np.int8)],
)  # fmt: skip
def test_results_are_the_nearest_integers(target: str, dtype: Any) -> None:
    if target != "c99" and not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    names = [*CASES, *TWICE]
    results = run_models([model_of(n, dtype) for n in names], [inputs(dtype)] * len(names), target)
    for name, (got,) in zip(names, results, strict=True):
        value, (low, high) = exact(name, dtype), _range(dtype)
        zero = zeros(dtype)[0 if name in CASES and CASES[name].y == X_SCALE else 2]
        want = np.clip(np.rint(value) + zero, low, high)
        tie = np.abs(np.abs(value - np.trunc(value)) - 0.5) < 1e-4
        if "ties" in name:  # exact sums have exact ties, which go to the even number
            assert (tie & (want > low) & (want < high)).any()
            tie[:] = False
        wrong = (want != got) & ~tie
        assert not wrong.any(), f"{name} of {np.dtype(dtype)}: {wrong.sum()} of {got.size}"
        assert np.abs(want - got).max() <= 1, name


@pytest.mark.slow
def test_all_targets_give_the_same_bits() -> None:
    targets = [t for t in TARGETS if t == "c99" or runnable(t)]
    given = [model_of(*c) for c in ALL], [inputs(d) for _, d in ALL]
    first, *others = (run_models(*given, t) for t in targets)
    for target, results in zip(targets[1:], others, strict=True):
        for case, (want,), (got,) in zip(ALL, first, results, strict=True):
            np.testing.assert_array_equal(got, want, err_msg=f"{case} on {target}")


@pytest.mark.parametrize("name", CASES)
def test_nothing_between_is_float(name: str) -> None:
    graph = run_passes(compile_graph(model_of(name, np.uint8)))
    computed = {o: graph.types[o].dtype for n in graph.nodes for o in n.outputs}
    assert set(computed.values()) <= {DType.UINT8}
    assert any(isinstance(n.op, CASES[name].ops) for n in graph.nodes)


def test_indices_are_found_among_the_integers() -> None:
    nodes = [node("ArgMax", ["xf"], ["at"], axis=1), node("Cast", ["at"], ["yf"], to=1)]
    graph = run_passes(compile_graph(model(nodes, np.uint8, Z_SCALE)))
    (found,) = (n for n in graph.nodes if isinstance(n.op, ArgReduce))
    assert found.inputs == ("x",)
