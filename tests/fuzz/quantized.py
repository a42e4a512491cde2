"""Draws quantized networks: values in QDQ form and QOperators, of many types and parameters.

The truth is what onnxruntime computes of each node while the network is drawn. Where a sum lies
between two steps either may be right, so results may be off by a few steps, some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from fuzz.choices import Random
from fuzz.compare import Case
from fuzz.draw import Array
from onnx import TensorProto, helper, numpy_helper

LIMITS: Mapping[str, tuple[int, int]] = {
    "uint8": (0, 255),
    "int8": (-128, 127),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
    "int4": (-8, 7),
    "uint4": (0, 15),
}
TYPES: Mapping[str, int] = {
    name: getattr(TensorProto, name.upper()) for name in (*LIMITS, "int32", "float", "float16")
}


@dataclass
class Net:
    """A network being drawn; `arrays` are its values for the drawn input."""

    r: Random
    opset: int = 21
    act: str = "uint8"
    """The type of activations."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    steps: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Scale and zero point of dequantized values."""

    def name(self, word: str) -> str:
        return f"{word}{len(self.nodes)}_{len(self.constants)}"

    def const(self, array: Any, kind: str = "") -> str:
        """Add an initializer, of a type that numpy may lack."""
        name, array = self.name("c"), np.asarray(array)
        if kind in ("int4", "uint4"):
            flat = array.reshape(-1).astype(np.int8)
            tensor = helper.make_tensor(name, TYPES[kind], array.shape, flat.tolist())
        else:
            tensor = numpy_helper.from_array(array.astype(kind) if kind else array, name)
        self.constants[name] = tensor
        return name

    def add(
        self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any
    ) -> str:
        """Add a node and compute it; return its first result."""
        made = [f"{self.name('v')}_{k}" for k in range(outputs)]
        node = helper.make_node(op, inputs, made, domain=domain, **attributes)
        values = computed(node, self.constants, self.arrays, self.opset)
        self.nodes.append(node)
        self.arrays |= dict(zip(made, values, strict=True))
        return made[0]

    # ---- quantizing -----------------------------------------------------------------------------

    def parameters(self, array: Array, kind: str) -> tuple[str, str]:
        """Return scale and zero point that represent an array, often not quite."""
        r, (low, high) = self.r, LIMITS[kind]
        a, b = min(0.0, float(array.min())), max(0.0, float(array.max()))
        if r.chance(0.15):
            a, b = 0.7 * a, 0.6 * b
        if low < 0 and r.chance(0.6) or kind == "int16":
            scale, zero = max(-a, b) / high, 0
        else:
            scale = (b - a) / (high - low)
            zero = round(low - a / scale) if scale else 0
        if r.chance(0.1):
            scale = 2.0 ** np.round(np.log2(scale or 1))
        zero = int(np.clip(zero, low, high))
        return self.const(np.float32(scale or 1.0)), self.const(zero, kind)

    def quantized(self, x: str, kind: str = "", like: str = "") -> tuple[str, str, str]:
        """Return x in integers with its scale and zero point, those of `like` if that is given."""
        scale, zero = self.steps.get(like) or self.parameters(self.arrays[x], kind or self.act)
        return self.add("QuantizeLinear", x, scale, zero), scale, zero

    def qdq(self, x: str, like: str = "", kind: str = "") -> str:
        """Return x behind a pair of QuantizeLinear and DequantizeLinear."""
        return self.dequantized(*self.quantized(x, kind, like))

    def dequantized(self, q: str, scale: str, zero: str) -> str:
        y = self.add("DequantizeLinear", q, scale, zero)
        self.steps[y] = (scale, zero)
        return y

    def raw_weight(self, w: Array, axis: int | None, kind: str) -> tuple[Array, Array, Array]:
        """Return a weight in integers, its scales and zero points."""
        low, high = LIMITS[kind]
        over = tuple(k for k in range(w.ndim) if k != axis) if axis is not None else None
        most = np.abs(w).max(axis=over, keepdims=True)
        crooked = low == 0 or self.r.chance(0.15)
        scale = np.maximum(most / (high - 1 if low < 0 else (high - 1) / 2), 1e-6).astype(
            np.float32
        )
        middle = (high + low + 1) // 2
        zero = np.full(scale.shape, middle)
        if crooked:
            zero = zero + self.r.rng.integers(-2, 3, scale.shape)
        q = np.clip(np.round(w / scale) + zero, low, high)
        shape = (-1,) if axis is not None else ()
        return q, scale.reshape(shape), zero.reshape(shape)

    def weight(self, w: Array, axis: int, kinds: Sequence[str] = ()) -> tuple[str, Array]:
        """Return a weight behind DequantizeLinear, and its scales."""
        r = self.r
        kind = r.pick(*(kinds or ("int8", "int8", "int8", "uint8", "int4", "uint4", "int16")))
        of_channels = r.chance(0.6)
        q, scale, zero = self.raw_weight(w, axis if of_channels else None, kind)
        inputs = [self.const(q, kind), self.const(scale)]
        if zero.any() or r.chance():
            inputs.append(self.const(zero, kind))
        return self.add(
            "DequantizeLinear", *inputs, **({"axis": axis} if of_channels else {})
        ), scale

    def bias(self, x: str, scale: Array, count: int) -> str:
        """Return a bias: of int32 by the product of scales, or float; '' for none."""
        match self.r.pick("int32", "int32", "float", ""):
            case "int32" if x in self.steps:
                step = numpy_helper.to_array(self.constants[self.steps[x][0]]) * scale
                b = np.round(self.r.array(count) * 0.3 / step).astype(np.int32)
                more = {"axis": 0} if step.ndim else {}
                return self.add(
                    "DequantizeLinear", self.const(b), self.const(step.astype(np.float32)), **more
                )
            case "float":
                return self.const((self.r.array(count) * 0.3).astype(np.float32))
        return ""


