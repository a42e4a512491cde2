"""Filters of blocked convolutions, packed into panels in the order in which tiles read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from atc.backends.kernel import KernelParams, Pack, StripedParams, Workload
from atc.backends.machine import CACHE_LINE
from atc.backends.render.stored_weights import FLOATS, Weights, stored_weights
from atc.backends.render.tile_geometry import Geometry, geometry, panels, tile_count
from atc.backends.target import Target
from atc.ir.graph import Array
from atc.ir.ops import ConvBlocked

PACKING = 1.0
"""Cycles to pack a filter's number."""
SHARING = 4
"""Tiles from which on it may pay that a panel of 16-bit weights becomes floats before them."""
STORE, FAR_LINE = 1.0, 2.0
"""Cycles to store a widened vector of a panel, and those that a line of one costs beside that
which the first-level cache doesn't hold."""


@dataclass(frozen=True, kw_only=True)
class PanelParams(KernelParams):
    """Those of tiles of p pixels x nv vectors of output channels."""

    p: int
    nv: int


@dataclass(frozen=True, kw_only=True)
class StripedPanelParams(PanelParams, StripedParams):
    """Those of tiles in stripes of rows."""


def pack_panels(w: Array, g: Geometry, group: int, nv: int) -> Array:
    """Return weights [M, C / group, *kernel] in the order in which the tiles read them.

    That is [supers][panel][input block][taps][channel in block][vectors * block], with zeros for
    the channels that pad the last block and between the groups of a bundle.
    """
    dense = ungrouped(w, g, group)
    step = 1 if g.plain else g.block
    whole = g.ic // step * step
    result, at = np.empty(dense.size, w.dtype), 0
    for filters in dense:
        for m, n in zip(range(0, g.mb, nv), panels(g.mb, nv), strict=True):
            panel = filters[m * g.block : (m + n) * g.block]
            blocks = panel[:, :whole].reshape(n * g.block, whole // step, step, g.taps)
            for part in (blocks.transpose(1, 3, 2, 0), panel[:, whole:].transpose(2, 1, 0)):
                result[at : at + part.size].reshape(part.shape)[...] = part
                at += part.size
    return result


def packed_panels(w: Workload[ConvBlocked], params: PanelParams) -> Mapping[int, Pack]:
    """Return how a kernel with tiles of p pixels x nv vectors packs the weights."""
    op = w.op
    g, nv = geometry(w, params.p), params.nv
    return {1: lambda weights: pack_panels(weights, g, op.group, nv)}


def name_of_panels(w: Workload, params: PanelParams) -> str:
    """Name that packing: panels of as many vectors are the same for any image."""
    return f"taps of {w.inputs[1]} for {params.nv} vectors"


def ungrouped(w: Array, g: Geometry, group: int) -> Array:
    """Return weights as [supers, blocks * block, ic, taps], zero where a group meets another."""
    q = group // g.supers
    oc, ic = w.shape[0] // group, w.shape[1]
    if q == 1 and oc == g.mb * g.block:
        return w.reshape(g.supers, oc, ic, g.taps)
    source = w.reshape(g.supers, q, oc, ic, g.taps)
    bundle = np.zeros((g.supers, q, oc, q, ic, g.taps), w.dtype)
    for k in range(q):
        bundle[:, k, :, k] = source[:, k]
    result = np.zeros((g.supers, g.mb * g.block, g.ic, g.taps), w.dtype)
    result[:, : q * oc] = bundle.reshape(g.supers, q * oc, g.ic, g.taps)
    return result


def filter_scratch(w: Workload[ConvBlocked], g: Geometry) -> int:
    """Return the bytes of packed filters that only the run knows."""
    return 0 if w.constant[1] else 4 * g.supers * g.mb * g.block * g.depth


def worth_widening(w: Workload[ConvBlocked], g: Geometry, p: int) -> bool:
    """Return whether floats may be made of 16-bit weights a panel at a time, for all its tiles."""
    narrow = bool(w.constant[1]) and stored_weights(w) is not FLOATS
    return narrow and tile_count(g, p) >= SHARING


def widened_panel(g: Geometry, nv: int) -> int:
    """Return the bytes of a panel of weights in floats."""
    return 4 * nv * g.block * g.depth


def widening_cycles(g: Geometry, nv: int, weights: Weights, target: Target) -> float:
    """Return the cycles to make floats of all of an image's weights, panel by panel."""
    far = widened_panel(g, nv) > target.machine.l1.size
    store = STORE + far * FAR_LINE * target.vector_bytes / CACHE_LINE
    return g.supers * g.mb * g.depth * (store + weights.widening(target))
