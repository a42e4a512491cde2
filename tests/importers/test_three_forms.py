"""One network as ONNX, as a MegEngine dump and as an MXNet export gives the same C.

Each network is described once, layer by layer, to a writer of each format; what they compile to
must be equal up to names: the same kernels in the same order, weights and memory plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import pytest
from importers.megengine_writer import Dump, write_v2
from importers.mxnet_files import Node, node, symbol, variable, write
from onnx import TensorProto, helper, numpy_helper

from atc.backends.targets import get_target
from atc.codegen.emit import emit
from atc.codegen.project_options import ProjectOptions
from atc.importers import load_model
from atc.lower import lower_model
from atc.memory.arena import plan_memory
from atc.passes import run_passes
from atc.program.build import build_program
from atc.program.steps import calls
from atc.select.select import select

Value = Any
"""A value as a writer names it."""


class Writer(Protocol):
    """A format's way to say the layers."""

    def image(self, *shape: int) -> Value: ...
    def conv(
        self, x: Value, w: np.ndarray, b: np.ndarray | None, stride: int, pad: int, group: int
    ) -> Value: ...
    def batch_norm(self, x: Value, statistics: list[np.ndarray]) -> Value: ...
    def relu(self, x: Value) -> Value: ...
    def max_pool(self, x: Value, kernel: int, stride: int, pad: int) -> Value: ...
    def average_all(self, x: Value, size: int) -> Value: ...
    def add(self, x: Value, y: Value) -> Value: ...
    def dense(self, x: Value, w: np.ndarray, b: np.ndarray) -> Value: ...
    def flatten(self, x: Value, features: int) -> Value: ...
    def save(self, y: Value, folder: Path) -> Path: ...


EPSILON = 1e-5