def computed(
    node: onnx.NodeProto,
    constants: Mapping[str, onnx.TensorProto],
    arrays: Mapping[str, Array],
    opset: int,
) -> list[Array]:
    """Return what onnxruntime computes of one node."""
    from fuzz.texts import session_of

    inputs = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(arrays[n].dtype), arrays[n].shape
        )
        for n in dict.fromkeys(node.input)
        if n in arrays
    ]
    known = [constants[n] for n in dict.fromkeys(node.input) if n in constants]
    graph = helper.make_graph(
        [node], "one", inputs, [onnx.ValueInfoProto(name=n) for n in node.output], known
    )
    model = model_of(graph, opset)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for o in model.graph.output:
        if not o.type.WhichOneof("value"):
            raise ValueError(f"no type of {node.op_type}")
    return list(session_of(model).run(None, {v.name: arrays[v.name] for v in inputs}))


def model_of(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


# ---- parts: images -> images ---------------------------------------------------------------------

Part = Callable[[Net, str], str]


def _c(net: Net, x: str) -> int:
    return int(net.arrays[x].shape[1])


def _f32(array: Array) -> Array:
    return np.asarray(array, np.float32)


def _activated(net: Net, x: str) -> str:
    match net.r.pick("", "", "Relu", "Clip", "LeakyRelu", "HardSwish", "Sigmoid", "PRelu", "both"):
        case "":
            return x
        case "Clip":
            return net.add(
                "Clip", x, net.const(np.float32(0)), net.const(np.float32(net.r.pick(1, 6)))
            )
        case "LeakyRelu":
            return net.add("LeakyRelu", x, alpha=0.2)
        case "PRelu":
            slope = net.r.array(*[_c(net, x)], *[1] * (net.arrays[x].ndim - 2))
            return net.add("PRelu", x, net.const(_f32(slope)))
        case "both":
            return net.add("Relu", net.qdq(x))
        case op:
            return net.add(op, x)


def conv(net: Net, x: str) -> str:
    r, c = net.r, _c(net, x)
    groups = r.pick(1, 1, c, r.divisor(c))
    out = groups * r.pick(*((1, 2) if groups > 1 else (4, 8, 16, 17)))
    k = r.pick(1, 3, 3, 5)
    w = r.array(out, c // groups, k, k) / np.sqrt(c // groups * k * k)
    weight, scale = net.weight(w, 0)
    inputs = [x, weight, net.bias(x, scale, out)]
    pads = [r.pick(0, k // 2, k - 1) for _ in range(4)]
    dilations = [1, 1] if r.chance(0.8) else [2, 1]
    pads = [p * d for p, d in zip(pads, dilations * 2, strict=True)]
    y = net.add(
        "Conv",
        *([i for i in inputs if i]),
        group=groups,
        pads=pads,
        dilations=dilations,
        strides=[r.pick(1, 1, 2), r.pick(1, 1, 2)],
    )
    return net.qdq(_activated(net, y))


def conv_transpose(net: Net, x: str) -> str:
    r, c = net.r, _c(net, x)
    groups = r.pick(1, 1, r.divisor(c))
    out, k = r.pick(2, 4, 8), r.pick(2, 3, 4)
    w = r.array(c, out, k, k) / np.sqrt(c * k)
    weight, scale = net.weight(w, 1, ("int8", "uint8", "int4"))
    bias = net.bias(x, scale, out * groups) if groups == 1 or scale.ndim == 0 else ""
    y = net.add(
        "ConvTranspose",
        *([i for i in (x, weight, bias) if i]),
        group=groups,
        strides=[r.pick(1, 2), r.pick(1, 2, 3)],
        pads=[r.pick(0, 1) for _ in range(4)],
    )
    return net.qdq(_activated(net, y))


def pool(net: Net, x: str) -> str:
    r = net.r
    op, k = r.pick("MaxPool", "AveragePool"), r.pick(2, 3)
    more = {"count_include_pad": r.pick(0, 1)} if op == "AveragePool" else {}
    y = net.add(
        op,
        x,
        kernel_shape=[k, k],
        strides=[r.pick(1, 2), r.pick(1, 2)],
        pads=[r.pick(0, 1) for _ in range(4)],
        ceil_mode=r.pick(0, 0, 1),
        **more,
    )
    return net.qdq(y, like=x if r.chance(0.6) else "")


def mean(net: Net, x: str) -> str:
    r = net.r
    if r.chance():
        y = net.add("GlobalAveragePool", x)
    else:
        y = net.add("ReduceMean", x, net.const(np.int64([2, 3])), keepdims=1)
    y = net.qdq(y, like=x if r.chance(0.3) else "")
    if r.chance(0.3):
        return y
    c = _c(net, x)
    weight, _ = net.weight(r.array(c, c, 1, 1) / np.sqrt(c), 0)
    y = net.qdq(net.add("Conv", y, weight))
    y = net.qdq(net.add(r.pick("Sigmoid", "HardSigmoid"), y))
    return net.qdq(net.add("Mul", x, y))


def binary(net: Net, x: str) -> str:
    r, op = net.r, net.r.pick("Add", "Mul", "Sub", "Max", "Min", "Div")
    kind = r.pick("self", "branch", "constant", "float")
    shape = net.arrays[x].shape
    if kind == "self":
        other = net.qdq(net.add(r.pick("Neg", "Relu", "Abs"), x))
    elif kind == "branch":
        c = _c(net, x)
        weight, _ = net.weight(r.array(c, c, 1, 1) / np.sqrt(c), 0)
        other = net.qdq(net.add("Conv", x, weight))
    else:
        over = [n if r.chance(0.7) else 1 for n in shape]
        array = _f32(r.array(*over))
        if op == "Div":
            array = np.sign(array) * (np.abs(array) + np.float32(0.5))
        if kind == "float":
            other = net.const(array)
        else:
            q, s, z = net.raw_weight(array, None, r.pick("int8", "uint8"))
            zk = "uint8" if q.min() >= 0 and z >= 100 else "int8"
            other = net.dequantized(net.const(q, zk), net.const(s), net.const(z, zk))
    if op == "Div" and kind in ("self", "branch"):
        op = "Add"
    a, b = (x, other) if r.chance(0.7) or op == "Div" else (other, x)
    return net.qdq(_activated(net, net.add(op, a, b)))


def concat(net: Net, x: str) -> str:
    r = net.r
    parts = [x]
    for _ in range(r.pick(1, 2)):
        op = r.pick("Relu", "Neg", "Tanh")
        y = net.add(op, x)
        parts.append(net.qdq(y, like=x if r.chance() else ""))
    if r.chance(0.3):
        parts.append(x)
    y = net.add("Concat", *parts, axis=r.pick(1, 1, 2))
    return net.qdq(y, like=x if r.chance() else "")


def resize(net: Net, x: str) -> str:
    r = net.r
    mode = r.pick("nearest", "linear")
    more = (
        {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
        if mode == "nearest"
        else {}
    )
    scales = np.float32([1, 1, r.pick(1, 2), r.pick(2, 3)])
    y = net.add("Resize", x, "", net.const(scales), mode=mode, **more)
    return net.qdq(y, like=x if r.chance(0.6) else "")


def softmax(net: Net, x: str) -> str:
    r = net.r
    y = net.add(r.pick("Softmax", "Softmax", "LogSoftmax"), x, axis=r.pick(1, 2, 3, -1))
    return net.qdq(y)


def moved(net: Net, x: str) -> str:
    r = net.r
    n, c, h, w = net.arrays[x].shape
    match r.pick(
        "transpose", "pad", "slice", "space", "flip", "reduce", "split", "gather", "where", "tile"
    ):
        case "transpose":
            y = net.add("Transpose", x, perm=[0, 1, 3, 2])
        case "pad":
            mode = r.pick("constant", "reflect", "edge")
            pads = net.const(np.int64([0, 0, 1, 0, 0, 0, 0, 1]))
            extra = [net.const(np.float32(r.pick(0, 0.5)))] if mode == "constant" else []
            y = net.add("Pad", x, pads, *extra, mode=mode)
        case "slice":
            args = [net.const(np.int64([v])) for v in (1, 10**6, r.pick(2, 3))]
            y = net.add("Slice", x, *args)
        case "space" if h % 2 == 0 and w % 2 == 0:
            y = net.add("SpaceToDepth", x, blocksize=2)
        case "reduce":
            y = net.add(
                r.pick("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean"),
                x,
                net.const(np.int64([r.pick(2, 3)])),
                keepdims=1,
            )
        case "split" if c > 1:
            first = net.add("Split", x, net.const(np.int64([1, c - 1])), axis=1, outputs=2)
            y = first[:-1] + "1"
        case "gather":
            y = net.add("Gather", x, net.const(np.int64(r.rng.integers(0, c, 5))), axis=1)
        case "where":
            mask = net.const(r.rng.random((1, c, 1, 1)) > 0.5)
            y = net.add("Where", mask, x, net.const(np.float32(r.pick(0, -0.3))))
        case "tile":
            y = net.add("Tile", x, net.const(np.int64([1, 2, 1, 1])))
        case _:
            args = [net.const(np.int64([v])) for v in (-1, -(10**6), 3, -1)]
            y = net.add("Slice", x, *args)
    return net.qdq(y, like=x if r.chance(0.6) else "")


def unary(net: Net, x: str) -> str:
    r = net.r
    op = r.pick(
        "Relu",
        "Sigmoid",
        "Tanh",
        "LeakyRelu",
        "Clip",
        "HardSwish",
        "HardSigmoid",
        "Neg",
        "Abs",
        "Elu",
        "Exp",
        "Gelu",
        "Identity",
        "Erf",
        "Sqrt",
    )
    if op == "Clip":
        y = net.add("Clip", x, net.const(np.float32(-0.4)), net.const(np.float32(0.9)))
    elif op == "Sqrt":
        y = net.add("Sqrt", net.qdq(net.add("Abs", x)))
    elif op == "Gelu":
        y = net.add("Gelu", x, approximate=r.pick("none", "tanh"))
    else:
        y = net.add(op, x)
    return net.qdq(y, like=x if r.chance(0.3) else "")


def again(net: Net, x: str) -> str:
    """Quantize again, by other parameters or in another type."""
    kinds = ["uint8", "int8"] + (["int16", "uint16"] if net.opset >= 21 else [])
    return net.qdq(x, kind=net.r.pick(*kinds))


def double(net: Net, x: str) -> str:
    """Quantize twice in a row without computing between."""
    return net.qdq(net.qdq(x))


def dense(net: Net, x: str) -> str:
    """MatMul or Gemm on rows, back to an image."""
    r = net.r
    n, c, h, w = net.arrays[x].shape
    rows = net.add("Reshape", x, net.const(np.int64([-1, w])))
    if r.chance():
        rows = net.qdq(rows, like=x)
    out = r.pick(4, 8, 16, 17)
    b = r.array(w, out) / np.sqrt(w)
    if r.chance():
        tb = r.pick(0, 1)
        weight, scale = net.weight(b.T if tb else b, 0 if tb else 1)
        bias = net.bias(rows, scale, out)
        more = {"alpha": 0.5, "beta": 2.0} if r.chance(0.15) else {}
        y = net.add("Gemm", *[i for i in (rows, weight, bias) if i], transB=tb, **more)
    else:
        weight, scale = net.weight(b, 1)
        y = net.add("MatMul", rows, weight)
        bias = net.bias(rows, scale, out)
        y = net.add("Add", y, bias) if bias else y
    y = net.qdq(_activated(net, y))
    return net.add("Reshape", y, net.const(np.int64([n, c, h, out])))


def attention(net: Net, x: str) -> str:
    """Products of two activations."""
    r = net.r
    q = net.qdq(net.add("Mul", x, net.const(np.float32(0.5))))
    k = net.add("Transpose", x, perm=[0, 1, 3, 2])
    k = net.qdq(k, like=x if r.chance(0.7) else "")
    s = net.qdq(net.add("MatMul", q, k))
    p = net.qdq(net.add("Softmax", s, axis=-1))
    return net.qdq(net.add("MatMul", p, x))


def qlinear_conv(net: Net, x: str) -> str:
    r, c = net.r, _c(net, x)
    q, s, z = net.quantized(x, r.pick("uint8", "int8"))
    groups = r.pick(1, 1, c)
    out, k = groups * r.pick(1, 2) if groups > 1 else r.pick(4, 9, 16), r.pick(1, 3)
    kind = r.pick("int8", "int8", "uint8") if net.arrays[q].dtype == np.uint8 else "int8"
    w = r.array(out, c // groups, k, k) / np.sqrt(c // groups * k * k)
    many = r.chance()
    wq, ws, wz = net.raw_weight(w, 0 if many else None, kind)
    if kind == "uint8" and many:
        wz = np.full_like(wz, wz[0])
    attributes = {
        "group": groups,
        "pads": [r.pick(0, k // 2) for _ in range(4)],
        "strides": [r.pick(1, 2)] * 2,
    }
    ys, yz = net.parameters(net.arrays[x] * 1.5, str(net.arrays[q].dtype))
    bias = [net.const(r.rng.integers(-500, 500, out), "int32")] if r.chance() else []
    y = net.add(
        "QLinearConv",
        q,
        s,
        z,
        net.const(wq, kind),
        net.const(ws),
        net.const(wz, kind),
        ys,
        yz,
        *bias,
        **attributes,
    )
    return net.dequantized(y, ys, yz)


def conv_integer(net: Net, x: str) -> str:
    r, c = net.r, _c(net, x)
    q, s, z = net.quantized(x, "uint8")
    out, k = r.pick(4, 9, 16), r.pick(1, 3)
    kind = r.pick("int8", "uint8")
    wq, ws, wz = net.raw_weight(r.array(out, c, k, k) / np.sqrt(c * k * k), None, kind)
    more = [net.const(wz, kind)] if wz.any() or r.chance() else []
    y = net.add(
        "ConvInteger", q, net.const(wq, kind), z, *more, pads=[r.pick(0, k // 2) for _ in range(4)]
    )
    y = net.add("Cast", y, to=1)
    return net.add("Mul", y, net.const(np.float32(numpy_helper.to_array(net.constants[s]) * ws)))


def dynamic(net: Net, x: str) -> str:
    r = net.r
    n, c, h, w = net.arrays[x].shape
    q = net.add("DynamicQuantizeLinear", x, outputs=3)
    s, z = (f"{q[:-1]}{k}" for k in (1, 2))
    out, kind = r.pick(4, 16, 17), r.pick("int8", "uint8")
    wq, ws, wz = net.raw_weight(
        r.array(w, out) / np.sqrt(w), 1 if kind == "int8" and r.chance() else None, kind
    )
    more = [net.const(wz, kind)] if wz.any() or r.chance() else []
    y = net.add("MatMulInteger", q, net.const(wq, kind), z, *more)
    y = net.add("Cast", y, to=1)
    y = net.add("Mul", y, net.add("Mul", s, net.const(_f32(ws))))
    return net.add("Add", y, net.const(_f32(r.array(out)))) if r.chance() else y


def qlinear_matmul(net: Net, x: str) -> str:
    r = net.r
    w = net.arrays[x].shape[-1]
    q, s, z = net.quantized(x, r.pick("uint8", "int8"))
    kind = str(net.arrays[q].dtype) if r.chance() else "int8"
    out = r.pick(4, 16, 17)
    wq, ws, wz = net.raw_weight(r.array(w, out) / np.sqrt(w), None, kind)
    ys, yz = net.parameters(net.arrays[x] * 1.5, str(net.arrays[q].dtype))
    y = net.add(
        "QLinearMatMul", q, s, z, net.const(wq, kind), net.const(ws), net.const(wz, kind), ys, yz
    )
    return net.dequantized(y, ys, yz)


PARTS: Mapping[str, Part] = {
    f.__name__: f
    for f in (
        conv,
        conv_transpose,
        pool,
        mean,
        binary,
        concat,
        resize,
        softmax,
        moved,
        unary,
        again,
        double,
        dense,
        attention,
        qlinear_conv,
        conv_integer,
        dynamic,
        qlinear_matmul,
    )
}
MOST = 40_000
"""Elements of a value."""
FARTHEST, MEAN = 0.03, 0.006
"""Bounds of the differences of all elements, as parts of the range of the true ones."""


def draw_quantized(seed: int) -> Case:
    """Return a network of one to five parts, its input, and what onnxruntime computes."""
    r = Random(seed)
    net = Net(r, r.pick(21, 21, 23), r.pick("uint8", "uint8", "int8", "int8", "int16", "uint16"))
    shape = (r.pick(1, 2), r.pick(1, 3, 4, 8, 16, 17), r.pick(4, 6, 7, 12), r.pick(5, 8, 9, 16))
    net.arrays["x"] = _f32(r.array(*shape))
    x, wanted = net.qdq("x"), r.pick(1, 2, 3, 4, 5)
    for _ in range(30):
        if len(net.parts) == wanted:
            break
        word = r.pick(*PARTS, "conv", "conv", "binary", "moved", "concat")
        saved = (list(net.nodes), dict(net.constants), dict(net.arrays), dict(net.steps))
        try:
            y = PARTS[word](net, x)
            a = net.arrays[y]
            if a.size > MOST or not a.size or not np.isfinite(a).all() or np.abs(a).max() > 1e3:
                raise ValueError("too large")
        except Exception:  # onnxruntime refuses some, by errors of many kinds
            net.nodes, net.constants, net.arrays, net.steps = saved
            continue
        x, net.parts = y, [*net.parts, word]
    y = net.add("Identity", x)
    info = helper.make_tensor_value_info
    output = info(y, TensorProto.FLOAT, net.arrays[y].shape)
    used = {i for n in net.nodes for i in n.input}
    constants = [t for n, t in net.constants.items() if n in used]
    graph = helper.make_graph(
        net.nodes, "quantized", [info("x", TensorProto.FLOAT, shape)], [output], constants
    )
    model = model_of(graph, net.opset)
    return Case(
        f"quantized {seed} {net.act} {'+'.join(net.parts)}",
        model,
        {"x": net.arrays["x"]},
        (net.arrays[y],),
    )


def outcome(case: Case, run: Callable[[Sequence[Array]], Sequence[Array]] | Exception) -> str:
    """Return what is wrong about a compiled network, '' if nothing is."""
    assert case.expected is not None
    if isinstance(run, Exception):
        return f"{case.name}: {run}"
    (got,), (expected,) = run([case.feeds["x"]]), case.expected
    if got.shape != expected.shape:
        return f"{case.name} has the shape {got.shape}, not {expected.shape}"
    error = np.abs(got - expected) / max(float(np.ptp(expected)), 1e-6)
    if error.max() <= FARTHEST and error.mean() <= MEAN:
        return ""
    return f"{case.name} is off by {error.max():.2g}, on average {error.mean():.2g}"
