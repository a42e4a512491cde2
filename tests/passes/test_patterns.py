"""Activations, gates and movements as PyTorch exports them: each becomes part of its neighbours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from atc.passes import run_passes
from support import compile_graph


class Net:
    """A model under construction; operands that aren't names are constants."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.held: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(0)

    def op(self, kind: str, *inputs: object, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        self.nodes.append(helper.make_node(kind, names, [name], **attributes))
        return name

    def constant(self, value: object) -> str:
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        self.held.append(numpy_helper.from_array(array, f"c{len(self.held)}"))
        return self.held[-1].name

    def linear(self) -> str:
        y = self.op("MatMul", "x", self.rng.standard_normal((32, 48)))
        return self.op("Add", y, self.rng.standard_normal(48))

    def conv(self, x: str, ic: int, oc: int, k: int = 3) -> str:
        w = self.rng.standard_normal((oc, ic, k, k))
        return self.op("Conv", x, w, self.rng.standard_normal(oc), pads=[k // 2] * 4)


def tanh_argument(net: Net, x: str) -> str:
    cube = net.op("Mul", 0.044715, net.op("Pow", x, 3.0))
    return net.op("Tanh", net.op("Mul", math.sqrt(2 / math.pi), net.op("Add", x, cube)))


ROOT = math.sqrt(2)
ACTIVATIONS: dict[str, Callable[[Net, str], str]] = {
    "gelu, divided": lambda n, x: n.op(
        "Mul", n.op("Mul", x, n.op("Add", n.op("Erf", n.op("Div", x, ROOT)), 1.0)), 0.5
    ),
    "gelu, half first": lambda n, x: n.op(
        "Mul", n.op("Mul", 0.5, x), n.op("Add", 1.0, n.op("Erf", n.op("Mul", x, 1 / ROOT)))
    ),
    "gelu, tanh": lambda n, x: n.op(
        "Mul", n.op("Mul", 0.5, x), n.op("Add", 1.0, tanh_argument(n, x))
    ),
    "gelu, sigmoid": lambda n, x: n.op("Mul", x, n.op("Sigmoid", n.op("Mul", x, 1.702))),
    "silu": lambda n, x: n.op("Mul", x, n.op("Sigmoid", x)),
    "hardswish, hardsigmoid": lambda n, x: n.op("Mul", x, n.op("HardSigmoid", x, alpha=1 / 6)),
    "hardswish, clip": lambda n, x: n.op(
        "Mul", x, n.op("Div", n.op("Clip", n.op("Add", x, 3.0), 0.0, 6.0), 6.0)
    ),
    "mish": lambda n, x: n.op("Mul", x, n.op("Tanh", n.op("Softplus", x))),
}


def squeeze(net: Net) -> str:
    x = net.conv("x", 16, 32)
    gate = net.op("ReduceMean", x, np.array([2, 3]), keepdims=1)
    gate = net.op("Relu", net.conv(gate, 32, 16, 1))
    gate = net.op("HardSigmoid", net.conv(gate, 16, 32, 1), alpha=1 / 6)
    return net.conv(net.op("Mul", gate, x), 32, 16)


def shuffle(net: Net) -> str:
    x = net.op("Reshape", net.op("Relu", net.conv("x", 16, 32)), np.array([1, 2, 16, 8, 8]))
    x = net.op("Transpose", x, perm=[0, 2, 1, 3, 4])
    return net.conv(net.op("Reshape", x, np.array([1, 32, 8, 8])), 32, 16)


def rotary(net: Net) -> str:
    first, second = (net.op("Slice", "x", *map(np.array, ([b], [e], [3])))
                     for b, e in ((0, 4), (4, 8)))  # fmt: skip
    rotated = net.op("Concat", net.op("Neg", second), first, axis=-1)
    cos, sin = net.rng.standard_normal((2, 1, 1, 8, 8))
    return net.op("Add", net.op("Mul", "x", cos), net.op("Mul", rotated, sin))


def kinds(net: Net, shape: tuple[int, ...], result: str) -> Counter[str]:
    """Return the kinds of calls."""
    x = helper.make_tensor_value_info("x", 1, shape)
    graph = helper.make_graph(net.nodes, "net", [x], [onnx.ValueInfoProto(name=result)], net.held)
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    found = run_passes(compile_graph(model), width=8).nodes
    return Counter(n.op.kind for n in found if n.op.kind not in ("Reshape", "SubView"))


@pytest.mark.parametrize("form", list(ACTIVATIONS))
def test_an_activation_ends_the_product_before_it(form: str) -> None:
    net = Net()
    assert kinds(net, (1, 20, 32), ACTIVATIONS[form](net, net.linear())) == {"MatMul": 1}


@pytest.mark.parametrize("form", list(ACTIVATIONS))
def test_an_activation_ends_the_convolution_before_it(form: str) -> None:
    net = Net()
    found = kinds(net, (1, 16, 8, 8), ACTIVATIONS[form](net, net.conv("x", 16, 16)))
    assert found in ({"Conv": 1}, {"Block": 1, "ConvBlocked": 1, "Unblock": 1})


def test_a_gate_per_channel_takes_one_mean_and_one_product() -> None:
    net = Net()
    found = kinds(net, (1, 16, 8, 8), squeeze(net))
    assert (found["Reduce"], found["Map"], found["Softmax"]) == (1, 1, 0)


def test_a_channel_shuffle_is_one_movement() -> None:
    net = Net()
    assert kinds(net, (1, 16, 8, 8), shuffle(net))["Map"] == 1


def test_rotary_positions_take_no_more_than_the_join_and_the_sum() -> None:
    net = Net()
    assert kinds(net, (1, 16, 8, 8), rotary(net)) == {"Map": 3, "Concat": 1}
