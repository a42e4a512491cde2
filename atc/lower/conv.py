"""Lowerings of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from atc.dims import is_dynamic, maximum, minimum, upper_bound
from atc.ir.expr import Expr, Input, call, const
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Conv, ConvTranspose, Epilogue, Map, Pool, Window, identity_epilogue
from atc.ir.view import View
from atc.lower.context import LoweringContext
from atc.lower.fitting import fitted, require_at_least
from atc.lower.reduce import reduce_axes
from atc.lower.registry import lowers


def channel_view(shape: Sequence[int]) -> View:
    """Return the view of a per-channel vector over an [N, C, ...] index space."""
    return View(tuple(1 if d == 1 else 0 for d in range(len(shape))))


def with_bias(dtype: DType, shape: Sequence[int]) -> Epilogue:
    """Return the epilogue that adds operand 1, one number per channel of [N, C, ...]."""
    return Epilogue(call("Add", Input(dtype, 0), Input(dtype, 1)), (channel_view(shape),))


def window_of(
    ctx: LoweringContext, spatial: Sequence[int], kernel: Sequence[int]
) -> tuple[Window, list[int]]:
    """Return the window of a Conv or Pool node and its end pads.

    Resolves `auto_pad` (ONNX Conv-11: SAME_UPPER, SAME_LOWER, VALID, NOTSET).
    """
    rank = len(kernel)
    strides = ctx.ints("strides", [1] * rank) or [1] * rank
    dilations = ctx.ints("dilations", [1] * rank) or [1] * rank
    pads = ctx.ints("pads", [0] * 2 * rank) or [0] * 2 * rank
    sizes = {"strides": len(strides), "dilations": len(dilations), "pads": len(pads) // 2}
    for name, size in sizes.items():
        ctx.require(size == rank, f"{name} has {size} entries for {rank} spatial axes")
    ctx.require(
        all(n > 0 for n in (*strides, *dilations, *kernel)),
        "strides, dilations and kernel must be positive",
    )
    auto = ctx.str("auto_pad", "NOTSET")
    begin, end = pads[:rank], pads[rank:]
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        begin, end = _same_pads(spatial, kernel, strides, dilations, auto == "SAME_UPPER")
    elif auto == "VALID":
        begin, end = [0] * rank, [0] * rank
    else:
        ctx.require(auto in ("NOTSET", ""), f"auto_pad is '{auto}'")
    return Window(tuple(kernel), tuple(strides), tuple(dilations), tuple(begin)), end


def _same_pads(
    spatial: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], upper: bool,
) -> tuple[list[int], list[int]]:  # fmt: skip
    begin, end = [], []
    for size, k, s, d in zip(spatial, kernel, strides, dilations, strict=True):
        total = maximum(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
        small, large = total // 2, total - total // 2
        begin.append(small if upper else large)
        end.append(large if upper else small)
    return begin, end


def output_extents(
    spatial: Sequence[int], window: Window, end: Sequence[int], ceil: bool = False
) -> list[int]:
    """Return the spatial output sizes of a window that slides over an input (ONNX AveragePool-22).

    With `ceil`, a window that would start in the end padding is dropped. A window a little larger
    than the padded input still gives one result, as in onnxruntime (division towards zero).
    """
    out = []
    rooms = _rooms(spatial, window, end)
    for size, room, s, p in zip(spatial, rooms, window.strides, window.pads, strict=True):
        extent = _steps(room, s, ceil) + 1
        if ceil:  # less a window that would start in the end padding
            extent = minimum(extent, (size + p - 1) // s + 1)
        out.append(extent)
    return out


def convolved_extents(
    ctx: LoweringContext, x: TensorType, window: Window, end: Sequence[int]
) -> list[int]:
    """Return the spatial output sizes of a convolution, whose window must fit the padded input."""
    rooms = _rooms(x.shape[2:], window, end)
    for room in rooms:
        message = f"the kernel {[*window.kernel]} is larger than the padded input {x}"
        require_at_least(ctx, room, 0, message)
    return [maximum(room, 0) // s + 1 for room, s in zip(rooms, window.strides, strict=True)]


def _rooms(spatial: Sequence[int], window: Window, end: Sequence[int]) -> list[int]:
    """Return how far a window can slide on each axis of a padded input; below 0 it doesn't fit."""
    sizes = zip(spatial, window.kernel, window.dilations, window.pads, end, strict=True)
    return [n + p + q - (k - 1) * d - 1 for n, k, d, p, q in sizes]