@dataclass
class OnnxWriter:
    """Writes what torch.onnx exports."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def _node(self, op: str, inputs: list[str], **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op}_{name}", **attributes))
        return name

    def _constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def image(self, *shape: int) -> str:
        self.inputs.append(helper.make_tensor_value_info("data", TensorProto.FLOAT, shape))
        return "data"

    def conv(
        self, x: str, w: np.ndarray, b: np.ndarray | None, stride: int, pad: int, group: int
    ) -> str:
        inputs = [x, self._constant(w), *([self._constant(b)] if b is not None else [])]
        return self._node("Conv", inputs, strides=[stride] * 2, pads=[pad] * 4, group=group)

    def batch_norm(self, x: str, statistics: list[np.ndarray]) -> str:
        operands = [x, *map(self._constant, statistics)]
        return self._node("BatchNormalization", operands, epsilon=EPSILON)

    def relu(self, x: str) -> str:
        return self._node("Relu", [x])

    def max_pool(self, x: str, kernel: int, stride: int, pad: int) -> str:
        return self._node(
            "MaxPool", [x], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4
        )

    def average_all(self, x: str, size: int) -> str:
        return self._node("GlobalAveragePool", [x])

    def add(self, x: str, y: str) -> str:
        return self._node("Add", [x, y])

    def dense(self, x: str, w: np.ndarray, b: np.ndarray) -> str:
        return self._node("Gemm", [x, self._constant(w), self._constant(b)], transB=1)

    def flatten(self, x: str, features: int) -> str:
        return self._node("Flatten", [x])

    def save(self, y: str, folder: Path) -> Path:
        outputs = [helper.make_tensor_value_info(y, TensorProto.FLOAT, [1, 10])]
        graph = helper.make_graph(self.nodes, "net", self.inputs, outputs, self.constants)
        path = folder / "net.onnx"
        opsets = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
        return path


@dataclass
class MegEngineWriter:
    """Writes what megengine.jit.trace dumps of megengine.module layers."""

    dump: Dump = field(default_factory=Dump)

    def image(self, *shape: int) -> int:
        return self.dump.input("data", shape)

    def conv(
        self, x: int, w: np.ndarray, b: np.ndarray | None, stride: int, pad: int, group: int
    ) -> int:
        params: dict[str, object] = {
            "pad_h": pad, "pad_w": pad, "stride_h": stride, "stride_w": stride,
        }  # fmt: skip
        if group > 1:
            w = w.reshape(group, w.shape[0] // group, *w.shape[1:])
            params["sparse"] = "GROUP"
        y = self.dump.op("Convolution", [x, self.dump.constant(w)], {"Convolution": params})[0]
        return y if b is None else self.add(y, self.dump.constant(b.reshape(1, -1, 1, 1)))

    def batch_norm(self, x: int, statistics: list[np.ndarray]) -> int:
        operands = [self.dump.constant(s.reshape(1, -1, 1, 1)) for s in statistics]
        params = {"fwd_mode": "INFERENCE", "param_dim": "DIM_1C11", "epsilon": EPSILON}
        return self.dump.op("BatchNorm", [x, *operands], {"BN": params}, outputs=6)[-1]

    def relu(self, x: int) -> int:
        return self.dump.op("Elemwise", [x], {"Elemwise": {"mode": "RELU"}})[0]

    def max_pool(self, x: int, kernel: int, stride: int, pad: int) -> int:
        params = {
            "mode": "MAX", "pad_h": pad, "pad_w": pad, "stride_h": stride, "stride_w": stride,
            "window_h": kernel, "window_w": kernel,
        }  # fmt: skip
        return self.dump.op("Pooling", [x], {"Pooling": params})[0]

    def average_all(self, x: int, size: int) -> int:
        params = {
            "mode": "AVERAGE", "pad_h": 0, "pad_w": 0, "stride_h": size, "stride_w": size,
            "window_h": size, "window_w": size,
        }  # fmt: skip
        return self.dump.op("Pooling", [x], {"Pooling": params})[0]

    def add(self, x: int, y: int) -> int:
        return self.dump.op("Elemwise", [x, y], {"Elemwise": {"mode": "ADD"}})[0]

    def dense(self, x: int, w: np.ndarray, b: np.ndarray) -> int:
        product = self.dump.op(
            "MatrixMul", [x, self.dump.constant(w)], {"MatrixMul": {"transposeB": True}}
        )
        return self.add(product[0], self.dump.constant(b))

    def flatten(self, x: int, features: int) -> int:
        shape = self.dump.constant(np.array([1, features], np.int32))
        return self.dump.op("Reshape", [x, shape], {"OptionalAxisV1": {}})[0]

    def save(self, y: int, folder: Path) -> Path:
        self.dump.output(y, "y")
        path = folder / "net.mge"
        path.write_bytes(write_v2(self.dump))
        return path


@dataclass
class MxnetWriter:
    """Writes what Gluon exports."""

    nodes: list[Node] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def _node(self, op: str, inputs: list[int], **attributes: object) -> int:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(node(op, name, [[i, 0, 0] for i in inputs], **attributes))
        return len(self.nodes) - 1

    def _constant(self, array: np.ndarray, kind: str = "arg") -> int:
        name = f"p{len(self.nodes)}"
        self.nodes.append(variable(name))
        self.arrays[f"{kind}:{name}"] = array
        return len(self.nodes) - 1

    def image(self, *shape: int) -> int:
        self.nodes.append(variable("data", __shape__=str(shape)))
        return 0

    def conv(
        self, x: int, w: np.ndarray, b: np.ndarray | None, stride: int, pad: int, group: int
    ) -> int:
        inputs = [x, self._constant(w), *([self._constant(b)] if b is not None else [])]
        return self._node(
            "Convolution", inputs, kernel=w.shape[2:], stride=(stride, stride), pad=(pad, pad),
            num_filter=w.shape[0], num_group=group, no_bias=b is None,
        )  # fmt: skip

    def batch_norm(self, x: int, statistics: list[np.ndarray]) -> int:
        scale, shift, mean, variance = statistics
        operands = [self._constant(scale), self._constant(shift)]
        operands += [self._constant(mean, "aux"), self._constant(variance, "aux")]
        return self._node("BatchNorm", [x, *operands], eps=EPSILON, fix_gamma=False)

    def relu(self, x: int) -> int:
        return self._node("Activation", [x], act_type="relu")

    def max_pool(self, x: int, kernel: int, stride: int, pad: int) -> int:
        return self._node(
            "Pooling", [x], kernel=(kernel, kernel), stride=(stride, stride), pad=(pad, pad),
            pool_type="max",
        )  # fmt: skip

    def average_all(self, x: int, size: int) -> int:
        return self._node("Pooling", [x], kernel=(1, 1), global_pool=True, pool_type="avg")

    def add(self, x: int, y: int) -> int:
        return self._node("elemwise_add", [x, y])

    def dense(self, x: int, w: np.ndarray, b: np.ndarray) -> int:
        inputs = [x, self._constant(w), self._constant(b)]
        return self._node("FullyConnected", inputs, num_hidden=w.shape[0])

    def flatten(self, x: int, features: int) -> int:
        return self._node("Flatten", [x])

    def save(self, y: int, folder: Path) -> Path:
        return write(folder, symbol(self.nodes, [[y, 0, 0]]), self.arrays)


class Weights:
    """Seeded weights, the same for every writer."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(11)

    def filters(self, out: int, channels: int, kernel: int) -> np.ndarray:
        scale = np.sqrt(2 / (channels * kernel * kernel))
        drawn = self.rng.standard_normal((out, channels, kernel, kernel)) * scale
        return drawn.astype(np.float32)

    def matrix(self, out: int, features: int) -> np.ndarray:
        drawn = self.rng.standard_normal((out, features)) / np.sqrt(features)
        return drawn.astype(np.float32)

    def vector(self, n: int) -> np.ndarray:
        return self.rng.standard_normal(n).astype(np.float32)

    def statistics(self, n: int) -> list[np.ndarray]:
        mean, shift = self.vector(n) * 0.1, self.vector(n) * 0.1
        scale, variance = self.rng.random(n) + 0.5, self.rng.random(n) + 0.5
        return [scale.astype(np.float32), shift, mean, variance.astype(np.float32)]


