"""NormalizeBlocked: statistics in the lanes of channels, added up where channels share them.

Variances over pixels are computed by the corrected two-pass formula, as in vectors.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from atc.backends.cpu.normalize.portable import overwrites_operand, real
from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.render.epilogue import deferred_epilogue
from atc.backends.render.expr import address, literal
from atc.backends.render.loops import loop_names
from atc.backends.render.vector_epilogue import of_floats, vector_epilogue, vector_epilogue_lines
from atc.backends.render.vector_expr import FLOATS, LOADS, STORES, lanes
from atc.backends.target import Target
from atc.ir.graph import DType
from atc.ir.ops import Epilogue, NormalizeBlocked
from atc.ir.view import View, dense


class _Normalize(Kernel[NormalizeBlocked]):
    op = NormalizeBlocked
    portable = False
    dynamic = True
    single: bool

    def pixel(self, w: Workload[NormalizeBlocked]) -> str:
        """Return where a pixel lies along the last loop."""
        return _loops(w)[-1][0]

    def accepts(self, w: Workload[NormalizeBlocked], target: Target) -> bool:
        """Blocks as wide as vectors; results of 16 bits are finished in these."""
        op, y = w.op, w.outputs[0]
        fits = y.dtype is DType.FLOAT or vector_epilogue(op.epilogue, w, target, 1, FLOATS)
        return fits and op.single is self.single and y.shape[-1] == lanes(target) > 1

    def values(
        self, w: Workload[NormalizeBlocked], params: Params, target: Target
    ) -> dict[str, object]:
        """Extents, the formulas of mean and scale, and how a vector is finished."""
        op, shape = w.op, w.outputs[0].shape
        pixels = prod(shape[2:-1])
        size = op.count * (1 if op.single else pixels)
        epsilon = literal(op.epsilon, DType.FLOAT if op.single else DType.DOUBLE)
        return {
            "op": op, "batch": shape[0], "blocks": shape[1], "lanes": shape[-1], "pixels": pixels,
            "plane": pixels * shape[-1], "length": real(size), "short_length": real(size, True),
            "epsilon": epsilon, "centred": op.how == "Variance",
            "finish": self._finish(w, target), "load_x": LOADS[w.input(0).dtype],
            "store_y": STORES[w.outputs[0].dtype], "x_type": w.input(0).dtype.c,
            "y_type": w.outputs[0].dtype.c,
        }  # fmt: skip

    def _finish(self, w: Workload[NormalizeBlocked], target: Target) -> dict[str, object]:
        """Return how a vector `value` of block `b` and of a pixel becomes what is stored."""
        op = w.op
        if not vector_epilogue(op.epilogue, w, target, 1, FLOATS):
            return {"lines": (), "value": "value", "deferred": deferred_epilogue(op.epilogue, w)}
        epilogue, _ = _flattened(of_floats(op.epilogue), w.outputs[0].shape)
        pixel = [v for v, _ in _loops(w)[:-1]] + [self.pixel(w)]
        lines, value = vector_epilogue_lines(epilogue, "value", ["n", "b", *pixel, "0"], 1)
        return {"lines": lines, "value": value, "deferred": None}

    def in_place(self, w: Workload[NormalizeBlocked]) -> tuple[int, ...]:
        """x, which the last pass reads where it writes."""
        return overwrites_operand(w)


class NormalizeGroups(_Normalize):
    """Statistics of groups of channels over all pixels: instance, group and layer norms."""

    name = "normalize_groups"
    template = "cpu/normalize/normalize_groups.c.j2"
    single = False

    def scratch(self, w: Workload[NormalizeBlocked], params: Params, target: Target) -> int:
        """Three numbers for each channel of the blocks that are done together."""
        return 3 * 4 * _span(w) * w.outputs[0].shape[-1]

    def values(
        self, w: Workload[NormalizeBlocked], params: Params, target: Target
    ) -> dict[str, object]:
        """Loops over the pixels, and the blocks that whole groups fill."""
        common, loops = super().values(w, params, target), _loops(w)
        block = (*(n for _, n in loops), w.outputs[0].shape[-1])
        at = address(dense(block), [*(v for v, _ in loops), "0"])
        return common | {"span": _span(w), "loops": loops, "at": at}


class NormalizePixels(_Normalize):
    """Statistics of each pixel's channels: LayerNorm and RMSNorm along the channels of images."""

    name = "normalize_pixels"
    template = "cpu/normalize/normalize_pixels.c.j2"
    single = True

    def pixel(self, w: Workload[NormalizeBlocked]) -> str:
        """Behind the first one of a vector."""
        return "(first + k)"

    def scratch(self, w: Workload[NormalizeBlocked], params: Params, target: Target) -> int:
        """Two squares, to turn sums of lanes into sums of pixels, and two vectors of statistics."""
        lanes_ = w.outputs[0].shape[-1]
        return 4 * (2 * lanes_ + 2) * lanes_

    def values(
        self, w: Workload[NormalizeBlocked], params: Params, target: Target
    ) -> dict[str, object]:
        """Loops over the pixels, the last one over a run of them."""
        common, loops = super().values(w, params, target), _loops(w)
        run = loops[-1][1]
        begin = address(dense([n for _, n in loops]), [*(v for v, _ in loops[:-1]), "0"])
        row = f"{begin} + " if len(loops) > 1 else ""
        rest = w.op.channels % w.outputs[0].shape[-1]
        return common | {"loops": loops, "run": run, "row": row, "rest": rest}


def _flattened(epilogue: Epilogue, shape: Sequence[int]) -> tuple[Epilogue, tuple[int, ...]]:
    """Return an epilogue over [N, B, *spatial, b] that keeps the axes of pixels it needs."""
    batch, blocks, *pixels, block = shape
    kept = [pixels.pop()]
    steps = [[v.strides[-2]] for v in epilogue.views]
    for axis, extent in reversed(list(enumerate(pixels))):
        strides = [v.strides[axis + 2] for v in epilogue.views]
        if all(s == kept[0] * inner[0] for s, inner in zip(strides, steps, strict=True)):
            kept[0] *= extent
            continue
        kept.insert(0, extent)
        for s, inner in zip(strides, steps, strict=True):
            inner.insert(0, s)
    views = tuple(
        View((*v.strides[:2], *inner, v.strides[-1]), v.offset)
        for v, inner in zip(epilogue.views, steps, strict=True)
    )
    return Epilogue(epilogue.expr, views), (batch, blocks, *kept, block)


def _loops(w: Workload[NormalizeBlocked]) -> list[tuple[str, int]]:
    """Return the loops over pixels, as few as the epilogue allows."""
    _, shape = _flattened(w.op.epilogue, w.outputs[0].shape)
    return loop_names("p", shape[2:-1])


def _span(w: Workload[NormalizeBlocked]) -> int:
    """Return the least number of blocks that hold whole groups."""
    op, y = w.op, w.outputs[0]
    return min(op.group // gcd(op.group, y.shape[-1]), y.shape[1])


KERNELS = (NormalizeGroups(), NormalizePixels())
