"""Lowerings of onnxruntime's own operators that move, gather, normalize or hash tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir

from atc.ir.expr import Expr, Input, call, cast
from atc.ir.graph import DType, TensorType, row_major
from atc.ir.ops import Reduce, identity_epilogue
from atc.ir.view import View
from atc.lower.concat_pad import join
from atc.lower.context import Site
from atc.lower.contrib.fused import MICROSOFT, standard
from atc.lower.elementwise import compute, gelu, gelu_tanh, like
from atc.lower.indexed_access import gather_axis
from atc.lower.matmul import product
from atc.lower.normalize import trailing
from atc.lower.registry import LOWERINGS, lowers


def delegate(
    site: Site, op_type: str, inputs: Sequence[str], attributes: Sequence[onnx_ir.Attr],
    opset: int = 22, outputs: int = 1,
) -> tuple[str, ...]:  # fmt: skip
    """Lower one of the standard's operators with attributes of its own."""
    inner = standing_for(site, op_type, inputs, attributes, opset, outputs)
    result = LOWERINGS["", op_type](inner)
    return (result,) if isinstance(result, str) else result


def standing_for(
    site: Site, op_type: str, inputs: Sequence[str], attributes: Sequence[onnx_ir.Attr],
    opset: int = 22, outputs: int = 1,
) -> Site:  # fmt: skip
    """Return the context of one of the standard's operators in the place of a node."""
    node = onnx_ir.Node("", op_type, [], attributes, num_outputs=outputs, name=site.name)
    for k, value in enumerate(node.outputs):
        value.name = f"{site.name}{k}"
    return replace(site, node=node, inputs=tuple(inputs), opset=opset)


def channels_first(site: Site, x: str) -> str:
    """Move the last axis behind the first."""
    rank = len(site.b.shape(x))
    return site.b.transpose(x, (0, rank - 1, *range(1, rank - 1)))


def channels_last(site: Site, x: str) -> str:
    """Move the second axis to the end."""
    return site.b.transpose(x, (0, *range(2, len(site.b.shape(x))), 1))


# ---- what the standard has now ------------------------------------------------------------------


@lowers("ExpandDims", domain=MICROSOFT)
def expand_dims(site: Site) -> str:
    """com.microsoft ExpandDims: one more axis, of extent 1."""
    shape = site.shape(0)
    (axis,) = site.ints_const(1, "the axis")
    at = site.axis(axis, len(shape) + 1)
    return site.b.reshape(site.input(0), (*shape[:at], 1, *shape[at:]))


@lowers("Range", domain=MICROSOFT)
def lower_range(site: Site) -> str:
    """com.microsoft Range: the step may be left out, and each may have one axis."""
    ends = [site.b.reshape(site.input(i), ()) for i in (0, 1)]
    one = site.b.scalar(1, site.type(0).dtype)
    step = site.b.reshape(site.input(2), ()) if site.has(2) else one
    return standard(site, "Range", *ends, step)


@lowers("Pad", domain=MICROSOFT)
def lower_pad(site: Site) -> str:
    """com.microsoft Pad: Pad-13."""
    return standard(site, "Pad", *site.inputs, opset=13)


@lowers("GatherND", domain=MICROSOFT)
def gather_nd(site: Site) -> str:
    """com.microsoft GatherND: GatherND-11."""
    return standard(site, "GatherND", *site.inputs)


@lowers("GridSample", domain=MICROSOFT)
def grid_sample(site: Site) -> str:
    """com.microsoft GridSample: GridSample-16."""
    return standard(site, "GridSample", *site.inputs, opset=16)


@lowers("Unique", domain=MICROSOFT)
def lower_unique(site: Site) -> tuple[str, ...]:
    """com.microsoft Unique: distinct values in their order, where each one is, their counts."""
    unsorted = onnx_ir.AttrInt64("sorted", 0)
    y, _, inverse, counts = delegate(site, "Unique", site.inputs, [unsorted], outputs=4)
    return y, inverse, counts


