"""Resize: MegEngine's own Resize where it means the same, else sums of selections.

Along an axis a resized element is a sum of few elements with constant weights; the tables are
those that the compiler itself has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atc.exporters.megengine.builder import Array, Builder, Node, Type, Var
from atc.exporters.megengine.rules_movement import known
from atc.lower.resample import Axis, Sampling, nearest_table, outside, weight_tables


def _sampling(node: Node) -> Sampling:
    return Sampling(
        node.get("mode", "nearest"),
        node.get("coordinate_transformation_mode", "half_pixel"),
        node.get("nearest_mode", "round_prefer_floor"),
        node.get("cubic_coeff_a", -0.75),
        bool(node.get("antialias", 0)),
        bool(node.get("exclude_outside", 0)),
    )


def _resized_axes(node: Node, xs: Sequence[Var], sampling: Sampling) -> list[Axis]:
    """Return what becomes of each axis; their new extents are those of the result."""
    shape, wanted = xs[0].type.shape, node.results[0].shape
    rank = len(shape)
    over = [int(a) % rank for a in node.get("axes", range(rank))]
    scales = known(node, xs, 2)
    if scales is not None and scales.size:
        factors = scales.tolist()
    else:
        factors = [wanted[a] / shape[a] for a in over]
        policy = node.get("keep_aspect_ratio_policy", "stretch")
        sizes = known(node, xs, 3)
        if policy != "stretch" and sizes is not None:
            ratios = [n / shape[a] for n, a in zip(sizes.tolist(), over, strict=True)]
            factors = [min(ratios) if policy == "not_larger" else max(ratios)] * len(over)
    axes = [Axis(n, n, 1.0) for n in shape]
    for a, factor in zip(over, factors, strict=True):
        axes[a] = Axis(shape[a], wanted[a], factor)
    if sampling.coordinates == "tf_crop_and_resize":
        roi = known(node, xs, 1)
        assert roi is not None
        for k, a in enumerate(over):
            start, end = float(roi[k]), float(roi[len(over) + k])
            axes[a] = Axis(shape[a], wanted[a], axes[a].scale, start, end)
    return axes


def _resized(b: Builder, node: Node, xs: Sequence[Var]) -> list[int]:
    type_, result = xs[0].type, node.results[0]
    if not type_.size or not result.size:
        raise node.refuse("it is of an empty tensor")
    sampling = _sampling(node)
    axes = _resized_axes(node, xs, sampling)
    x = b.number(xs[0])
    if sampling.mode != "nearest" and type_.kind != "f":
        raise node.refuse(f"it interpolates {type_.dtype}")
    if _is_own(axes, sampling, type_):
        size = b.constant(np.array(result.shape[2:], np.int32))
        return b.op("Resize", [x, size], ("Resize", {"imode": "LINEAR", "format": "NCHW"}))
    changing = [k for k, axis in enumerate(axes) if not axis.is_identity]
    for k in sorted(changing, key=lambda k: axes[k].out / axes[k].size):  # smaller ones first
        if sampling.mode == "nearest":
            x = b.taken(x, k, b.constant(nearest_table(axes[k], sampling).astype(np.int32)))
        else:
            x = _summed(b, x, k, weight_tables(axes[k], sampling), result)
    return [_extrapolated(b, node, x, [outside(axis, sampling) for axis in axes], result)]


def _is_own(axes: Sequence[Axis], sampling: Sampling, type_: Type) -> bool:
    """Return whether MegEngine's Resize does it: images by the centres of pixels, linearly."""
    return (
        len(axes) == 4
        and type_.dtype == np.float32
        and all(axis.is_identity for axis in axes[:2])
        and all(axis.out == axis.size * axis.scale for axis in axes[2:])
        and (sampling.mode, sampling.coordinates) == ("linear", "half_pixel")
        and not (sampling.antialias or sampling.exclude_outside)
    )


def _summed(b: Builder, x: int, axis: int, tables: tuple[Array, Array], type_: Type) -> int:
    """Return the sum of selections along an axis by their weights, tables [out, taps]."""
    behind = [1] * (len(type_.shape) - axis - 1)
    total = None
    for index, weight in zip(*(t.T for t in tables), strict=True):
        part = b.taken(x, axis, b.constant(index.astype(np.int32)))
        factor = weight.reshape([-1, *behind]).astype(type_.dtype)
        shape = b.shapes.get(part)
        if (factor != 1).any():
            part = b.elemwise("MUL", part, b.constant(factor))
        total = part if total is None else b.elemwise("ADD", total, part)
        if shape is not None:
            b.shapes[total] = shape
    assert total is not None
    return total


def _extrapolated(
    b: Builder, node: Node, x: int, masks: Sequence[Array], type_: Type
) -> int:
    """Put a value where any axis is read outside of it."""
    beyond = np.zeros(type_.shape, bool)
    for k, mask in enumerate(masks):
        beyond |= mask.reshape([-1 if a == k else 1 for a in range(len(masks))])
    if not beyond.any():
        return x
    value = b.like(node.get("extrapolation_value", 0.0), type_)
    return b.selected(b.constant(beyond), value, x, type_)


RULES: Mapping[str, Any] = {"Resize": _resized}
