"""Normalisations and softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from atc.importers.megengine.builder import Builder, Var
from atc.importers.megengine.dump import Operator
from atc.importers.megengine.translation import Rule
from atc.importers.onnx_builder import type_of


def batch_norm(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate BatchNorm: inputs x, scale, bias, mean, variance; the last output is y."""
    params = op.params("BN")
    if params.word("fwd_mode") != "INFERENCE" or len(xs) != 5:
        raise b.unsupported(
            "batch normalisation in training mode is not covered",
            hint="call eval() on the network before the trace",
        )
    x, *statistics = (v.value for v in xs)
    epsilon = params.real("epsilon")
    if params.word("param_dim") == "DIM_1C11":
        channels = b.extents(x)[1] if b.rank(x) > 1 else 0
        flat = [b.rearranged(v, (channels,)) for v in _sized(b, statistics, channels)]
        value = b.op("BatchNormalization", [x, *flat], {"epsilon": epsilon})
    else:
        value = _normalize_by(b, x, statistics, epsilon)
    unused: list[Var | None] = [None] * (len(op.outputs) - 1)
    return [*unused, Var(value, xs[0].dtype)]


def _sized(b: Builder, values: Sequence[ir.Value], size: int) -> Sequence[ir.Value]:
    for value in values:
        if math.prod(b.extents(value)) != size:
            raise b.error(f"a parameter of shape {list(b.extents(value))} for {size} channels")
    return values


def _normalize_by(
    b: Builder, x: ir.Value, statistics: Sequence[ir.Value], epsilon: float
) -> ir.Value:
    """Compute scale (x - mean) / sqrt(variance + epsilon) + bias with broadcasting."""
    scale, bias, mean, variance = statistics
    deviation = b.op("Sqrt", [b.op("Add", [variance, b.number(epsilon, variance)])])
    centred = b.op("Sub", [x, mean])
    return b.op("Add", [b.op("Mul", [centred, b.op("Div", [scale, deviation])]), bias])


def layer_norm(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate LayerNorm over the last `normalized_dim` axes; the first output is y."""
    params = op.params("LayerNorm")
    rank, count = b.rank(xs[0].value), params.integer("normalized_dim")
    if not 0 < count <= rank:
        raise b.error(f"cannot normalise {count} axes of rank {rank}")
    return _layer_norm(b, op, xs, rank - count, params.real("eps"))


def general_norm(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate GeneralNorm over the axes from `axis_start` up to, not with, `axis_end`."""
    params = op.params("GeneralNorm")
    start, end = params.integer("axis_start"), params.integer("axis_end")
    rank = b.rank(xs[0].value)
    if not 0 <= start < end <= rank:
        raise b.error(f"cannot normalise the axes {start} to {end} of rank {rank}")
    if end == rank:
        return _layer_norm(b, op, xs, start, params.real("eps"))
    order = [*range(start), *range(end, rank), *range(start, end)]
    moved = Var(b.transpose(xs[0].value, order), xs[0].dtype)
    result = _layer_norm(b, op, [moved, *xs[1:]], rank - (end - start), params.real("eps"))
    assert result[0] is not None
    back = [order.index(axis) for axis in range(rank)]
    return [Var(b.transpose(result[0].value, back), xs[0].dtype), *result[1:]]


def _layer_norm(
    b: Builder, op: Operator, xs: Sequence[Var], axis: int, epsilon: float
) -> list[Var | None]:
    x, *affine = (v.value for v in xs)
    if not affine:
        affine = [b.constant(np.ones(b.extents(x)[axis:], xs[0].dtype.numpy))]
    attributes = {"axis": axis, "epsilon": epsilon}
    value = b.op("LayerNormalization", [x, *affine], attributes)
    return _first(op, Var(value, xs[0].dtype))


def _first(op: Operator, y: Var) -> list[Var | None]:
    """Return the outputs of an operator whose statistics nobody reads."""
    return [y, *([None] * (len(op.outputs) - 1))]


def group_norm(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate GroupNorm; the first output is y."""
    params = op.params("GroupNorm")
    groups = params.integer("group")
    _require_nchw(b, params.word("format"))
    x, *affine = (v.value for v in xs)
    channels = b.extents(x)[1] if b.rank(x) > 1 else 0
    if not 0 < groups <= channels or channels % groups:
        raise b.error(f"{channels} channels do not split into {groups} groups")
    scale, bias = _affine(b, affine, channels, xs[0])
    attributes = {"num_groups": groups, "epsilon": params.real("eps")}
    like = [type_of(x)]  # it has no shape function
    (value,) = b.add("GroupNormalization", [x, scale, bias], attributes, types=like)
    return _first(op, Var(value, xs[0].dtype))


def instance_norm(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate InstanceNorm; the first output is y."""
    params = op.params("GroupNorm")
    _require_nchw(b, params.word("format"))
    x, *affine = (v.value for v in xs)
    channels = b.extents(x)[1] if b.rank(x) > 1 else 0
    scale, bias = _affine(b, affine, channels, xs[0])
    attributes = {"epsilon": params.real("eps")}
    value = b.op("InstanceNormalization", [x, scale, bias], attributes)
    return _first(op, Var(value, xs[0].dtype))


def _require_nchw(b: Builder, word: str) -> None:
    if word != "NCHW":
        raise b.unsupported(f"memory format {word} is not covered")


def _affine(
    b: Builder, given: Sequence[ir.Value], channels: int, x: Var
) -> tuple[ir.Value, ir.Value]:
    """Return scale and bias with one number per channel; 1 and 0 where the dump has none."""
    if len(given) == 2:
        scale, bias = _sized(b, given, channels)
        return b.rearranged(scale, (channels,)), b.rearranged(bias, (channels,))
    ones = np.ones(channels, x.dtype.numpy)
    return b.constant(ones), b.constant(np.zeros_like(ones))


def local_response_norm(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate LRN; ONNX divides alpha by the window's size, MegEngine does not."""
    params = op.params("LRN")
    size = params.integer("n")
    if not 0 < size < 1 << 16:
        raise b.error(f"a window of {size} channels is out of range")
    attributes = {
        "size": size,
        "alpha": params.real("alpha") * size,
        "beta": params.real("beta"),
        "bias": params.real("k"),
    }
    return [Var(b.op("LRN", [xs[0].value], attributes), xs[0].dtype)]


def softmax(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Softmax."""
    axis = b.axis(op.params("Softmax").integer("axis"), b.rank(xs[0].value))
    return [Var(b.op("Softmax", [xs[0].value], {"axis": axis}), xs[0].dtype)]


RULES: Mapping[str, Rule] = {
    "BatchNorm": Rule(batch_norm, 5),
    "GeneralNorm": Rule(general_norm, 1, 3),
    "GroupNorm": Rule(group_norm, 1, 3),
    "InstanceNorm": Rule(instance_norm, 1, 3),
    "LRN": Rule(local_response_norm, 1),
    "LayerNorm": Rule(layer_norm, 1, 3),
    "Softmax": Rule(softmax, 1),
}