@lowers("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(site: Site) -> str:
    """com.microsoft NhwcMaxPool: MaxPool with the channels last."""
    return channels_last(site, standard(site, "MaxPool", channels_first(site, site.input(0))))


@lowers("ConvTransposeWithDynamicPads", domain=MICROSOFT)
def conv_transpose_with_pads(site: Site) -> str:
    """com.microsoft ConvTransposeWithDynamicPads: the pads are an input."""
    attributes = list(site.node.attributes.values())
    if site.has(2):
        pads = site.ints_const(2, "the list of pads")
        attributes.append(onnx_ir.AttrInt64s("pads", pads))
    inputs = [site.input(0), site.input(1), *([site.input(3)] if site.has(3) else [])]
    return delegate(site, "ConvTranspose", inputs, attributes, opset=11)[0]


@lowers("TorchEmbedding", domain=MICROSOFT)
def torch_embedding(site: Site) -> str:
    """com.microsoft TorchEmbedding: rows of a table; padding_idx matters for gradients only."""
    return gather_axis(site.b, site.input(0), 0, site.input(1), proven=False)


@lowers("UnfoldTensor", domain=MICROSOFT)
def unfold(site: Site) -> str:
    """com.microsoft UnfoldTensor: windows along one axis, whose elements are the new last axis."""
    shape = site.shape(0)
    axis, size = site.axis(site.int("dim", -1), len(shape)), site.int("size")
    step = site.int("step", 1)
    site.require(step > 0 and 0 < size <= shape[axis], f"windows of {size} in {list(shape)}")
    strides = row_major(shape)
    count = (shape[axis] - size) // step + 1
    view = View((*strides[:axis], strides[axis] * step, *strides[axis + 1 :], strides[axis]))
    return site.b.view(site.input(0), (*shape[:axis], count, *shape[axis + 1 :], size), view)


# ---- arithmetic ---------------------------------------------------------------------------------


@lowers("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(site: Site) -> str:
    """com.microsoft BiasSplitGelu: the left half of x + bias times the right half's gelu."""
    shape = site.shape(0)
    half = shape[-1] // 2
    site.require(shape[-1] % 2 == 0 == site.type(1).size % 2, f"{site.type(0)} has no halves")
    strides, out = row_major(shape), (*shape[:-1], half)
    b = site.b
    sides = [b.view(site.input(0), out, View(strides, k * half)) for k in (0, 1)]
    biases = [b.view(site.input(1), (half,), View((1,), k * half)) for k in (0, 1)]

    def body(x: Expr, y: Expr, p: Expr, q: Expr) -> Expr:
        return call("Mul", call("Add", x, p), gelu(call("Add", y, q)))

    return compute(site, body, *sides, *biases)


@lowers("GemmFastGelu", domain=MICROSOFT)
def gemm_fast_gelu(site: Site) -> str:
    """com.microsoft GemmFastGelu: FastGelu of x w + bias."""
    dtype = site.type(0).dtype
    work = DType.FLOAT if dtype.is_half else dtype
    a, w = (site.b.cast(site.input(i), work) for i in (0, 1))
    y = product(site, a, w)
    if site.has(2):
        y = site.b.map(lambda v, c: call("Add", v, c), y, site.b.cast(site.input(2), work))
    return site.b.cast(site.b.map(gelu_tanh, y), dtype)


@lowers("CDist", domain=MICROSOFT)
def pairwise_distances(site: Site) -> str:
    """com.microsoft CDist: distances between all rows of A and of B."""
    metric = site.str("metric", "sqeuclidean")
    site.require(metric in ("euclidean", "sqeuclidean"), f"metric is '{metric}'")
    (m, n), (k, width), dtype = site.shape(0), site.shape(1), site.type(0).dtype
    site.require(n == width, f"rows of {n} and of {width} elements")
    gap = call("Sub", Input(dtype, 0), Input(dtype, 1))
    views = (View((n, 0, 1)), View((0, n, 1)))
    op = Reduce("Sum", (m, k), (n,), call("Mul", gap, gap), views, identity_epilogue(dtype))
    y = site.b.emit1(op, [site.input(0), site.input(1)], TensorType(dtype, (m, k)))
    return y if metric == "sqeuclidean" else site.b.map(lambda v: call("Sqrt", v), y)


@lowers("MatMulInteger16", domain=MICROSOFT)
def matmul_integer_16(site: Site) -> str:
    """com.microsoft MatMulInteger16: products of 16-bit integers in 32 bits."""
    a, b = (site.b.cast(site.input(i), DType.INT32) for i in (0, 1))
    return product(site, a, b)


@lowers("MulInteger", domain=MICROSOFT)
def mul_integer(site: Site) -> str:
    """com.microsoft MulInteger: (A - A's zero point) (B - B's) in 32 bits."""
    b = site.b

    def centred(value: int, zero: int) -> str:
        wide = b.cast(site.input(value), DType.INT32)
        if not site.has(zero):
            return wide
        return b.map(lambda v, z: call("Sub", v, z), wide, b.cast(site.input(zero), DType.INT32))

    return b.map(lambda x, y: call("Mul", x, y), centred(0, 1), centred(2, 3))


@lowers("ReduceSumInteger", domain=MICROSOFT)
def reduce_sum_integer(site: Site) -> str:
    """com.microsoft ReduceSumInteger: sums of bytes in 32 bits."""
    wide = DType.INT32 if site.type(0).dtype.is_signed else DType.UINT32
    return standard(site, "ReduceSum", site.b.cast(site.input(0), wide), opset=11)


@lowers("ComplexMul", "ComplexMulConj", domain=MICROSOFT)
def complex_mul(site: Site) -> str:
    """com.microsoft ComplexMul, ComplexMulConj: of [..., 2], by B or by its conjugate."""
    b = site.b
    for i in (0, 1):
        site.require(site.shape(i)[-1:] == (2,), f"{site.type(i)} holds no complex numbers")
    sign = -1.0 if site.node.op_type.endswith("Conj") else 1.0
    parts = [_part(site, i, k) for i in (0, 1) for k in (0, 1)]

    def real(p: Expr, q: Expr, r: Expr, s: Expr) -> Expr:
        return call("Sub", call("Mul", p, r), call("Mul", call("Mul", q, s), like(q, sign)))

    def imaginary(p: Expr, q: Expr, r: Expr, s: Expr) -> Expr:
        return call("Add", call("Mul", call("Mul", p, s), like(p, sign)), call("Mul", q, r))

    results = [compute(site, f, *parts) for f in (real, imaginary)]
    return join(b, results, len(b.shape(results[0])) - 1)


def _part(site: Site, i: int, k: int) -> str:
    shape = site.shape(i)
    return site.b.view(site.input(i), (*shape[:-1], 1), View(row_major(shape), k))


@lowers("IsAllFinite", domain=MICROSOFT)
def is_all_finite(site: Site) -> str:
    """com.microsoft IsAllFinite: no infinities and NaNs, or none of one kind, in any input."""
    b, found = site.b, []
    kinds = {"isnan_only": "IsNaN", "isinf_only": "IsInf"}
    wanted = [fn for name, fn in kinds.items() if site.int(name)] or [*kinds.values()]
    for i in range(len(site.inputs)):
        dtype, size = site.type(i).dtype, site.type(i).size
        x: Expr = Input(dtype, 0)
        if dtype.is_half:
            x = cast(x, DType.FLOAT)
        bad = call(wanted[0], x)
        bad = call("Or", bad, call(wanted[1], x)) if len(wanted) > 1 else bad
        op = Reduce("And", (), (size,), call("Not", bad), (View((1,)),),
                    identity_epilogue(DType.BOOL))  # fmt: skip
        found.append(b.emit1(op, [site.input(i)], TensorType(DType.BOOL, ())))
    whole = found[0]
    for each in found[1:]:
        whole = b.map(lambda p, q: call("And", p, q), whole, each)
    return whole


# ---- normalization ------------------------------------------------------------------------------


@lowers("GroupNorm", "SkipGroupNorm", domain=MICROSOFT)
def group_norm(site: Site) -> tuple[str, ...]:
    """com.microsoft GroupNorm, SkipGroupNorm: of x, or x + skip + bias, then SiLU if asked for."""
    last = bool(site.int("channels_last", 1))
    x = site.input(0)
    if site.node.op_type == "SkipGroupNorm":
        x = _with_skip(site, last)
    attributes = [onnx_ir.AttrInt64("num_groups", site.int("groups")),
                  onnx_ir.AttrFloat32("epsilon", site.float("epsilon", 1e-5))]  # fmt: skip
    image = channels_first(site, x) if last else x
    dtype = site.b.type(x).dtype
    scales = [site.b.cast(site.input(i), dtype) for i in (1, 2)]
    (y,) = delegate(site, "GroupNormalization", [image, *scales], attributes)
    if site.int("activation"):
        y = compute(site, lambda v: call("Mul", v, call("Sigmoid", v)), y)
    return (channels_last(site, y) if last else y, x)


def _with_skip(site: Site, last: bool) -> str:
    """Return x + skip + bias; what has no spatial extents counts for all pixels."""
    b, shape = site.b, site.shape(0)
    operands = [site.input(0)]
    channels = shape[-1] if last else shape[1]
    for i in (3, 4):
        if not site.has(i):
            continue
        whole = site.shape(i)
        if len(whole) < len(shape):
            rows = whole[0] if len(whole) == 2 else 1
            ones = [1] * (len(shape) - 2)
            whole = (rows, *ones, channels) if last else (rows, channels, *ones)
        operands.append(b.reshape(site.input(i), whole))

    def add(first: Expr, *rest: Expr) -> Expr:
        for each in rest:
            first = call("Add", first, each)
        return first

    return compute(site, add, *operands)


@lowers("GatedRMSNorm", domain=MICROSOFT)
def gated_rms_norm(site: Site) -> str:
    """com.microsoft GatedRMSNorm: x / rms(x) * scale * activation(gate), per head."""
    b, shape, width = site.b, site.shape(0), site.type(1).size
    kind = site.str("activation", "silu")
    site.require(kind in ("silu", "swish", "sigmoid"), f"activation is '{kind}'")
    site.require(shape[-1] % width == 0, f"heads of {width} in {list(shape)}")
    heads = b.reshape(site.input(0), (*shape[:-1], shape[-1] // width, width))
    axis, epsilon = len(shape), site.float("epsilon", 1e-5)
    y, *_ = trailing(site, heads, axis, "MeanSquare", epsilon, [site.input(1)])

    def gated(v: Expr, g: Expr) -> Expr:
        z = call("Sigmoid", g)
        return call("Mul", v, z if kind == "sigmoid" else call("Mul", g, z))

    work = b.type(y).dtype
    y = b.map(gated, b.reshape(y, shape), b.cast(site.input(2), work))
    return b.cast(y, site.type(0).dtype)
