"""Subgraphs that MXNet's oneDNN back end fuses: `_sg_mkldnn_conv` and `_sg_mkldnn_fully_connected`.

The node holds the plain operators as a symbol; they are translated one by one. A quantised node
has the ranges of its quantised inputs behind the symbol's own variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from atc.importers.mxnet.ops_conv import conv
from atc.importers.mxnet.ops_quantized import (
    INT8,
    ONEDNN,
    PLAIN,
    UINT8,
    accumulated,
    bound,
    calibrated,
    quantize,
    real_value,
    unit,
)
from atc.importers.mxnet.params import Array
from atc.importers.mxnet.site import Site, translates
from atc.importers.mxnet.symbol import Symbol, SymbolNode
from atc.importers.mxnet.tensor import Tensor


@translates("_sg_mkldnn_conv", "_sg_onednn_conv", "_sg_mkldnn_fully_connected",
            "_sg_onednn_fully_connected")  # fmt: skip
def fused(s: Site) -> Sequence[Tensor]:
    """Translate the subgraph; around it the quantisation that the node's attributes say."""
    s.require(len(s.node.subgraphs) == 1, "it has not one subgraph")
    inner = s.node.subgraphs[0]
    count = len(inner.arguments)
    s.require(len(s.inputs) >= count, f"{len(s.inputs)} inputs for {count} variables")
    if not s.truth("quantized", False):
        return s.inline(inner, s.inputs[:count], {})
    values, scales = _real_inputs(s, s.inputs[:count], s.inputs[count:])
    known = _quantized_weights(s, inner, values)
    (y,) = s.inline(inner, values, known)[:1]
    return _output(s, inner, y, scales)


def _real_inputs(
    s: Site, values: Sequence[Tensor], ranges: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Dequantise the inputs that are integers; each takes two of the ranges, in order."""
    largest = PLAIN if _gives_int32(s) else ONEDNN
    result, scales, position = [], [], 0
    for value in values:
        if value.dtype in largest:
            s.require(position + 1 < len(ranges), "the range of an input is missing")
            pair = ranges[position : position + 2]
            position += 2
            scales.append(unit(s.b, value, bound(s.b, *pair)))
            value = real_value(s.b, value, *pair, largest)
        result.append(value)
    return result, scales


def _gives_int32(s: Site) -> bool:
    return calibrated(s) is None and not s.truth("enable_float_output", False)


def _output(s: Site, inner: Symbol, y: Tensor, scales: Sequence[Tensor]) -> Sequence[Tensor]:
    if s.truth("enable_float_output", False):
        return (y,)
    limit = calibrated(s)
    if limit is None:
        s.require(bool(scales), "none of its inputs is quantised")
        return accumulated(s.b, y, *scales[:2])
    last = inner.nodes[inner.heads[0].node]
    return quantize(s.b, y, limit, UINT8 if _is_positive(last) else INT8, ONEDNN)


def _is_positive(node: SymbolNode) -> bool:
    """Whether a subgraph that ends in this node gives uint8: its results are not negative."""
    match node.op:
        case "Activation":
            return node.attrs.get("act_type") in ("relu", "sigmoid", "softrelu")
        case "relu" | "sigmoid":
            return True
        case "clip":
            return node.attrs.get("a_min", "").strip() in ("0", "0.0")
        case _:
            return False


# ---- weights -----------------------------------------------------------------------------------


def _quantized_weights(
    s: Site, inner: Symbol, values: Sequence[Tensor]
) -> Mapping[int, Tensor]:
    """Return the convolution (with its BatchNorm) on weights rounded to int8.

    MXNet folds the BatchNorm and rounds the float weights when it first runs: with one scale for
    each filter where the output is calibrated, else one for all. Nothing where the weights are
    computed or are integers already.
    """
    first = next((i for i, n in enumerate(inner.nodes) if not n.is_variable), 0)
    node = inner.nodes[first]
    by_index = dict(zip(inner.arguments, values, strict=True))
    operands = [by_index.get(e.node) for e in node.inputs]
    if node.op != "Convolution" or None in operands[:2]:
        return {}
    x, weight, *rest = operands
    if x is None or weight is None or weight.array is None or weight.dtype.kind == "i":
        return {}
    array = weight.array.astype(np.float64)
    offset = _array(rest[0]) if rest and rest[0] is not None else np.zeros(len(array))
    place, folded = _batch_norm_after(s, inner, first, by_index)
    if folded is not None and len(folded[0]) == len(array) and offset is not None:
        array = array * folded[0].reshape([-1] + [1] * (array.ndim - 1))
        offset = offset * folded[0] + folded[1]
    if offset is None or offset.shape != (len(array),):
        return {}
    return {place: _emit_conv(s, node, x, array, offset)}


def _array(tensor: Tensor) -> Array | None:
    return None if tensor.array is None else tensor.array.astype(np.float64)


def _batch_norm_after(
    s: Site, inner: Symbol, index: int, values: Mapping[int, Tensor]
) -> tuple[int, tuple[Array, Array] | None]:
    """Return the BatchNorm that alone reads a node, as factor and offset; else the node itself."""
    readers = [i for i, n in enumerate(inner.nodes) if any(e.node == index for e in n.inputs)]
    if len(readers) != 1 or inner.nodes[readers[0]].op != "BatchNorm":
        return index, None
    node = inner.nodes[readers[0]]
    parts = [_array(values[e.node]) if e.node in values else None for e in node.inputs[1:]]
    if len(parts) != 4 or any(p is None for p in parts):
        return index, None
    gamma, beta, mean, variance = (np.asarray(p) for p in parts)
    inside = replace(s, node=node)
    if inside.truth("fix_gamma", True):
        gamma = np.ones_like(gamma)
    with np.errstate(all="ignore"):
        factor = gamma / np.sqrt(variance + inside.number("eps", 1e-3))
    return readers[0], (factor, beta - mean * factor)


def _emit_conv(s: Site, node: SymbolNode, x: Tensor, weight: Array, offset: Array) -> Tensor:
    """Emit the convolution with int8 weights: a scale for each filter, or one for all."""
    b, channelwise = s.b, not _gives_int32(s)
    axes: Any = tuple(range(1, weight.ndim)) if channelwise else None
    limit = np.abs(weight).max(axis=axes, initial=0)
    limit = np.broadcast_to(np.where(limit > 0, limit, 1), len(weight))
    s.require(bool(np.all(np.isfinite(limit))), "the weights are not finite")
    steps = (limit / ONEDNN[INT8]).reshape([-1] + [1] * (weight.ndim - 1))
    numbers = b.constant(np.clip(np.rint(weight / steps), -128, 127).astype(np.int8))
    scale = limit / (ONEDNN if channelwise else PLAIN)[INT8]
    constants = [numbers, b.constant(scale.astype(np.float32))]
    real = b.emit("DequantizeLinear", constants, {"axis": 0})[0]
    bias = b.constant(offset.astype(np.float32))
    return conv(replace(s, node=node), x, real, bias)
