"""Direct convolution of bytes in channel blocks: exact INT32 sums of u8 x s8, four at a time.

The tiles are those of the float kernel; a step multiplies four channels of a pixel, broadcast as
one word, by vectors of four weights a lane. Signed bytes are read as unsigned ones 128 larger; what
that and the zero point add to every sum is taken off where the sums start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise

import numpy as np

from atc.backends.cpu.conv_blocked import (
    NARROW,
    WIDE,
    Tile,
    cheapest,
    is_depthwise,
    tile_name,
    ungrouped,
)  # fmt: skip
from atc.backends.cpu.conv_cost import tile_cycles
from atc.backends.cpu.conv_epilogue import TileEpilogue
from atc.backends.cpu.conv_tile import (
    Axis,
    Geometry,
    cut_columns,
    geometry,
    panels,
    tile_count,
    tile_row_counts,
    tile_rows,
)  # fmt: skip
from atc.backends.cpu.vector_expr import lanes, typed_epilogue
from atc.backends.kernel import Kernel, Pack, Params, Workload
from atc.backends.target import Target
from atc.ir import Array, DType
from atc.ops import ConvBlocked

QUAD = 4
"""Channels whose products a step sums."""
LINE = 64
"""Bytes of a cache line."""


def conv_of_bytes(w: Workload) -> ConvBlocked | None:
    """Return the op of a workload that is a blocked convolution of bytes."""
    op = w.op
    return op if isinstance(op, ConvBlocked) and op.accumulator is DType.INT32 else None


def unsigned_zero(w: Workload, op: ConvBlocked) -> int:
    """Return the zero point of x, its bytes read as unsigned."""
    assert w.inputs[0] is not None
    return op.zero + (128 if w.inputs[0].dtype is DType.INT8 else 0)


def depth_words(g: Geometry) -> int:
    """Return the words of four weights that one output meets."""
    whole, rest = divmod(g.ic, g.block)
    return g.taps * (whole * g.block // QUAD + -(-rest // QUAD))


def pack_words(w: Array, g: Geometry, group: int, nv: int, zero: int) -> Array:
    """Return weights [M, C / group, *kernel] as bytes in the order in which the tiles read them.

    First the INT32 that each filter's sums start with, minus `zero` times the sum of its weights;
    then [supers][panel][input block][taps][word][vectors * block][4], zeros where nothing is.
    """
    dense = ungrouped(w, g, group)
    starts = -zero * dense.astype(np.int64).sum((2, 3))
    parts = [starts.astype(np.int32).reshape(-1).view(np.int8)]
    for filters in dense:
        for m, n in zip(range(0, g.mb, nv), panels(g.mb, nv), strict=True):
            panel = filters[m * g.block : (m + n) * g.block]
            for c in range(0, g.ic, g.block):
                part = panel[:, c : c + g.block]
                padded = np.pad(part, ((0, 0), (0, -part.shape[1] % QUAD), (0, 0)))
                words = padded.reshape(len(panel), -1, QUAD, g.taps)
                parts.append(words.transpose(3, 1, 0, 2).reshape(-1))
    return np.concatenate(parts)


class ConvBytes(Kernel):
    """Convolution of u8 or s8 by s8 with tiles of p pixels x nv vectors."""

    name = "conv_bytes"
    op = ConvBlocked
    template = "cpu/conv_bytes.c.j2"
    portable = False
    steady = True

    def accepts(self, w: Workload, target: Target) -> bool:
        """Known weights, blocks as wide as vectors; where taps meet padding, a zero point of 0."""
        op = conv_of_bytes(w)
        if op is None or not w.constant[1] or w.outputs[0].shape[-1] != lanes(target):
            return False
        wide = lanes(target) > 1 and lanes(target) % QUAD == 0 and op.window.rank <= 2
        if not wide or is_depthwise(w) or not typed_epilogue(op.epilogue, w, 2):
            return False
        g = geometry(w, 1)
        inside = all(_never_padded(a) for a in (g.rows, g.cols))
        return not g.plain and (inside or unsigned_zero(w, op) == 0)

    def parameters(self, w: Workload, target: Target) -> Sequence[Params]:
        """The most promising sets."""
        return cheapest(self, self.sets(w, target), w, target, 5)

    def sets(self, w: Workload, target: Target) -> list[Params]:
        """Return all parameter sets: tiles that fit the registers."""
        shapes = WIDE if target.vector_registers >= 32 else NARROW
        found: list[Params] = []
        for p, nv in shapes:
            if nv <= geometry(w, p).mb:
                found.append({"p": p, "nv": nv})
        return found

    def packs(self, w: Workload, params: Params, target: Target) -> Mapping[int, Pack]:
        """Weights in the order of use, behind what the sums start with."""
        op = w.op
        assert isinstance(op, ConvBlocked)
        g, nv = geometry(w, int(params["p"])), int(params["nv"])
        zero = unsigned_zero(w, op)
        return {1: lambda weights: pack_words(weights, g, op.group, nv, zero)}

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """The geometry, the tiles and the loops over them."""
        op = w.op
        assert isinstance(op, ConvBlocked)
        assert w.inputs[0] is not None
        p, nv = int(params["p"]), int(params["nv"])
        g = geometry(w, p)
        rows = tile_rows(g, p)
        columns = cut_columns(g.cols, p)
        widths = [(n, len(list(same))) for n, same in groupby(panels(g.mb, nv))]
        tiles = {
            (r, n, c): Tile(tile_name(r, n, c), r, n, c, g)
            for r in sorted({rows, 1}) for n, _ in widths for c in columns
        }  # fmt: skip
        named = {t.name: t for t in tiles.values()}
        firsts = [m for m, _ in pairwise((*range(0, g.mb, nv), g.mb))]
        return {
            "g": g, "rows": rows, "columns": columns, "tiles": list(named.values()),
            "groups": [(n, count, firsts[k * widths[0][1]]) for k, (n, count) in enumerate(widths)],
            "tile_of": lambda r, n, c: tiles[r, n, c].name, "interior": g.rows.interior,
            "bodies": _bodies(g), "words": depth_words(g), "quad": QUAD,
            "signed": w.inputs[0].dtype is DType.INT8, "element": w.inputs[0].dtype.c,
            "result": w.outputs[0].dtype.c, "started": unsigned_zero(w, op) != 0,
            "lines": _prefetched(g, p, nv), "share": _prefetched(g, p, nv) * LINE * _turns(g),
            "starts": g.supers * g.mb * g.block * 4,
            "epilogue": TileEpilogue(op.epilogue, w, g, target, DType.INT32),
        }  # fmt: skip

    def cost(self, w: Workload, params: Params, target: Target) -> float:
        """Estimated cycles."""
        p, nv = int(params["p"]), int(params["nv"])
        g = geometry(w, p)
        tiles = sum(
            c.count * tile_cycles(g, r, c.width, n, depth_words(g)) * times
            for n in panels(g.mb, nv)
            for c in cut_columns(g.cols, p)
            for r, times in tile_row_counts(g, p)
        )
        return g.batch * g.supers * tiles


def _never_padded(axis: Axis) -> bool:
    return axis.interior == (0, axis.out)


def _bodies(g: Geometry) -> list[dict[str, int]]:
    """Return the loops over input blocks: first block, how many, words in each."""
    whole, rest = divmod(g.ic, g.block)
    bodies = [{"first": 0, "count": whole, "steps": g.block // QUAD}] if whole else []
    if rest:
        bodies.append({"first": whole, "count": 1, "steps": -(-rest // QUAD)})
    return bodies


def _turns(g: Geometry) -> int:
    """Return how often a tile meets a block of input channels under a tap."""
    return g.icb * g.taps


def _prefetched(g: Geometry, p: int, nv: int) -> int:
    """Return the lines of the next panel that each turn prefetches; 0 where tiles are many."""
    share = nv * g.block * g.block / LINE / tile_count(g, p)
    return -(-nv * g.block * g.block // (LINE * tile_count(g, p))) if share > 0.2 else 0


KERNELS = (ConvBytes(),)