def _steps(room: int, stride: int, ceil: bool) -> int:
    """Return room / stride, towards zero or with `ceil` up; 0 for one that is too small, if any."""
    if ceil or upper_bound(room) < 0:
        return -(-room // stride)
    return maximum(room // stride, 0)


@lowers("Conv")
def conv(ctx: LoweringContext) -> str:
    """ONNX Conv-22: x [N, C, *in], w [M, C/group, *kernel], optional bias [M]."""
    x, w = ctx.type(0), ctx.type(1)
    ctx.require(len(x.shape) >= 3 and len(x.shape) == len(w.shape), f"x is {x}, w is {w}")
    kernel = ctx.ints("kernel_shape", w.shape[2:]) or []
    ctx.require(tuple(kernel) == w.shape[2:], f"kernel_shape {kernel} but w is {w}")
    window, end = window_of(ctx, x.shape[2:], kernel)
    group = ctx.int("group", 1)
    ctx.require(group > 0, f"group {group}")
    shape = (x.shape[0], w.shape[1] * group, *x.shape[2:])
    image = fitted(ctx, ctx.input(0), shape, f"group {group}: x is {x}, w is {w}")
    ctx.require(w.shape[0] % group == 0, f"group {group} does not divide {w.shape[0]} channels")
    spatial = convolved_extents(ctx, x, window, end)
    out = TensorType(x.dtype, (x.shape[0], w.shape[0], *spatial))
    inputs = [widen(ctx, image), widen(ctx, ctx.input(1))]
    dtype = ctx.b.type(inputs[0]).dtype
    epilogue = identity_epilogue(dtype)
    if ctx.has(2):
        ctx.require(ctx.type(2).size == w.shape[0], f"bias {ctx.type(2)} for {w.shape[0]} channels")
        inputs.append(widen(ctx, ctx.input(2)))
        epilogue = with_bias(dtype, out.shape)
    result = TensorType(dtype, out.shape)
    if not is_dynamic(x.shape) and not x.size:  # sums of padding alone are zero
        bias = Input(dtype, 0) if ctx.has(2) else const(0.0, dtype)
        alone = Map(out.shape, bias, epilogue.views)
        return ctx.b.cast(ctx.b.emit1(alone, inputs[2:], result), x.dtype)
    y = ctx.b.emit1(Conv(window, group, epilogue, dtype), inputs, result)
    return ctx.b.cast(y, x.dtype)


def widen(ctx: LoweringContext, x: str) -> str:
    """Convert a 16-bit float operand to float: heavy operators compute in float."""
    return ctx.b.cast(x, DType.FLOAT) if ctx.b.type(x).dtype.is_half else x


@lowers("ConvTranspose")
def conv_transpose(ctx: LoweringContext) -> str:
    """ONNX ConvTranspose-22: x [N, C, *in], w [C, M/group, *kernel], optional bias [M]."""
    x, w = ctx.type(0), ctx.type(1)
    rank = len(x.shape) - 2
    kernel = ctx.ints("kernel_shape", w.shape[2:]) or []
    strides = ctx.ints("strides", [1] * rank) or []
    dilations = ctx.ints("dilations", [1] * rank) or []
    group = ctx.int("group", 1)
    ctx.require(len(w.shape) == rank + 2 and x.shape[1] == w.shape[0], f"x is {x}, w is {w}")
    full = transposed_size(x.shape[2:], strides, kernel, dilations)
    begin, spatial = transposed_extents(ctx, full, strides, x.shape[2:])
    for extent in spatial:
        require_at_least(ctx, extent, 1, f"pads leave {[*spatial]} of the sums {full}")
    out_shape = (x.shape[0], w.shape[1] * group, *spatial)
    inputs = [widen(ctx, ctx.input(0)), widen(ctx, ctx.input(1))]
    dtype = ctx.b.type(inputs[0]).dtype
    epilogue = identity_epilogue(dtype)
    if ctx.has(2):
        inputs.append(widen(ctx, ctx.input(2)))
        epilogue = with_bias(dtype, out_shape)
    window = Window(tuple(kernel), tuple(strides), tuple(dilations), tuple(begin))
    transposed = ConvTranspose(window, group, epilogue, dtype)
    y = ctx.b.emit1(transposed, inputs, TensorType(dtype, out_shape))
    return ctx.b.cast(y, x.dtype)


def transposed_size(
    spatial: Sequence[int], strides: Sequence[int], kernel: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Return the output sizes of a transposed convolution before anything is cut off."""
    sizes = zip(spatial, strides, kernel, dilations, strict=True)
    return [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in sizes]


def transposed_extents(
    ctx: LoweringContext, full: Sequence[int], strides: Sequence[int], spatial: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the begin pads and output sizes, from pads, output_padding or output_shape.

    An odd total puts its larger half in front but for SAME_UPPER, as ConvTranspose-11 corrects the
    equations of ConvTranspose-1.
    """
    rank = len(full)
    extra = ctx.ints("output_padding", [0] * rank) or [0] * rank
    pads = ctx.ints("pads", [0] * 2 * rank) or [0] * 2 * rank
    auto = ctx.str("auto_pad", "NOTSET")
    wanted = ctx.ints("output_shape")
    if wanted:
        wanted = wanted[-rank:]
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(spatial, strides, strict=True)]
    if wanted is None:
        begin, end = pads[:rank], pads[rank:]
        if auto == "VALID":
            begin, end = [0] * rank, [0] * rank
        out = [f + e - p - q for f, e, p, q in zip(full, extra, begin, end, strict=True)]
        return begin, out
    total = [maximum(f + e - o, 0) for f, e, o in zip(full, extra, wanted, strict=True)]
    return [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total], list(wanted)


@lowers("MaxPool", "AveragePool", "LpPool")
def pool(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX MaxPool-22, AveragePool-22, LpPool-22."""
    x = ctx.type(0)
    kernel = ctx.ints("kernel_shape")
    ctx.require(kernel is not None and len(kernel) == len(x.shape) - 2, f"kernel {kernel} for {x}")
    window, end = window_of(ctx, x.shape[2:], kernel or [])
    spatial = output_extents(x.shape[2:], window, end, bool(ctx.int("ceil_mode")))
    rooms = zip(spatial, _rooms(x.shape[2:], window, end), window.strides, strict=True)
    for n, room, stride in rooms:
        message = f"the kernel {kernel} is larger than the padded input {x}"
        require_at_least(ctx, n, 1, message)
        require_at_least(ctx, room, 1 - stride, message)
    shape = (*x.shape[:2], *(maximum(n, 1) for n in spatial))
    source = widen(ctx, ctx.input(0))
    dtype = ctx.b.type(source).dtype
    padded = any(n != 0 for n in (*window.pads, *end))
    op = Pool(
        ctx.node.op_type.removesuffix("Pool"), window, tuple(end),
        bool(ctx.int("count_include_pad")) and padded, _order(ctx), ctx.int("storage_order"),
    )  # fmt: skip
    types = [TensorType(dtype, shape)]
    if ctx.wants(1):
        types.append(TensorType(DType.INT64, shape))
    y, *rest = ctx.b.emit(op, [source], *types)
    return (ctx.b.cast(y, x.dtype), *rest)


def _order(ctx: LoweringContext) -> int:
    """Return the p of an Lp norm, which is a float in opset 1."""
    if ctx.opset >= 2:
        return ctx.int("p", 2)
    order = ctx.float("p", 2.0)
    if not order.is_integer():
        raise ctx.unsupported(f"the norm's p is {order:g}", "use a whole number")
    return int(order)


@lowers("GlobalLpPool")
def global_lp_pool(ctx: LoweringContext) -> str:
    """ONNX GlobalLpPool-22: the Lp norm of each image."""
    x, p = ctx.type(0), _order(ctx)
    axes = tuple(range(2, len(x.shape)))
    ctx.require(p > 0, f"the norm's p is {p}")
    if p <= 2:
        return reduce_axes(ctx, ctx.input(0), axes, True, f"L{p}")
    source = widen(ctx, ctx.input(0))

    def power(v: Expr, exponent: float) -> Expr:
        return call("Pow", v, const(exponent, v.dtype))

    powers = ctx.b.map(lambda v: power(call("Abs", v), p), source)
    total = reduce_axes(ctx, powers, axes, True, "Sum")
    return ctx.b.cast(ctx.b.map(lambda v: power(v, 1 / p), total), x.dtype)


@lowers("GlobalAveragePool", "GlobalMaxPool")
def global_pool(ctx: LoweringContext) -> str:
    """ONNX GlobalAveragePool-22, GlobalMaxPool-22: one window over the whole image."""
    x = ctx.type(0)
    axes = tuple(range(2, len(x.shape)))
    count = prod(x.shape[2:])
    how = "Mean" if ctx.node.op_type == "GlobalAveragePool" else "Max"
    ctx.require(count > 0, f"{x} has no elements to pool")
    return reduce_axes(ctx, ctx.input(0), axes, True, how)
