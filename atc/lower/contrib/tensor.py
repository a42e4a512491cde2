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
from atc.lower.context import LoweringContext
from atc.lower.contrib.fused import MICROSOFT, standard
from atc.lower.elementwise import compute, gelu, gelu_tanh, like
from atc.lower.indexed_access import gather_axis
from atc.lower.matmul import product
from atc.lower.normalize import trailing
from atc.lower.registry import LOWERINGS, lowers


def delegate(
    ctx: LoweringContext, op_type: str, inputs: Sequence[str], attributes: Sequence[onnx_ir.Attr],
    opset: int = 22, outputs: int = 1,
) -> tuple[str, ...]:  # fmt: skip
    """Lower one of the standard's operators with attributes of its own."""
    inner = standing_for(ctx, op_type, inputs, attributes, opset, outputs)
    result = LOWERINGS["", op_type](inner)
    return (result,) if isinstance(result, str) else result


def standing_for(
    ctx: LoweringContext, op_type: str, inputs: Sequence[str], attributes: Sequence[onnx_ir.Attr],
    opset: int = 22, outputs: int = 1,
) -> LoweringContext:  # fmt: skip
    """Return the context of one of the standard's operators in the place of a node."""
    node = onnx_ir.Node("", op_type, [], attributes, num_outputs=outputs, name=ctx.name)
    for k, value in enumerate(node.outputs):
        value.name = f"{ctx.name}{k}"
    return replace(ctx, node=node, inputs=tuple(inputs), opset=opset)


def channels_first(ctx: LoweringContext, x: str) -> str:
    """Move the last axis behind the first."""
    rank = len(ctx.b.shape(x))
    return ctx.b.transpose(x, (0, rank - 1, *range(1, rank - 1)))


def channels_last(ctx: LoweringContext, x: str) -> str:
    """Move the second axis to the end."""
    return ctx.b.transpose(x, (0, *range(2, len(ctx.b.shape(x))), 1))


# ---- what the standard has now ------------------------------------------------------------------


@lowers("ExpandDims", domain=MICROSOFT)
def expand_dims(ctx: LoweringContext) -> str:
    """com.microsoft ExpandDims: one more axis, of extent 1."""
    shape = ctx.shape(0)
    (axis,) = ctx.ints_const(1, "the axis")
    at = ctx.axis(axis, len(shape) + 1)
    return ctx.b.reshape(ctx.input(0), (*shape[:at], 1, *shape[at:]))


@lowers("Range", domain=MICROSOFT)
def lower_range(ctx: LoweringContext) -> str:
    """com.microsoft Range: the step may be left out, and each may have one axis."""
    ends = [ctx.b.reshape(ctx.input(i), ()) for i in (0, 1)]
    one = ctx.b.scalar(1, ctx.type(0).dtype)
    step = ctx.b.reshape(ctx.input(2), ()) if ctx.has(2) else one
    return standard(ctx, "Range", *ends, step)


@lowers("Pad", domain=MICROSOFT)
def lower_pad(ctx: LoweringContext) -> str:
    """com.microsoft Pad: Pad-13."""
    return standard(ctx, "Pad", *ctx.inputs, opset=13)


@lowers("GatherND", domain=MICROSOFT)
def gather_nd(ctx: LoweringContext) -> str:
    """com.microsoft GatherND: GatherND-11."""
    return standard(ctx, "GatherND", *ctx.inputs)


@lowers("GridSample", domain=MICROSOFT)
def grid_sample(ctx: LoweringContext) -> str:
    """com.microsoft GridSample: GridSample-16."""
    return standard(ctx, "GridSample", *ctx.inputs, opset=16)


@lowers("Unique", domain=MICROSOFT)
def lower_unique(ctx: LoweringContext) -> tuple[str, ...]:
    """com.microsoft Unique: distinct values in their order, where each one is, their counts."""
    unsorted = onnx_ir.AttrInt64("sorted", 0)
    y, _, inverse, counts = delegate(ctx, "Unique", ctx.inputs, [unsorted], outputs=4)
    return y, inverse, counts


