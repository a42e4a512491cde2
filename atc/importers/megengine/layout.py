"""Packed channel layouts: unpacked before an operator, repacked after it.

NCHW44 and NCHW88 keep channels in blocks of 4 or 8: data (N, C/k, H, W, k), dense weights
(O/k, I/k, kh, kw, k of I, k of O) or, where the input isn't packed, (O/k, kh, kw, I, k of O),
grouped ones the same behind a group axis, depthwise ones (G/k, 1, 1, kh, kw, k).
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from atc.importers.megengine.builder import Builder
from atc.importers.megengine.dump import Params

_BLOCKS = {"NCHW44": 4, "NCHW44_DOT": 4, "NCHW88": 8}


@dataclass(frozen=True)
class Packing:
    """The layout of an operator's tensors: `block` channels together, or channels last."""

    block: int = 1
    channels_last: bool = False
    dot: bool = False


def packing(b: Builder, params: Params) -> Packing:
    """Return an operator's layout; raises `UnsupportedError` for those of GPUs."""
    word = params.word("format")
    if word in ("NCHW", "NCDHW"):
        return Packing()
    if word == "NHWC":
        return Packing(channels_last=True)
    if word in _BLOCKS:
        return Packing(_BLOCKS[word], dot=word.endswith("DOT"))
    raise b.unsupported(
        f"memory format {word} is not covered",
        hint="dump the network without a layout transformation",
    )


def unpack(b: Builder, x: ir.Value, how: Packing) -> ir.Value:
    """Return data as (N, C, H, W); data that isn't packed (a first layer's) stays."""
    if how.channels_last:
        return b.transpose(x, (0, 3, 1, 2))
    if how.block == 1 or b.rank(x) != 5:
        return x
    n, c, h, w, k = b.extents(x)
    return b.reshape(b.transpose(x, (0, 1, 4, 2, 3)), (n, c * k, h, w))


def pack(b: Builder, x: ir.Value, how: Packing) -> ir.Value:
    """Return (N, C, H, W) data in the operator's layout."""
    if how.channels_last:
        return b.transpose(x, (0, 2, 3, 1))
    if how.block == 1:
        return x
    n, c, h, w = b.extents(x)
    if c % how.block:
        raise b.error(f"{c} channels are not a multiple of {how.block}")
    blocked = b.reshape(x, (n, c // how.block, how.block, h, w))
    return b.transpose(blocked, (0, 1, 3, 4, 2))


def unpack_bias(b: Builder, x: ir.Value, how: Packing) -> ir.Value:
    """Return a bias (1, C/k, 1, 1, k) or a packed feature map as (N, C, H, W)."""
    return unpack(b, x, how)


def unpack_weight(b: Builder, w: ir.Value, how: Packing, grouped: bool) -> ir.Value:
    """Return weights as (O, I, kh, kw) or (G, O/G, I/G, kh, kw)."""
    if how.channels_last:
        rank = b.rank(w)
        return b.rearranged(w, None, (*range(rank - 3), rank - 1, rank - 3, rank - 2))
    if how.block == 1:
        return w
    shape, k = b.extents(w), how.block
    if grouped and len(shape) == 6 and shape[1] == shape[2] == 1 and shape[5] == k:
        g, _, _, kh, kw, _ = shape
        return b.rearranged(w, (g * k, 1, 1, kh, kw), (0, 5, 1, 2, 3, 4))
    lead = tuple(range(1 if grouped else 0))
    tail = shape[len(lead) :]
    at = len(lead)
    if len(tail) == 5:
        o, kh, kw, i, _ = tail
        order = (*lead, at, at + 4, at + 3, at + 1, at + 2)
        return b.rearranged(w, (*shape[:at], o * k, i, kh, kw), order)
    if len(tail) == 6:
        o, i, kh, kw, first, second = tail
        inner, outer = (at + 5, at + 4) if how.dot else (at + 4, at + 5)
        order = (*lead, at, outer, at + 1, inner, at + 2, at + 3)
        return b.rearranged(w, (*shape[:at], o * k, i * k, kh, kw), order)
    raise b.error(f"weights of shape {list(shape)} are not packed by {k}")
