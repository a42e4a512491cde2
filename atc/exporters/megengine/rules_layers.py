"""Products, convolutions, pooling, normalizations, reductions, sorting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atc.exporters.megengine.builder import Builder, Node, Type, Var, stored
from atc.exporters.megengine.rules_movement import known, padded

# ---- products -----------------------------------------------------------------------------------


def _floats(node: Node, type_: Type) -> None:
    if type_.kind != "f":
        raise node.refuse(f"it is of {type_.dtype}")


def _multiplied(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    """Multiply matrices, or batches of them with one axis."""
    _floats(node, xs[0].type)
    left, right = ([*x.type.shape] for x in xs)
    left, right = ([1, *left] if len(left) == 1 else left), (
        [*right, 1] if len(right) == 1 else right
    )
    x, y = (b.number(v) for v in xs)
    stack = [*np.broadcast_shapes(tuple(left[:-2]), tuple(right[:-2]))]
    rows, inner, columns = left[-2], left[-1], right[-1]
    count = math.prod(stack)
    if math.prod(right[:-2]) == 1:  # one right matrix: the stack's rows are one matrix's
        x = b.reshape(x, [count * rows, inner])
        y = b.reshape(y, [inner, columns])
        found = b.op("MatrixMul", [x, y], ("MatrixMul", {}), ("ExecutionPolicy", {}))[0]
        b.shapes[found] = (count * rows, columns)
    else:
        x = b.broadcast(b.reshape(x, left), [*stack, rows, inner])
        y = b.broadcast(b.reshape(y, right), [*stack, inner, columns])
        operands = [b.reshape(x, [count, rows, inner]), b.reshape(y, [count, inner, columns])]
        found = b.op("BatchedMatrixMul", operands, ("MatrixMul", {}), ("ExecutionPolicy", {}))[0]
        b.shapes[found] = (count, rows, columns)
    return [b.reshape(found, node.results[0].shape)]


def _gemm(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    _floats(node, xs[0].type)
    params = {"transposeA": bool(node.get("transA", 0)), "transposeB": bool(node.get("transB", 0))}
    operands = [b.number(x) for x in xs[:2]]
    found = b.op("MatrixMul", operands, ("MatrixMul", params), ("ExecutionPolicy", {}))[0]
    if node.get("alpha", 1.0) != 1.0:
        found = b.elemwise("MUL", found, b.like(node.get("alpha"), xs[0].type))
    if len(xs) > 2 and xs[2].type.size:
        addend = b.number(xs[2])
        if node.get("beta", 1.0) != 1.0:
            addend = b.elemwise("MUL", addend, b.like(node.get("beta"), xs[0].type))
        found = b.elemwise("ADD", found, addend)
    return [found]


# ---- windows ------------------------------------------------------------------------------------


def _window(
    node: Node, rank: int, extents: Sequence[int], kernel: Sequence[int]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return the padding before and after, the strides and the dilations."""
    strides = [*node.get("strides", [1] * rank)]
    dilations = [*node.get("dilations", [1] * rank)]
    how = node.get("auto_pad", "NOTSET")
    pads = [*node.get("pads", [0] * 2 * rank)]
    if how.startswith("SAME"):
        totals = [
            max((math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n, 0)
            for n, k, s, d in zip(extents, kernel, strides, dilations, strict=True)
        ]
        less = [t // 2 for t in totals]
        more = [t - h for t, h in zip(totals, less, strict=True)]
        pads = [*less, *more] if how == "SAME_UPPER" else [*more, *less]
    return pads[:rank], pads[rank:], strides, dilations


def _along(names: Sequence[str], kinds: Mapping[str, Sequence[int]]) -> dict[str, object]:
    return {f"{k}_{a}": n for k, ns in kinds.items() for a, n in zip(names, ns, strict=True)}


def _axes(b: Builder, node: Node, x: Var, w: Var) -> tuple[int, int, tuple[int, ...], str]:
    """Return the operands of a convolution and the filters' shape; of one axis, as of two."""
    rank = len(x.type.shape) - 2
    if rank not in (1, 2, 3):
        raise node.refuse(f"it has {rank} axes of space")
    _floats(node, x.type)
    data, filters, shape = b.number(x), b.number(w), w.type.shape
    if rank == 1:
        data = b.reshape(data, [*x.type.shape[:2], 1, x.type.shape[2]])
        shape = (*shape[:2], 1, shape[2])
        filters = b.reshape(filters, shape)
    return data, filters, shape, "dhw" if rank == 3 else "hw"


def _flat(values: Sequence[int], rank: int, filling: int) -> list[int]:
    return [filling, *values] if rank == 1 else [*values]


def _convolved(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    x, w, shape, names = _axes(b, node, xs[0], xs[1])
    space = xs[0].type.shape[2:]
    rank, groups = len(space), node.get("group", 1)
    front, back, strides, dilations = _window(node, rank, space, xs[1].type.shape[2:])
    pads = _flat(front, rank, 0)
    if front != back:
        x = padded(b, x, [0, 0, *pads], [0, 0, *_flat(back, rank, 0)])
        pads = [0] * len(pads)
    if groups > 1:
        w = b.reshape(w, [groups, shape[0] // groups, *shape[1:]])
    params = _along(names, {
        "pad": pads, "stride": _flat(strides, rank, 1), "dilate": _flat(dilations, rank, 1),
    }) | {"sparse": "GROUP" if groups > 1 else "DENSE"}  # fmt: skip
    kind = "Convolution3D" if rank == 3 else "Convolution"
    found = b.op(kind, [x, w], (kind, params), ("ExecutionPolicy", {}))[0]
    return [_finished(b, node, found, xs, rank)]


def _finished(b: Builder, node: Node, found: int, xs: Sequence[Var], rank: int) -> int:
    """Add a convolution's bias; one of one axis loses the other."""
    if len(xs) > 2 and xs[2].type.size:
        bias = b.reshape(b.number(xs[2]), [1, xs[2].type.size, *[1] * max(rank, 2)])
        found = b.elemwise("ADD", found, bias)
    return b.reshape(found, node.results[0].shape) if rank == 1 else found


def _transposed(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    x, w, shape, names = _axes(b, node, xs[0], xs[1])
    rank, groups = len(xs[0].type.shape) - 2, node.get("group", 1)
    if rank == 3 or node.get("auto_pad", "NOTSET") != "NOTSET" or node.get("output_shape"):
        raise node.refuse("its shape is that of its result, or it is of three axes")
    front, back, strides, dilations = _window(node, rank, (), ())
    if groups > 1:
        w = b.reshape(w, [groups, shape[0] // groups, *shape[1:]])
    params = _along(names, {
        "pad": [0, 0], "stride": _flat(strides, rank, 1), "dilate": _flat(dilations, rank, 1),
    }) | {"sparse": "GROUP" if groups > 1 else "DENSE"}  # fmt: skip
    found = b.op("ConvolutionBackwardData", [w, x], ("Convolution", params),
                 ("ExecutionPolicy", {}))[0]  # fmt: skip
    more = [e - f for e, f in zip(node.get("output_padding", [0] * rank), back, strict=True)]
    behind = [max(m, 0) for m in more]
    if any(behind):  # elements that nothing was added to
        found = padded(b, found, [0] * (len(names) + 2), [0, 0, *_flat(behind, rank, 0)])
    full = [
        (n - 1) * s + d * (k - 1) + 1 + e
        for n, s, d, k, e in zip(xs[0].type.shape[2:], strides, dilations,
                                 xs[1].type.shape[2:], behind, strict=True)
    ]  # fmt: skip
    b.shapes[found] = (xs[0].type.shape[0], node.results[0].shape[1], *_flat(full, rank, 1))
    if any(front) or any(m < 0 for m in more):
        first = len(names) + 2 - rank
        ends: list[int | None] = [n + min(m, 0) for n, m in zip(full, more, strict=True)]
        found = b.part(found, [*range(first, first + rank)], front, ends, [1] * rank)
    return [_finished(b, node, found, xs, rank)]


def _pooled(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    kernel, space = [*node.get("kernel_shape")], xs[0].type.shape[2:]
    rank = len(space)
    _floats(node, xs[0].type)
    front, back, strides, dilations = _window(node, rank, space, kernel)
    if rank not in (1, 2) or any(d != 1 for d in dilations):
        raise node.refuse(f"it has {rank} axes of space, or is dilated")
    if node.get("ceil_mode", 0) or len(node.results) > 1:
        raise node.refuse("it rounds its shape up, or returns indices")
    largest, whole = node.op_type == "MaxPool", node.get("count_include_pad", 0)
    x = b.number(xs[0])
    if rank == 1:
        x = b.reshape(x, [*xs[0].type.shape[:2], 1, *space])
    pads = _flat(front, rank, 0)
    if front != back:
        if not largest and not whole:
            raise node.refuse("it is padded more on one side")
        filling = float(np.finfo(xs[0].type.dtype).min) if largest else 0.0
        x = padded(b, x, [0, 0, *pads], [0, 0, *_flat(back, rank, 0)], value=filling)
        pads = [0, 0]
    mode = "MAX" if largest else "AVERAGE" if whole else "AVERAGE_COUNT_EXCLUDE_PADDING"
    params = _along("hw", {
        "pad": pads, "stride": _flat(strides, rank, 1), "window": _flat(kernel, rank, 1),
    })  # fmt: skip
    found = b.op("Pooling", [x], ("Pooling", params | {"mode": mode}), ("ExecutionPolicy", {}))[0]
    return [b.reshape(found, node.results[0].shape) if rank == 1 else found]


# ---- reductions ---------------------------------------------------------------------------------

_REDUCED = {"ReduceSum": "SUM", "ReduceMean": "MEAN", "ReduceMax": "MAX", "ReduceMin": "MIN",
            "ReduceProd": "PRODUCT", "ReduceSumSquare": "SUM_SQR",
            "ReduceL1": "SUM", "ReduceL2": "SUM_SQR"}  # fmt: skip


def _along_one(
    b: Builder, x: int, before: Sequence[int], axes: Sequence[int], mode: str, shape: Sequence[int]
) -> int:
    """Reduce axes of a shape, merged into one."""
    rank = len(before)
    others = [a for a in range(rank) if a not in axes]
    first = axes[0]
    if [*axes] != [*range(first, first + len(axes))]:
        order, first = [*others, *axes], len(others)
    else:
        order = [*range(rank)]
    moved = [before[a] for a in order]
    count = len(axes)
    flat = [math.prod(moved[:first]), math.prod(moved[first : first + count]),
            math.prod(moved[first + count :])]  # fmt: skip
    found = b.reshape(b.transpose(x, order), flat)
    found = b.op("Reduce", [found], ("Reduce", {"mode": mode, "axis": 1}))[0]
    b.shapes[found] = (flat[0], 1, flat[2])
    return b.reshape(found, shape)


def _reduced(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    rank = len(xs[0].type.shape)
    given = known(node, xs, 1)
    if given is None and "axes" in node.attributes:
        given = np.array(node.get("axes"))
    if given is None or not given.size:
        axes = [] if node.get("noop_with_empty_axes", 0) else [*range(rank)]
    else:
        axes = sorted(int(a) % rank for a in given)
    mode = _REDUCED[node.op_type]
    if mode == "MEAN":
        _floats(node, xs[0].type)
    x = b.number(xs[0])
    if node.op_type == "ReduceL1":
        x = b.elemwise("ABS", x)
    if axes:
        x = _along_one(b, x, xs[0].type.shape, axes, mode, node.results[0].shape)
    elif mode == "SUM_SQR":
        x = b.elemwise("MUL", x, x)
    return [b.elemwise("SQRT", x) if node.op_type == "ReduceL2" else x]


def _log_sum_exp(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    """m + log(sum of exp(x - m)), m the largest: nothing overflows."""
    type_ = xs[0].type
    _floats(node, type_)
    given = known(node, xs, 1)
    rank = len(type_.shape)
    axes = [*range(rank)] if given is None else sorted(int(a) % rank for a in given)
    kept = [1 if a in axes else n for a, n in enumerate(type_.shape)]
    x = b.number(xs[0])
    most = _along_one(b, x, type_.shape, axes, "MAX", kept)
    powers = b.elemwise("EXP", b.elemwise("SUB", x, most))
    total = _along_one(b, powers, type_.shape, axes, "SUM", kept)
    found = b.elemwise("ADD", most, b.elemwise("LOG", total))
    b.shapes[found] = stored(kept)
    return [b.reshape(found, node.results[0].shape)]


def _global_mean(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    axes = [*range(2, len(xs[0].type.shape))]
    mode = "MAX" if node.op_type == "GlobalMaxPool" else "MEAN"
    return [_along_one(b, b.number(xs[0]), xs[0].type.shape, axes, mode, node.results[0].shape)]


def _accumulated(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    axis = known(node, xs, 1)
    assert axis is not None
    params = {"axis": int(axis.reshape(())) % len(xs[0].type.shape),
              "exclusive": bool(node.get("exclusive", 0)),
              "reverse": bool(node.get("reverse", 0))}  # fmt: skip
    return b.op("Cumsum", [b.number(xs[0])], ("Cumsum", params))


# ---- normalizations -----------------------------------------------------------------------------


def _softmax(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    axis = node.get("axis", -1) % len(xs[0].type.shape)
    return b.op("Softmax", [b.number(xs[0])], ("Softmax", {"axis": axis}))


def _normalized(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    """Apply a BatchNormalization as a scale and an offset, computed from the statistics."""
    if node.get("training_mode", 0) or len(node.results) > 1:
        raise node.refuse("it is in training")
    x, *rest = xs
    if any(v.array is None for v in rest):
        raise node.refuse("its statistics aren't constants")
    scale, bias, mean, var = (np.asarray(v.array, np.float64) for v in rest)
    factor = scale / np.sqrt(var + node.get("epsilon", 1e-5))
    shape = [1, -1, *[1] * (len(x.type.shape) - 2)]
    parts = [
        b.constant(p.reshape(shape).astype(x.type.dtype)) for p in (factor, bias - mean * factor)
    ]
    return [b.elemwise("FUSE_MUL_ADD3", b.number(x), *parts)]


def _group_normalized(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    """Normalize each image's groups of channels, or its channels; scale and bias are a channel's.

    scale (x - mean) / sqrt(variance + epsilon) + bias
    """
    type_ = xs[0].type
    _floats(node, type_)
    n, c, *space = type_.shape
    groups = node.get("num_groups", c)
    if xs[1].type.shape != (c,):
        raise node.refuse("its scale is a group's")
    flat, row = [n, groups, type_.size // (n * groups)], [n, groups, 1]
    x = b.reshape(b.number(xs[0]), flat)
    away = b.elemwise("SUB", x, _along_one(b, x, flat, [2], "MEAN", row))
    mean = _along_one(b, b.elemwise("MUL", away, away), flat, [2], "MEAN", row)
    spread = b.elemwise("ADD", mean, b.like(node.get("epsilon", 1e-5), type_))
    normal = b.elemwise("TRUE_DIV", away, b.elemwise("SQRT", spread))
    b.shapes[normal] = tuple(flat)
    channels = [1, c, *[1] * len(space)]
    scale, bias = (b.reshape(b.number(v), channels) for v in xs[1:])
    return [b.elemwise("FUSE_MUL_ADD3", b.reshape(normal, type_.shape), scale, bias)]


def _layer_normalized(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    shape = xs[0].type.shape
    axis = node.get("axis", -1) % len(shape)
    if len(node.results) > 1:
        raise node.refuse("it returns its statistics")
    last = shape[axis:]
    affine = [b.broadcast(b.number(v), last) for v in xs[1:] if v.type.size]
    if len(affine) == 1:
        affine.append(b.constant(np.zeros(last, xs[0].type.dtype)))
    params = {"affine": True, "eps": float(node.get("epsilon", 1e-5)),
              "normalized_dim": len(last), "normalized_size": math.prod(last)}  # fmt: skip
    operands = [b.number(xs[0]), *affine]
    return b.op("LayerNorm", operands, ("LayerNorm", params), outputs=3)[:1]


# ---- order --------------------------------------------------------------------------------------


def _argument(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    if node.get("select_last_index", 0):
        raise node.refuse("it takes the last of several")
    kind = {"ArgMax": "Argmax", "ArgMin": "Argmin"}[node.op_type]
    shape = xs[0].type.shape
    axis = node.get("axis", 0) % len(shape)
    found = b.op(kind, [b.number(xs[0])], ("Axis", {"axis": axis}))[0]
    b.shapes[found] = (*shape[:axis], 1, *shape[axis + 1 :])
    return [b.reshape(found, node.results[0].shape)]


def _best(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    """Return the first elements in order along an axis, which is moved to the end."""
    shape = xs[0].type.shape
    axis = node.get("axis", -1) % len(shape)
    count = known(node, xs, 1)
    assert count is not None
    k = int(count.reshape(())) * (-1 if node.get("largest", 1) else 1)
    order = [*(a for a in range(len(shape)) if a != axis), axis]
    moved = b.transpose(b.number(xs[0]), order)
    rows = b.reshape(moved, [xs[0].type.size // shape[axis], shape[axis]])
    results = b.op("TopK", [rows, b.constant(np.array([k], np.int32))],
                ("TopK", {"mode": "VALUE_IDX_SORTED"}), outputs=2)  # fmt: skip
    for each in results:
        b.shapes[each] = (xs[0].type.size // shape[axis], abs(k))
    wanted = [*(shape[a] for a in order[:-1]), abs(k)]
    back = [order.index(a) for a in range(len(shape))]
    return [b.transpose(b.reshape(p, wanted), back) for p in results]


RULES: Mapping[str, Any] = {
    **dict.fromkeys(_REDUCED, _reduced),
    "ArgMax": _argument,
    "ArgMin": _argument,
    "AveragePool": _pooled,
    "BatchNormalization": _normalized,
    "Conv": _convolved,
    "ConvTranspose": _transposed,
    "CumSum": _accumulated,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_mean,
    "GlobalMaxPool": _global_mean,
    "GroupNormalization": _group_normalized,
    "InstanceNormalization": _group_normalized,
    "LayerNormalization": _layer_normalized,
    "MatMul": _multiplied,
    "MaxPool": _pooled,
    "ReduceLogSumExp": _log_sum_exp,
    "Softmax": _softmax,
    "TopK": _best,
}