@lowers("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(ctx: LoweringContext) -> str:
    """com.microsoft NhwcMaxPool: MaxPool with the channels last."""
    return channels_last(ctx, standard(ctx, "MaxPool", channels_first(ctx, ctx.input(0))))


@lowers("ConvTransposeWithDynamicPads", domain=MICROSOFT)
def conv_transpose_with_pads(ctx: LoweringContext) -> str:
    """com.microsoft ConvTransposeWithDynamicPads: the pads are an input."""
    attributes = list(ctx.node.attributes.values())
    if ctx.has(2):
        pads = ctx.ints_const(2, "the list of pads")
        attributes.append(onnx_ir.AttrInt64s("pads", pads))
    inputs = [ctx.input(0), ctx.input(1), *([ctx.input(3)] if ctx.has(3) else [])]
    return delegate(ctx, "ConvTranspose", inputs, attributes, opset=11)[0]


@lowers("TorchEmbedding", domain=MICROSOFT)
def torch_embedding(ctx: LoweringContext) -> str:
    """com.microsoft TorchEmbedding: rows of a table; padding_idx matters for gradients only."""
    return gather_axis(ctx.b, ctx.input(0), 0, ctx.input(1), proven=False)


@lowers("UnfoldTensor", domain=MICROSOFT)
def unfold(ctx: LoweringContext) -> str:
    """com.microsoft UnfoldTensor: windows along one axis, whose elements are the new last axis."""
    shape = ctx.shape(0)
    axis, size = ctx.axis(ctx.int("dim", -1), len(shape)), ctx.int("size")
    step = ctx.int("step", 1)
    ctx.require(step > 0 and 0 < size <= shape[axis], f"windows of {size} in {list(shape)}")
    strides = row_major(shape)
    count = (shape[axis] - size) // step + 1
    view = View((*strides[:axis], strides[axis] * step, *strides[axis + 1 :], strides[axis]))
    return ctx.b.view(ctx.input(0), (*shape[:axis], count, *shape[axis + 1 :], size), view)


# ---- arithmetic ---------------------------------------------------------------------------------


@lowers("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(ctx: LoweringContext) -> str:
    """com.microsoft BiasSplitGelu: the left half of x + bias times the right half's gelu."""
    shape = ctx.shape(0)
    half = shape[-1] // 2
    ctx.require(shape[-1] % 2 == 0 == ctx.type(1).size % 2, f"{ctx.type(0)} can't be split in two")
    strides, out = row_major(shape), (*shape[:-1], half)
    b = ctx.b
    sides = [b.view(ctx.input(0), out, View(strides, k * half)) for k in (0, 1)]
    biases = [b.view(ctx.input(1), (half,), View((1,), k * half)) for k in (0, 1)]

    def body(x: Expr, y: Expr, p: Expr, q: Expr) -> Expr:
        return call("Mul", call("Add", x, p), gelu(call("Add", y, q)))

    return compute(ctx, body, *sides, *biases)


@lowers("GemmFastGelu", domain=MICROSOFT)
def gemm_fast_gelu(ctx: LoweringContext) -> str:
    """com.microsoft GemmFastGelu: FastGelu of x w + bias."""
    dtype = ctx.type(0).dtype
    work = DType.FLOAT if dtype.is_half else dtype
    a, w = (ctx.b.cast(ctx.input(i), work) for i in (0, 1))
    y = product(ctx, a, w)
    if ctx.has(2):
        y = ctx.b.map(lambda v, c: call("Add", v, c), y, ctx.b.cast(ctx.input(2), work))
    return ctx.b.cast(ctx.b.map(gelu_tanh, y), dtype)


@lowers("CDist", domain=MICROSOFT)
def pairwise_distances(ctx: LoweringContext) -> str:
    """com.microsoft CDist: distances between all rows of A and of B."""
    metric = ctx.str("metric", "sqeuclidean")
    ctx.require(metric in ("euclidean", "sqeuclidean"), f"metric is '{metric}'")
    (m, n), (k, width), dtype = ctx.shape(0), ctx.shape(1), ctx.type(0).dtype
    ctx.require(n == width, f"rows of {n} and of {width} elements")
    gap = call("Sub", Input(dtype, 0), Input(dtype, 1))
    views = (View((n, 0, 1)), View((0, n, 1)))
    op = Reduce("Sum", (m, k), (n,), call("Mul", gap, gap), views, identity_epilogue(dtype))
    y = ctx.b.emit1(op, [ctx.input(0), ctx.input(1)], TensorType(dtype, (m, k)))
    return y if metric == "sqeuclidean" else ctx.b.map(lambda v: call("Sqrt", v), y)


@lowers("MatMulInteger16", domain=MICROSOFT)
def matmul_integer_16(ctx: LoweringContext) -> str:
    """com.microsoft MatMulInteger16: products of 16-bit integers in 32 bits."""
    a, b = (ctx.b.cast(ctx.input(i), DType.INT32) for i in (0, 1))
    return product(ctx, a, b)


@lowers("MulInteger", domain=MICROSOFT)
def mul_integer(ctx: LoweringContext) -> str:
    """com.microsoft MulInteger: (A - A's zero point) (B - B's) in 32 bits."""
    b = ctx.b

    def centred(value: int, zero: int) -> str:
        wide = b.cast(ctx.input(value), DType.INT32)
        if not ctx.has(zero):
            return wide
        return b.map(lambda v, z: call("Sub", v, z), wide, b.cast(ctx.input(zero), DType.INT32))

    return b.map(lambda x, y: call("Mul", x, y), centred(0, 1), centred(2, 3))


@lowers("ReduceSumInteger", domain=MICROSOFT)
def reduce_sum_integer(ctx: LoweringContext) -> str:
    """com.microsoft ReduceSumInteger: sums of bytes in 32 bits."""
    wide = DType.INT32 if ctx.type(0).dtype.is_signed else DType.UINT32
    return standard(ctx, "ReduceSum", ctx.b.cast(ctx.input(0), wide), opset=11)


@lowers("ComplexMul", "ComplexMulConj", domain=MICROSOFT)
def complex_mul(ctx: LoweringContext) -> str:
    """com.microsoft ComplexMul, ComplexMulConj: of [..., 2], by B or by its conjugate."""
    b = ctx.b
    for i in (0, 1):
        ctx.require(ctx.shape(i)[-1:] == (2,), f"{ctx.type(i)} holds no complex numbers")
    sign = -1.0 if ctx.node.op_type.endswith("Conj") else 1.0
    parts = [_part(ctx, i, k) for i in (0, 1) for k in (0, 1)]

    def real(p: Expr, q: Expr, r: Expr, s: Expr) -> Expr:
        return call("Sub", call("Mul", p, r), call("Mul", call("Mul", q, s), like(q, sign)))

    def imaginary(p: Expr, q: Expr, r: Expr, s: Expr) -> Expr:
        return call("Add", call("Mul", call("Mul", p, s), like(p, sign)), call("Mul", q, r))

    results = [compute(ctx, f, *parts) for f in (real, imaginary)]
    return join(b, results, len(b.shape(results[0])) - 1)


def _part(ctx: LoweringContext, i: int, k: int) -> str:
    shape = ctx.shape(i)
    return ctx.b.view(ctx.input(i), (*shape[:-1], 1), View(row_major(shape), k))


@lowers("IsAllFinite", domain=MICROSOFT)
def is_all_finite(ctx: LoweringContext) -> str:
    """com.microsoft IsAllFinite: no infinities and NaNs, or none of one kind, in any input."""
    b, found = ctx.b, []
    kinds = {"isnan_only": "IsNaN", "isinf_only": "IsInf"}
    wanted = [fn for name, fn in kinds.items() if ctx.int(name)] or [*kinds.values()]
    for i in range(len(ctx.inputs)):
        dtype, size = ctx.type(i).dtype, ctx.type(i).size
        x: Expr = Input(dtype, 0)
        if dtype.is_half:
            x = cast(x, DType.FLOAT)
        bad = call(wanted[0], x)
        bad = call("Or", bad, call(wanted[1], x)) if len(wanted) > 1 else bad
        op = Reduce("And", (), (size,), call("Not", bad), (View((1,)),),
                    identity_epilogue(DType.BOOL))  # fmt: skip
        found.append(b.emit1(op, [ctx.input(i)], TensorType(DType.BOOL, ())))
    whole = found[0]
    for each in found[1:]:
        whole = b.map(lambda p, q: call("And", p, q), whole, each)
    return whole


# ---- normalization ------------------------------------------------------------------------------


@lowers("GroupNorm", "SkipGroupNorm", domain=MICROSOFT)
def group_norm(ctx: LoweringContext) -> tuple[str, ...]:
    """com.microsoft GroupNorm, SkipGroupNorm: of x, or x + skip + bias, then SiLU if asked for."""
    last = bool(ctx.int("channels_last", 1))
    x = ctx.input(0)
    if ctx.node.op_type == "SkipGroupNorm":
        x = _with_skip(ctx, last)
    attributes = [onnx_ir.AttrInt64("num_groups", ctx.int("groups")),
                  onnx_ir.AttrFloat32("epsilon", ctx.float("epsilon", 1e-5))]  # fmt: skip
    image = channels_first(ctx, x) if last else x
    dtype = ctx.b.type(x).dtype
    scales = [ctx.b.cast(ctx.input(i), dtype) for i in (1, 2)]
    (y,) = delegate(ctx, "GroupNormalization", [image, *scales], attributes)
    if ctx.int("activation"):
        y = compute(ctx, lambda v: call("Mul", v, call("Sigmoid", v)), y)
    return (channels_last(ctx, y) if last else y, x)


def _with_skip(ctx: LoweringContext, last: bool) -> str:
    """Return x + skip + bias; what has no spatial extents counts for all pixels."""
    b, shape = ctx.b, ctx.shape(0)
    operands = [ctx.input(0)]
    channels = shape[-1] if last else shape[1]
    for i in (3, 4):
        if not ctx.has(i):
            continue
        whole = ctx.shape(i)
        if len(whole) < len(shape):
            rows = whole[0] if len(whole) == 2 else 1
            ones = [1] * (len(shape) - 2)
            whole = (rows, *ones, channels) if last else (rows, channels, *ones)
        operands.append(b.reshape(ctx.input(i), whole))

    def add(first: Expr, *rest: Expr) -> Expr:
        for each in rest:
            first = call("Add", first, each)
        return first

    return compute(ctx, add, *operands)


@lowers("GatedRMSNorm", domain=MICROSOFT)
def gated_rms_norm(ctx: LoweringContext) -> str:
    """com.microsoft GatedRMSNorm: x / rms(x) * scale * activation(gate), per head."""
    b, shape, width = ctx.b, ctx.shape(0), ctx.type(1).size
    kind = ctx.str("activation", "silu")
    ctx.require(kind in ("silu", "swish", "sigmoid"), f"activation is '{kind}'")
    ctx.require(shape[-1] % width == 0, f"heads of {width} in {list(shape)}")
    heads = b.reshape(ctx.input(0), (*shape[:-1], shape[-1] // width, width))
    axis, epsilon = len(shape), ctx.float("epsilon", 1e-5)
    y, *_ = trailing(ctx, heads, axis, "MeanSquare", epsilon, [ctx.input(1)])

    def gated(v: Expr, g: Expr) -> Expr:
        z = call("Sigmoid", g)
        return call("Mul", v, z if kind == "sigmoid" else call("Mul", g, z))

    work = b.type(y).dtype
    y = b.map(gated, b.reshape(y, shape), b.cast(ctx.input(2), work))
    return b.cast(y, ctx.type(0).dtype)


@lowers("GatedAdd", domain=MICROSOFT)
def gated_add(ctx: LoweringContext) -> str:
    """com.microsoft GatedAdd: x + y gate, the product rounded to the type of x."""
    product = standard(ctx, "Mul", ctx.input(1), ctx.input(2))
    return standard(ctx, "Add", ctx.input(0), product)


@lowers("ScaledSiLU", domain=MICROSOFT)
def scaled_silu(ctx: LoweringContext) -> str:
    """com.microsoft ScaledSiLU: z sigmoid(z) of z = scale x, each rounded to the type of x."""
    b, dtype = ctx.b, ctx.type(0).dtype
    scale = b.scalar(ctx.float("alpha", 1.0), DType.FLOAT)
    scale = b.cast(b.reshape(ctx.input(1), ()), DType.FLOAT) if ctx.has(1) else scale
    x = b.cast(ctx.input(0), DType.FLOAT)
    z = b.cast(b.map(lambda v, s: call("Mul", v, s), x, scale), dtype)
    return standard(ctx, "Mul", z, standard(ctx, "Sigmoid", z))
