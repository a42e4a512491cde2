"""Softmax and Normalize in vectors: along contiguous rows, or V_LANES columns at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from atc.backends.cpu.map.reduce import LoopSlice, loop_slices
from atc.backends.cpu.normalize.portable import lowest, overwrites_operand, real, scale_of
from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.render.expr import address
from atc.backends.render.loops import loop_names
from atc.backends.render.vector_epilogue import of_floats, vector_epilogue, vector_epilogue_lines
from atc.backends.render.vector_expr import FLOATS, LOADS, STORES, lanes
from atc.backends.target import Target
from atc.dims import max_value
from atc.ir.graph import DType
from atc.ir.ops import Epilogue, Normalize, Softmax
from atc.ir.view import View, dense


def _without_last_loop(epilogue: Epilogue) -> Epilogue:
    """Return an epilogue over (outer, axis, 1) as one over (outer, axis)."""
    views = tuple(View(v.strides[:2], v.offset) for v in epilogue.views)
    return replace(epilogue, views=views)


Part = tuple[LoopSlice, str, Sequence[str], str]
"""A stretch of a loop, where its vectors begin, and the lines and the value of their epilogue."""


def _finished(
    epilogue: Epilogue, result: str, indices: Sequence[str], stretches: Sequence[LoopSlice], at: str
) -> list[Part]:
    """Return the epilogue at the whole vectors of a loop, which begin at `at`, and at the rest."""
    parts: list[Part] = []
    for s in stretches:
        place = str(s.first) if s.count else at
        lines, value = vector_epilogue_lines(
            of_floats(epilogue), result, [*indices, place], 1, str(s.count or "")
        )
        parts.append((s, place, lines, value))
    return parts


class SoftmaxVectors(Kernel[Softmax]):
    """Softmax and LogSoftmax in vectors, in the passes of SoftmaxRows."""

    op = Softmax
    approximate = True
    portable = False
    dynamic = True
    by_column = False
    """Whether vectors are of columns, each of which keeps its statistics."""

    def extent(self, op: Softmax) -> int:
        """Return the elements of the loop that is made vectors of."""
        return op.inner if self.by_column else op.axis

    def epilogue(self, op: Softmax) -> Epilogue:
        """Return the epilogue over loops of which that is the last."""
        return op.epilogue if self.by_column else _without_last_loop(op.epilogue)

    def accepts(self, w: Workload[Softmax], target: Target) -> bool:
        """Floats, or 16 bits of them, half a vector or more."""
        op = w.op
        if (op.inner != 1) is not self.by_column or w.input(0).dtype not in FLOATS:
            return False
        wide = 2 * max_value(self.extent(op)) >= lanes(target)
        return wide and vector_epilogue(self.epilogue(op), w, target, 1, FLOATS)

    def kept(self, w: Workload[Softmax], target: Target) -> int:
        """Return how many exponentials are kept in scratch at a time; 0 where y holds them."""
        op, held = w.op, w.outputs[0].dtype is DType.FLOAT
        return 0 if op.log or held else op.axis * (lanes(target) if self.by_column else 1)

    def scratch(self, w: Workload[Softmax], params: Params, target: Target) -> int:
        """Reserve room for the exponentials where y can't hold them; reads fill whole vectors."""
        kept, step = self.kept(w, target), lanes(target)
        return 4 * (-(-kept // step) * step)

    def values(self, w: Workload[Softmax], params: Params, target: Target) -> dict[str, object]:
        """Whole vectors and the rest."""
        op = w.op
        outer, at = (["o", "k"], "i") if self.by_column else (["o"], "k")
        stretches = loop_slices(self.extent(op), lanes(target), 1)
        last = "value" if op.log else "v_mul(value, scale)"
        return {
            "op": op, "parts": _finished(self.epilogue(op), last, outer, stretches, at),
            "start": lowest(DType.FLOAT) if op.masked else "-INFINITY", "store": not op.log,
            "load_x": LOADS[w.input(0).dtype], "store_y": STORES[w.outputs[0].dtype],
            "x_type": w.input(0).dtype.c, "y_type": w.outputs[0].dtype.c,
            "kept": bool(self.kept(w, target)),
        }  # fmt: skip

    def in_place(self, w: Workload[Softmax]) -> tuple[int, ...]:
        """x, which each pass reads where it then writes."""
        return overwrites_operand(w)


class SoftmaxRowVectors(SoftmaxVectors):
    """That of contiguous rows."""

    name = "softmax_rows_simd"
    template = "cpu/normalize/softmax_rows_vectors.c.j2"


class SoftmaxColumnVectors(SoftmaxVectors):
    """That down columns."""

    name = "softmax_columns_simd"
    template = "cpu/normalize/softmax_columns_vectors.c.j2"
    by_column = True


class NormalizeRowVectors(Kernel[Normalize]):
    """Normalize of contiguous rows: sums in lanes, the variance by the corrected two-pass formula.

    The second pass also sums the differences, which corrects the mean and the variance for what
    rounding did to the first (Chan, Golub and LeVeque 1983).
    """

    name = "normalize_rows_simd"
    op = Normalize
    template = "cpu/normalize/normalize_rows_vectors.c.j2"
    portable = False
    dynamic = True

    def accepts(self, w: Workload[Normalize], target: Target) -> bool:
        """Floats, or 16 bits of them, in rows whose innermost loop fills half a vector or more."""
        op = w.op
        if prod(op.inner) != 1 or op.inner or w.input(0).dtype not in FLOATS:
            return False
        wide = bool(op.axis) and 2 * max_value(op.axis[-1]) >= lanes(target)
        return wide and vector_epilogue(op.epilogue, w, target, 1, FLOATS)

    def values(self, w: Workload[Normalize], params: Params, target: Target) -> dict[str, object]:
        """Loops, whole vectors and the rest of the row and of its innermost loop."""
        op = w.op
        outer, axis = loop_names("o", op.outer), loop_names("k", op.axis[:-1])
        names = [v for v, _ in (*outer, *axis)]
        size, step = prod(op.axis), lanes(target)
        stretches = loop_slices(op.axis[-1], step, 1)
        parts = [
            (s, address(dense(op.loops), [*names, at]), lines, value)
            for s, at, lines, value in _finished(op.epilogue, "value", names, stretches, "k")
        ]
        return {
            "op": op, "size": size, "length": real(size), "short_length": real(size, True),
            "flat": loop_slices(size, step, 1), "outer": outer, "inner": axis, "parts": parts,
            "row": address(dense(op.outer), [v for v, _ in outer]),
            "statistics": len(w.outputs) > 1, "centred": op.how == "Variance",
            "scale": scale_of(op, DType.FLOAT, "total"), "x_type": w.input(0).dtype.c,
            "load_x": LOADS[w.input(0).dtype], "store_y": STORES[w.outputs[0].dtype],
        }  # fmt: skip

    def in_place(self, w: Workload[Normalize]) -> tuple[int, ...]:
        """x, which the last pass reads where it writes."""
        return overwrites_operand(w)


KERNELS = (SoftmaxRowVectors(), SoftmaxColumnVectors(), NormalizeRowVectors())