def lenet(to: Writer) -> Value:
    w = Weights()
    x = to.image(1, 1, 28, 28)
    x = to.max_pool(to.relu(to.conv(x, w.filters(6, 1, 5), w.vector(6), 1, 2, 1)), 2, 2, 0)
    x = to.max_pool(to.relu(to.conv(x, w.filters(16, 6, 5), w.vector(16), 1, 0, 1)), 2, 2, 0)
    x = to.flatten(x, 400)
    for out, features in ((120, 400), (84, 120)):
        x = to.relu(to.dense(x, w.matrix(out, features), w.vector(out)))
    return to.dense(x, w.matrix(10, 84), w.vector(10))


def resnet18(to: Writer) -> Value:
    w = Weights()

    def unit(x: Value, out: int, channels: int, kernel: int, stride: int) -> Value:
        y = to.conv(x, w.filters(out, channels, kernel), None, stride, kernel // 2, 1)
        return to.batch_norm(y, w.statistics(out))

    x = to.relu(unit(to.image(1, 3, 64, 64), 16, 3, 7, 2))
    x = to.max_pool(x, 3, 2, 1)
    channels = 16
    for out, stride in ((16, 1), (32, 2), (64, 2), (128, 2)):
        for step in (stride, 1):
            y = unit(to.relu(unit(x, out, channels, 3, step)), out, out, 3, 1)
            short = x if step == 1 and channels == out else unit(x, out, channels, 1, step)
            x = to.relu(to.add(y, short))
            channels = out
    return to.dense(to.flatten(to.average_all(x, 2), 128), w.matrix(10, 128), w.vector(10))


def mobilenet(to: Writer) -> Value:
    w = Weights()

    def unit(x: Value, filters: np.ndarray, stride: int, group: int) -> Value:
        y = to.conv(x, filters, None, stride, filters.shape[2] // 2, group)
        return to.relu(to.batch_norm(y, w.statistics(filters.shape[0])))

    x = unit(to.image(1, 3, 64, 64), w.filters(16, 3, 3), 2, 1)
    for channels, out, stride in ((16, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)):
        x = unit(x, w.filters(channels, 1, 3), stride, channels)
        x = unit(x, w.filters(out, channels, 1), 1, 1)
    return to.dense(to.flatten(to.average_all(x, 8), 128), w.matrix(10, 128), w.vector(10))


NETWORKS: dict[str, Callable[[Writer], Value]] = {
    "lenet": lenet, "resnet18": resnet18, "mobilenet": mobilenet,
}  # fmt: skip
WRITERS = {"onnx": OnnxWriter, "megengine": MegEngineWriter, "mxnet": MxnetWriter}


@dataclass(frozen=True)
class Compiled:
    """What must be equal: kernels in order, where their arguments lie, weights, arena."""

    kernels: list[str]
    arena: list[tuple[int, int]]
    weights: bytes
    files: dict[str, bytes]


def compiled(network: str, form: str, target_name: str, folder: Path) -> Compiled:
    """Write a network in one format and compile it up to the generated text."""
    writer = WRITERS[form]()
    folder.mkdir()
    path = writer.save(NETWORKS[network](writer), folder)
    target = get_target(target_name)
    graph = lower_model(load_model(path, "", {}, None), path.name)
    graph = run_passes(graph, width=target.vector_bytes // 4)
    program = build_program(graph, select(graph, target), target)
    arena = plan_memory(program)
    emission = emit(program, arena, target, ProjectOptions(name="net", model="net"))
    plan = sorted((arena.plan.offsets[b.name], b.size) for b in arena.buffers)
    kernels = [c.source.symbol for c in calls(program.steps)]
    sources = {p: t for p, t in emission.files.items() if p.startswith("src/kernels/")}
    return Compiled(kernels, plan, emission.weights, sources)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", ["c99", "x86-64-avx2"])
@pytest.mark.parametrize("network", NETWORKS)
def test_three_forms_of_a_network_give_the_same_c(
    network: str, target: str, tmp_path: Path
) -> None:
    first, *others = (compiled(network, form, target, tmp_path / form) for form in WRITERS)
    assert first.kernels
    for other in others:
        assert other.kernels == first.kernels
        assert other.files == first.files
        assert other.arena == first.arena
        assert other.weights == first.weights
