"""Subgraphs that MXNet's oneDNN back end fuses: `_sg_mkldnn_conv` and `_sg_mkldnn_fully_connected`.

The node holds the plain operators as a symbol; they are translated one by one. A quantised node
has the ranges of its quantised inputs behind the symbol's own variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from atc.importers.mxnet.node_context import NodeContext, translates
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
from atc.importers.mxnet.symbol import Symbol, SymbolNode
from atc.importers.mxnet.tensor import Tensor


@translates("_sg_mkldnn_conv", "_sg_onednn_conv", "_sg_mkldnn_fully_connected",
            "_sg_onednn_fully_connected")  # fmt: skip
def fused(s: NodeContext) -> Sequence[Tensor]:
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
    s: NodeContext, values: Sequence[Tensor], ranges: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Dequantise the inputs that are integers; each takes two of the ranges, in order."""
    largest = PLAIN if _gives_int32(s) else ONEDNN
    result, scales, position = [], [], 0
    for value in values:
        if value.dtype in largest:
            s.require(position + 1 < len(ranges), "the range of an input is missing")
            limit = bound(s.b, ranges[position], ranges[position + 1])
            position += 2
            scales.append(unit(s.b, value, limit))
            value = real_value(s.b, value, limit, largest)
        result.append(value)
    return result, scales


def _gives_int32(s: NodeContext) -> bool:
    return calibrated(s) is None and not s.truth("enable_float_output", False)


def _output(s: NodeContext, inner: Symbol, y: Tensor, scales: Sequence[Tensor]) -> Sequence[Tensor]:
    if s.truth("enable_float_output", False):
        return (y,)
    limit = calibrated(s)
    if limit is None:
        s.require(bool(scales), "none of its inputs is quantised")
        return accumulated(s.b, y, *scales[:2])
    last = inner.nodes[inner.heads[0].node]
    return quantize(s.b, y, limit, UINT8 if _is_positive(last) else INT8, ONEDNN)


def _is_positive(node: SymbolNode) -> bool:
    """Return whether a subgraph that ends in this node gives uint8.

    Its results are not negative.
    """
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
    s: NodeContext, inner: Symbol, values: Sequence[Tensor]
) -> Mapping[int, Tensor]:
    """Return the convolution (with its BatchNorm) on weights rounded to int8, by its node.

    MXNet folds the BatchNorm and rounds the float weights when it first runs: with one scale for
    each filter where the output is calibrated, else one for all. Nothing where the weights are
    computed or were integers in the file.
    """
    first = next((i for i, n in enumerate(inner.nodes) if not n.is_variable), 0)
    node = inner.nodes[first]
    known = dict(zip(inner.arguments, values, strict=True))
    operands = [known[e.node] for e in node.inputs if e.node in known]
    constants = [t.array.astype(np.float64) for t in operands[1:] if t.array is not None]
    if node.op != "Convolution" or not constants or len(constants) + 1 != len(node.inputs):
        return {}
    weight = constants[0]
    s.require(weight.ndim >= 2, "the weight is not a tensor of filters")
    offset = constants[1] if len(constants) > 1 else np.zeros(len(weight))
    place, factor, shift = _batch_norm_after(s, inner, first, known)
    s.require(offset.shape == (len(weight),), "the bias doesn't fit the weight")
    if place != first:
        s.require(factor.shape == offset.shape, "the BatchNorm doesn't fit the weight")
        weight = weight * factor.reshape([-1] + [1] * (weight.ndim - 1))
        offset = offset * factor + shift
    return {place: _emit_conv(s, node, operands[0], weight, offset)}


def _batch_norm_after(
    s: NodeContext, inner: Symbol, index: int, known: Mapping[int, Tensor]
) -> tuple[int, Array, Array]:
    """Return the BatchNorm that alone reads a node, as factor and shift; else the node itself."""
    nothing = index, np.ones(1), np.zeros(1)
    readers = [i for i, n in enumerate(inner.nodes) if any(e.node == index for e in n.inputs)]
    if len(readers) != 1 or inner.nodes[readers[0]].op != "BatchNorm":
        return nothing
    inside = replace(s, node=inner.nodes[readers[0]])
    parts = [known[e.node].array for e in inside.node.inputs[1:] if e.node in known]
    arrays = [p.astype(np.float64) for p in parts if p is not None]
    if len(arrays) != 4 or len({a.shape for a in arrays}) != 1:
        return nothing
    gamma, beta, mean, variance = arrays
    if inside.truth("fix_gamma", True):
        gamma = np.ones_like(gamma)
    with np.errstate(all="ignore"):
        factor = gamma / np.sqrt(variance + inside.number("eps", 1e-3))
    return readers[0], factor, beta - mean * factor


def _emit_conv(s: NodeContext, node: SymbolNode, x: Tensor, weight: Array, offset: Array) -> Tensor:
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
