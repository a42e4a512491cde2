"""Draws nodes with the attributes and inputs that exporters rarely write."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
from fuzz import transformers
from fuzz.draw import Draw, Made, Unsuitable
from fuzz.elementwise import Template
from fuzz.recurrences import draw_recurrence


def recurrence(op: str) -> Template:
    return partial(draw_recurrence, op)


def fused_conv(d: Draw) -> Made:
    n, c, m, k = d.int(1, 2), d.int(1, 4), d.pick((4, 5, 8)), d.pick((1, 3))
    x, w = d.like((n, c, 7, 6)), d.like((m, c, k, k), constant=True)
    act = d.pick(("Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid"))
    params = {"LeakyRelu": [0.1], "Clip": [-0.3, 0.8], "HardSigmoid": [0.2, 0.4]}.get(act)
    more = {"activation_params": params} if params else {}
    return Made(
        "FusedConv",
        [x, w, d.like((m,)) if d.chance() else None],
        {"activation": act, "pads": [k // 2] * 4, **more},
        1,
        "com.microsoft",
    )


def conv_nd(d: Draw) -> Made:
    rank = d.pick((1, 3, 3, 2))
    n, g = d.int(1, 2), d.int(1, 3)
    c, m = g * d.int(1, 4), g * d.pick((1, 2, 4, 5, 8))
    x = d.like((n, c, *(d.int(1, 9 if rank < 3 else 6) for _ in range(rank))), constant=False)
    kernel = d.ints(rank, 1, 4)
    strides, dil = d.ints(rank, 1, 3), d.ints(rank, 1, 3)
    attributes: dict[str, Any] = {"group": g, "strides": strides, "dilations": dil}
    auto = d.pick(("SAME_UPPER", "SAME_LOWER", "VALID", ""))
    pads = [0] * 2 * rank
    if auto:
        attributes["auto_pad"] = auto
    else:
        pads = attributes["pads"] = d.ints(2 * rank, 0, 4)
    for a in range(rank):
        reach = (kernel[a] - 1) * dil[a] + 1
        if "SAME" not in auto and x.array.shape[2 + a] + pads[a] + pads[rank + a] < reach:
            raise Unsuitable
        if "SAME" in auto and strides[a] > reach:
            raise Unsuitable
    return Made(
        "Conv",
        [
            x,
            d.like((m, c // g, *kernel), constant=d.chance(0.8)),
            d.like((m,)) if d.chance() else None,
        ],
        attributes,
    )


def conv_transpose_nd(d: Draw) -> Made:
    rank = d.pick((1, 2, 2, 3))
    n, g = d.int(1, 2), d.int(1, 3)
    c, m = g * d.int(1, 4), d.pick((1, 2, 4, 5))
    x = d.like((n, c, *d.ints(rank, 1, 5)), constant=False)
    kernel, strides, dil = d.ints(rank, 1, 4), d.ints(rank, 1, 3), d.ints(rank, 1, 2)
    attributes: dict[str, Any] = {
        "group": g,
        "strides": strides,
        "dilations": dil,
        "kernel_shape": kernel,
    }
    full = [
        (e - 1) * s + (k - 1) * q + 1
        for e, s, k, q in zip(x.array.shape[2:], strides, kernel, dil, strict=True)
    ]
    match d.pick(("pads", "output_shape", "SAME_UPPER", "SAME_LOWER", "auto shape")):
        case "pads":
            attributes["pads"] = d.ints(2 * rank, 0, 2)
            attributes |= (
                {
                    "output_padding": [
                        d.int(0, max(s, q) - 1) for s, q in zip(strides, dil, strict=True)
                    ]
                }
                if d.chance()
                else {}
            )
        case "output_shape":
            attributes["output_shape"] = [max(1, f - d.int(0, 2)) for f in full]
        case "auto shape":
            attributes["output_shape"] = [max(1, f - d.int(0, 2)) for f in full]
            attributes["auto_pad"] = d.pick(("SAME_UPPER", "SAME_LOWER"))
        case auto:
            if any(s > (k - 1) * q + 1 for s, k, q in zip(strides, kernel, dil, strict=True)):
                raise Unsuitable  # onnxruntime makes the result smaller than the standard has it
            attributes["auto_pad"] = auto
    return Made(
        "ConvTranspose",
        [x, d.like((c, m, *kernel)), d.like((m * g,)) if d.chance() else None],
        attributes,
    )


def deform_conv(d: Draw) -> Made:
    d.opset = max(d.opset, 19)
    n, g, og = d.int(1, 2), d.int(1, 2), d.int(1, 2)
    c, m = g * og * d.int(1, 2), g * d.int(1, 3)
    h, w, kernel = d.int(3, 7), d.int(3, 7), d.ints(2, 1, 3)
    strides, dil, pads = d.ints(2, 1, 2), d.ints(2, 1, 2), d.ints(4, 0, 2)
    out = [
        (e + pads[a] + pads[2 + a] - (kernel[a] - 1) * dil[a] - 1) // strides[a] + 1
        for a, e in enumerate((h, w))
    ]
    if min(out) < 1:
        raise Unsuitable
    k = prod(kernel)
    mask = d.like((n, og * k, *out)) if d.chance() else None
    return Made(
        "DeformConv",
        [
            d.like((n, c, h, w)),
            d.like((m, c // g, *kernel)),
            d.like((n, og * 2 * k, *out)),
            d.like((m,)) if d.chance() else None,
            mask,
        ],
        {
            "group": g,
            "offset_group": og,
            "strides": strides,
            "dilations": dil,
            "pads": pads,
            "kernel_shape": kernel,
        },
    )


def col2im(d: Draw) -> Made:
    d.opset = max(d.opset, 18)
    rank = d.pick((1, 2, 2, 3))
    image, block = d.ints(rank, 2, 6), d.ints(rank, 1, 3)
    strides, dil, pads = d.ints(rank, 1, 2), d.ints(rank, 1, 2), d.ints(2 * rank, 0, 1)
    counts = [
        (i + pads[a] + pads[rank + a] - dil[a] * (block[a] - 1) - 1) // strides[a] + 1
        for a, i in enumerate(image)
    ]
    if min(counts) < 1:
        raise Unsuitable
    x = d.like((d.int(1, 2), d.int(1, 3) * prod(block), prod(counts)))
    return Made(
        "Col2Im",
        [x, d.const(image), d.const(block)],
        {"strides": strides, "dilations": dil, "pads": pads},
    )


def roi_align(d: Draw) -> Made:
    n, c, h, w, boxes = d.int(1, 2), d.int(1, 3), d.int(2, 9), d.int(2, 9), d.int(1, 4)
    a = d.rng.uniform(-2, 10, (boxes, 2))
    rois = np.concatenate([a, a + d.rng.uniform(0, 8, (boxes, 2))], 1).astype(np.float32)
    which = d.rng.integers(0, n, boxes).astype(np.int64)
    attributes = d.some(
        mode=d.pick(("avg", "max")),
        output_height=d.int(1, 3),
        output_width=d.int(1, 3),
        sampling_ratio=d.int(0, 3),
        spatial_scale=0.5,
    )
    if d.opset >= 16:
        attributes |= d.some(
            coordinate_transformation_mode=d.pick(("half_pixel", "output_half_pixel"))
        )
    return Made(
        "RoiAlign", [d.like((n, c, h, w)), d.new(rois, False), d.new(which, False)], attributes
    )


def grid_sample(d: Draw) -> Made:
    d.opset = max(d.opset, 16)
    rank = 2 if d.opset < 20 else d.pick((2, 2, 3))
    n, c = d.int(1, 2), d.int(1, 3)
    x = d.like((n, c, *d.ints(rank, 1, 6)), constant=False)
    grid = d.new(d.rng.uniform(-1.6, 1.6, (n, *d.ints(rank, 1, 5), rank)).astype(np.float32), False)
    modes = ("bilinear", "nearest", "bicubic") if d.opset < 20 else ("linear", "nearest", "cubic")
    mode = d.pick(modes if rank == 2 else modes[:2])
    return Made(
        "GridSample",
        [x, grid],
        {
            "mode": mode,
            **d.some(
                padding_mode=d.pick(("zeros", "border", "reflection")), align_corners=d.int(0, 1)
            ),
        },
    )


def affine_grid(d: Draw) -> Made:
    d.opset = max(d.opset, 20)
    rank, n = d.pick((2, 3)), d.int(1, 3)
    size = d.const([n, d.int(1, 3), *d.ints(rank, 1, 6)])
    return Made(
        "AffineGrid",
        [d.like((n, rank, rank + 1), constant=False), size],
        d.some(align_corners=d.int(0, 1)),
    )


def max_unpool(d: Draw) -> Made:
    n, c, h, w, k = d.int(1, 2), d.int(1, 3), d.int(1, 4), d.int(1, 4), d.int(2, 3)
    size = n * c * h * k * w * k
    index = d.rng.permutation(size)[: n * c * h * w].reshape(n, c, h, w).astype(np.int64)
    return Made(
        "MaxUnpool",
        [d.like((n, c, h, w), constant=False), d.new(index, False)],
        {"kernel_shape": [k, k], "strides": [k, k]},
    )


def reduction(op: str) -> Template:
    def draw(d: Draw) -> Made:
        kind = d.pick("fffdhilbB" if op in ("ReduceMax", "ReduceMin") else "ffdhil")
        if op in ("ReduceLogSum", "ReduceLogSumExp", "ReduceL2", "ReduceMean", "ReduceSumSquare"):
            kind = d.pick("ffd")  # integers that the references sum in floats
        x = d.tensor(kind, low=0, high=5)
        if kind in "fd" and x.array.size and d.chance(0.25) and not x.constant:
            flat = x.array.reshape(-1)
            flat[int(d.rng.integers(x.array.size))] = d.pick((np.inf, -np.inf, np.nan, 1e-40, -0.0))
        rank = x.array.ndim
        attributes = d.some(keepdims=d.int(0, 1))
        late = d.opset >= (13 if op == "ReduceSum" else 18)
        if late:
            attributes |= d.some(noop_with_empty_axes=d.int(0, 1))
            if d.chance(0.2):
                return Made(op, [x], attributes)
            return Made(op, [x, d.new(np.array(d.axes(rank), np.int64), True)], attributes)
        axes = d.axes(rank, 1)
        return Made(op, [x], {**attributes, **({"axes": axes} if axes and d.chance(0.8) else {})})

    return draw


def arg(op: str) -> Template:
    def draw(d: Draw) -> Made:
        x = d.tensor("fdhilbB", low=1, zero=False)
        if d.chance():
            x = d.new(np.round(x.array.astype(np.float64)).clip(0, 2).astype(x.array.dtype), False)
        return Made(
            op,
            [x],
            {
                "axis": d.axis(x.array.ndim),
                **d.some(keepdims=d.int(0, 1), select_last_index=d.int(0, 1)),
            },
        )

    return draw


def softmax(op: str) -> Template:
    def draw(d: Draw) -> Made:
        x = d.tensor("ffdh", low=1, high=5)
        if x.array.size and not x.constant and d.chance(0.3):
            flat = x.array.reshape(-1)
            flat[int(d.rng.integers(x.array.size))] = d.pick((np.inf, -np.inf, np.nan, 1e4, -6e4))
        return Made(op, [x], {"axis": d.axis(x.array.ndim)} if d.chance(0.8) else {})

    return draw


def normalization(d: Draw) -> Made:
    op = d.pick(
        (
            "LayerNormalization",
            "RMSNormalization",
            "GroupNormalization",
            "MeanVarianceNormalization",
            "LpNormalization",
        )
    )
    if op == "GroupNormalization":
        d.opset = 21
        g = d.int(1, 3)
        c = g * d.int(1, 3)
        x = d.like((d.int(1, 2), c, *d.ints(d.int(1, 3), 1, 6)))
        return Made(op, [x, d.like((c,)), d.like((c,))], {"num_groups": g, **d.some(epsilon=0.01)})
    x = d.tensor("ffh" if op != "MeanVarianceNormalization" else "f", low=2, high=4, zero=False)
    if op == "MeanVarianceNormalization":
        return Made(op, [x], {"axes": sorted(a % x.array.ndim for a in d.axes(x.array.ndim, 1))})
    axis = d.axis(x.array.ndim)
    if op == "LpNormalization":
        return Made(op, [x], {"axis": axis, "p": d.int(1, 2)})
    d.opset = 23 if op == "RMSNormalization" else max(17, d.opset)
    kind = "h" if x.array.dtype == np.float16 else "f"
    scale = (
        d.partner(x.array.shape[axis % x.array.ndim :], kind)
        if op == "RMSNormalization"
        else d.like(x.array.shape[axis % x.array.ndim :], kind)
    )
    if op == "RMSNormalization" and any(
        a > b for a, b in zip(scale.array.shape[::-1], x.array.shape[::-1], strict=False)
    ):
        raise Unsuitable
    more = [d.like(scale.array.shape, kind)] if op == "LayerNormalization" and d.chance() else []
    return Made(
        op,
        [x, scale, *more],
        {"axis": axis, **d.some(epsilon=0.01)},
        d.pick((1, 3)) if op == "LayerNormalization" else 1,
    )


def signal(d: Draw) -> Made:
    d.opset = max(d.opset, 20)
    if d.chance(0.4):
        n, size = d.int(8, 30), d.pick((4, 5, 8))
        x = d.like((d.int(1, 2), n, 1))
        window = d.like((size,), constant=True) if d.chance() else None
        return Made(
            "STFT",
            [
                x,
                d.const(np.asarray(d.int(1, 4))),
                window,
                d.const(np.asarray(size)) if window is None or d.chance() else None,
            ],
            d.some(onesided=d.int(0, 1)),
        )
    inverse = d.int(0, 1)
    x = d.like((d.int(1, 2), *d.ints(d.int(1, 2), 1, 12), d.pick((1, 2))))
    rank = x.array.ndim
    one = 0 if x.array.shape[-1] == 2 or inverse else d.int(0, 1)
    return Made(
        "DFT",
        [
            x,
            d.const(np.asarray(d.int(1, 16))) if d.chance(0.4) else None,
            d.const(np.asarray(d.int(1, rank - 2))),
        ],
        {"inverse": inverse, "onesided": one},
    )


def resize(d: Draw) -> Made:
    d.opset = max(d.opset, 18)
    x = d.tensor("ffffhiB", low=1, high=4, zero=False)
    rank = x.array.ndim
    axes = sorted(int(a) for a in d.rng.permutation(rank)[: d.int(1, min(rank, 2))])
    mode = d.pick(("nearest", "linear", "cubic"))
    if x.array.dtype.kind != "f":
        mode = "nearest"
    attributes: dict[str, Any] = {"mode": mode, "axes": axes}
    coordinate = d.pick(
        (
            "half_pixel",
            "asymmetric",
            "align_corners",
            "pytorch_half_pixel",
            "half_pixel_symmetric",
            "tf_crop_and_resize",
        )
    )
    attributes["coordinate_transformation_mode"] = coordinate
    if mode == "nearest":
        attributes |= d.some(
            nearest_mode=d.pick(("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
        )
    if mode == "cubic":
        attributes |= d.some(cubic_coeff_a=-0.5, exclude_outside=d.int(0, 1))
    if mode == "linear" and coordinate != "tf_crop_and_resize":
        attributes |= d.some(antialias=1)
    roi = None
    if coordinate == "tf_crop_and_resize":
        a = d.rng.uniform(-0.2, 0.5, len(axes))
        roi = d.const([*a, *(a + d.rng.uniform(0.2, 0.9, len(axes)))], "f")
        attributes["extrapolation_value"] = 0.7
    least = 2 if coordinate == "pytorch_half_pixel" else 1  # onnx.reference errs about one
    if d.chance():
        sizes = [d.int(least, 12) for _ in axes]
        if d.chance(0.3) and coordinate != "tf_crop_and_resize":
            attributes["keep_aspect_ratio_policy"] = d.pick(("not_larger", "not_smaller"))
        return Made("Resize", [x, roi, None, d.const(sizes)], attributes)
    scales = [d.pick((0.5, 0.7, 1.0, 1.6, 2.0, 3.0)) for _ in axes]
    if any(int(s * x.array.shape[a]) < least for s, a in zip(scales, axes, strict=True)):
        raise Unsuitable
    return Made("Resize", [x, roi, d.const(scales, "f")], attributes)


def lp_pool(d: Draw) -> Made:
    d.opset = max(18, d.opset)
    rank = d.pick((1, 2, 3))
    x = d.like((d.int(1, 2), d.int(1, 3), *d.ints(rank, 3, 7)), constant=False)
    kernel = d.ints(rank, 1, 3)
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        **d.some(p=d.int(1, 4), strides=d.ints(rank, 1, 3)),
    }
    if d.chance(0.4):
        attributes["auto_pad"] = d.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    else:
        attributes |= d.some(
            pads=[d.int(0, k - 1) for k in (*kernel, *kernel)],
            dilations=d.ints(rank, 1, 2),
            ceil_mode=1,
        )
    reach = [
        (k - 1) * q + 1
        for k, q in zip(kernel, attributes.get("dilations", [1] * rank), strict=True)
    ]
    pads = attributes.get("pads", [0] * 2 * rank)
    rooms = [n + pads[a] + pads[rank + a] - reach[a] for a, n in enumerate(x.array.shape[2:])]
    if min(rooms) < 0 or any(
        s > k for s, k in zip(attributes.get("strides", [1] * rank), kernel, strict=True)
    ):
        raise Unsuitable
    return Made(d.pick(("LpPool", "AveragePool", "MaxPool")), [x], attributes)


def scatter_reduce(d: Draw) -> Made:
    d.opset = max(18, d.opset)
    x = d.tensor("ffdil", low=1, high=3, zero=False)
    kind = next(
        k
        for k, v in {"f": "float32", "d": "float64", "i": "int32", "l": "int64"}.items()
        if x.array.dtype == v
    )
    reduction = d.pick(("none", "add", "mul", "max", "min"))
    if d.chance():
        axis = d.axis(x.array.ndim)
        shape = [d.int(1, n) for n in x.array.shape]
        n = x.array.shape[axis]
        if reduction == "none":
            shape[axis] = 1
        index = d.rng.integers(-n, n, shape)
        return Made(
            "ScatterElements",
            [x, d.new(index), d.like(shape, kind)],
            {"axis": axis, "reduction": reduction},
        )
    k = d.int(1, x.array.ndim)
    lead = d.ints(d.int(1, 2), 1, 3) if reduction != "none" else [1]
    index = np.stack([d.rng.integers(-n, n, lead) for n in x.array.shape[:k]], -1)
    return Made(
        "ScatterND",
        [x, d.new(index), d.like((*lead, *x.array.shape[k:]), kind)],
        {"reduction": reduction},
    )


def qlinear_where(d: Draw) -> Made:
    kind = d.pick("bB")
    x = d.tensor(kind, low=1, zero=False)
    y = d.partner(x.array.shape, kind)
    parts = [
        p
        for v in (x, y)
        for p in (
            v,
            d.new(np.float32(d.rng.uniform(0.02, 0.2)), True),
            d.new(d.array((), kind), True),
        )
    ]
    return Made(
        "QLinearWhere",
        [
            d.like(x.array.shape, "?"),
            *parts,
            d.new(np.float32(0.1), True),
            d.new(d.array((), kind), True),
        ],
        {},
        1,
        "com.microsoft",
    )


def q_nd(d: Draw) -> Made:
    """QuantizeLinear or DequantizeLinear in blocks or of 4, 16 bits."""
    d.opset = max(21, d.opset)
    axis_n, block = d.int(1, 3), d.pick((2, 4))
    shape = [d.int(1, 4), axis_n * block - (d.int(0, 1) if axis_n > 1 else 0), d.int(1, 5)]
    blocks = [shape[0], axis_n, shape[2]]
    scale = d.new(d.rng.uniform(0.02, 0.3, blocks).astype(np.float32))
    kind = d.pick("bBsS")
    zero = d.like(blocks, kind) if d.chance() else None
    attributes = {"axis": d.pick((1, -2)), "block_size": block}
    if d.chance():
        return Made(
            "DequantizeLinear",
            [d.like(shape, kind if zero else d.pick("bBsSi")), scale, zero],
            attributes,
        )
    more = {} if zero else {"output_dtype": d.pick((2, 3, 4, 5))}
    return Made("QuantizeLinear", [d.like(shape), scale, zero], {**attributes, **more})


def integer_width(d: Draw) -> Made:
    op = d.pick(
        (
            "Max",
            "Min",
            "Clip",
            "Mod",
            "Div",
            "Abs",
            "Neg",
            "Sign",
            "CumSum",
            "TopK",
            "Pow",
            "MatMul",
        )
    )
    kind = d.pick("bBsSiIlL")
    if op == "MatMul":
        kind = d.pick("iIlL")
        a = d.tensor(kind, low=2, high=2, zero=False)
        return Made(op, [a, d.like((a.array.shape[1], d.int(1, 9)), kind)])
    x = d.tensor(kind, low=1, zero=False)
    match op:
        case "Max" | "Min":
            return Made(op, [x, *(d.partner(x.array.shape, kind) for _ in range(d.int(1, 2)))])
        case "Clip":
            low, high = sorted(int(v) for v in d.array((2,), kind))
            return Made(
                op,
                [
                    x,
                    d.const(np.asarray(low), kind) if d.chance(0.8) else None,
                    d.const(np.asarray(high), kind),
                ],
            )
        case "Mod" | "Div":
            y = d.partner(x.array.shape, kind)
            z = np.where(y.array == 0, 1, y.array).astype(y.array.dtype)
            return Made(
                op, [x, d.new(z, y.constant)], d.some(fmod=d.int(0, 1)) if op == "Mod" else {}
            )
        case "CumSum":
            return Made(
                op,
                [x, d.const(np.asarray(d.axis(x.array.ndim)))],
                d.some(exclusive=d.int(0, 1), reverse=d.int(0, 1)),
            )
        case "TopK":
            axis = d.axis(x.array.ndim)
            return Made(
                op,
                [x, d.const([d.int(1, x.array.shape[axis])])],
                {"axis": axis, **d.some(largest=d.int(0, 1))},
                2,
            )
        case "Pow":
            return Made(op, [x, d.new(np.array(d.int(0, 3)).astype(x.array.dtype))])
        case "Neg" if kind in "BSIL":
            raise Unsuitable
    return Made(op, [x])


TEMPLATES: dict[str, Template] = {
    **{op: recurrence(op) for op in ("RNN", "GRU", "LSTM")},
    **transformers.TEMPLATES,
    "FusedConv": fused_conv,
    "Conv": conv_nd,
    "ConvTranspose": conv_transpose_nd,
    "DeformConv": deform_conv,
    "Col2Im": col2im,
    "RoiAlign": roi_align,
    "GridSample": grid_sample,
    "AffineGrid": affine_grid,
    "MaxUnpool": max_unpool,
    **{
        op: reduction(op)
        for op in (
            "ReduceSum",
            "ReduceMean",
            "ReduceMax",
            "ReduceMin",
            "ReduceProd",
            "ReduceL1",
            "ReduceL2",
            "ReduceLogSum",
            "ReduceLogSumExp",
            "ReduceSumSquare",
        )
    },
    **{op: arg(op) for op in ("ArgMax", "ArgMin")},
    **{op: softmax(op) for op in ("Softmax", "LogSoftmax", "Hardmax")},
    "Norm": normalization,
    "Signal": signal,
    "Resize": resize,
    "LpPool": lp_pool,
    "ScatterReduce": scatter_reduce,
    "QLinearWhere": qlinear_where,
    "Blocks": q_nd,
    "Integers": integer_width,
}
