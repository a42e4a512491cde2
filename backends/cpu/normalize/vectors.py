"""Softmax and Normalize in vectors: along contiguous rows, or V_LANES columns at a time."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from atc.backends.cpu.normalize.portable import lowest, overwrites_operand, real
from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.render.expr import address, literal
from atc.backends.render.loops import loop_names
from atc.backends.render.vector_expr import lanes, vector_epilogue, vector_epilogue_lines
from atc.backends.target import Target
from atc.dims import Dim, max_value
from atc.ir.graph import DType
from atc.ir.ops import Epilogue, Normalize, Softmax
from atc.ir.view import View, dense


def _without_last_loop(epilogue: Epilogue) -> Epilogue:
    """Return an epilogue over (outer, axis, 1) as one over (outer, axis)."""
    views = tuple(View(v.strides[:2], v.offset) for v in epilogue.views)
    return replace(epilogue, views=views)


def _finished(
    epilogue: Epilogue, result: str, indices: list[str], whole: int, rest: int, at: str
) -> tuple[dict[str, object], dict[str, object]]:
    """Return the epilogue at a whole vector, which begins at `at`, and at the rest of a row."""
    parts: list[dict[str, object]] = []
    for place, count in ((at, ""), (str(whole), str(rest))):
        lines, value = vector_epilogue_lines(epilogue, result, [*indices, place], 1, count)
        parts.append({"at": place, "count": count, "lines": lines, "value": value})
    return parts[0], parts[1]


def _start(op: Softmax) -> str:
    """Return what the maximum starts with."""
    return lowest(DType.FLOAT) if op.masked else "-INFINITY"


class SoftmaxRowVectors(Kernel[Softmax]):
    """Softmax and LogSoftmax of contiguous rows, in the passes of SoftmaxRows."""

    name = "softmax_rows_simd"
    op = Softmax
    template = "cpu/normalize/softmax_rows_vectors.c.j2"
    approximate = True
    portable = False
    dynamic = True

    def accepts(self, w: Workload[Softmax], target: Target) -> bool:
        """Floats, rows of half a vector or more."""
        op = w.op
        wide = op.inner == 1 and 2 * max_value(op.axis) >= lanes(target)
        if not wide or w.input(0).dtype is not DType.FLOAT:
            return False
        return vector_epilogue(_without_last_loop(op.epilogue), w, target, 1)

    def values(self, w: Workload[Softmax], params: Params, target: Target) -> dict[str, object]:
        """Whole vectors and the rest of a row."""
        op = w.op
        whole = op.axis // lanes(target) * lanes(target)
        rest = op.axis - whole
        last = "value" if op.log else "v_mul(value, scale)"
        body, tail = _finished(_without_last_loop(op.epilogue), last, ["o"], whole, rest, "k")
        return {
            "op": op, "whole": whole, "rest": rest, "body": body, "tail": tail,
            "start": _start(op), "store": not op.log,
        }  # fmt: skip

    def in_place(self, w: Workload[Softmax]) -> tuple[int, ...]:
        """x, which each pass reads where it then writes."""
        return overwrites_operand(w)


class SoftmaxColumnVectors(Kernel[Softmax]):
    """Softmax and LogSoftmax down columns: each vector of columns keeps its statistics."""

    name = "softmax_columns_simd"
    op = Softmax
    template = "cpu/normalize/softmax_columns_vectors.c.j2"
    approximate = True
    portable = False
    dynamic = True

    def accepts(self, w: Workload[Softmax], target: Target) -> bool:
        """Floats, half a vector of columns or more."""
        op = w.op
        wide = op.inner != 1 and 2 * max_value(op.inner) >= lanes(target)
        floats = w.input(0).dtype is DType.FLOAT
        return wide and floats and vector_epilogue(op.epilogue, w, target, 1)

    def values(self, w: Workload[Softmax], params: Params, target: Target) -> dict[str, object]:
        """Whole vectors of columns and the rest."""
        op = w.op
        whole = op.inner // lanes(target) * lanes(target)
        rest = op.inner - whole
        last = "value" if op.log else "v_mul(value, scale)"
        body, tail = _finished(op.epilogue, last, ["o", "k"], whole, rest, "i")
        parts = [body] * (whole != 0) + [tail] * (rest != 0)
        return {
            "op": op, "whole": whole, "parts": parts, "start": _start(op), "store": not op.log,
        }  # fmt: skip

    def in_place(self, w: Workload[Softmax]) -> tuple[int, ...]:
        """x, which each pass reads where it then writes."""
        return overwrites_operand(w)


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
        """Floats, rows whose innermost loop fills half a vector or more."""
        op = w.op
        if prod(op.inner) != 1 or op.inner or w.input(0).dtype is not DType.FLOAT:
            return False
        wide = bool(op.axis) and 2 * max_value(op.axis[-1]) >= lanes(target)
        return wide and vector_epilogue(op.epilogue, w, target, 1)

    def values(self, w: Workload[Normalize], params: Params, target: Target) -> dict[str, object]:
        """Loops, whole vectors and the rest of the row and of its innermost loop."""
        op = w.op
        outer, axis = loop_names("o", op.outer), loop_names("k", op.axis[:-1])
        names = [v for v, _ in (*outer, *axis)]
        size, step, last = prod(op.axis), lanes(target), op.axis[-1]
        whole = last // step * step
        body, tail = _finished(op.epilogue, "value", names, whole, last - whole, "k")
        for part in (body, tail):
            part["place"] = address(dense(op.loops), [*names, str(part["at"])])
        return {
            "op": op, "size": size, "length": real(size), "short_length": _float(size),
            "flat": size // step * step, "flat_rest": size % step,
            "outer": outer, "inner": axis, "whole": whole, "rest": last - whole, "body": body,
            "tail": tail, "row": address(dense(op.outer), [v for v, _ in outer]),
            "statistics": len(w.outputs) > 1, "centred": op.how == "Variance",
            "scale": _scale(op),
        }  # fmt: skip

    def in_place(self, w: Workload[Normalize]) -> tuple[int, ...]:
        """x, which the last pass reads where it writes."""
        return overwrites_operand(w)


def _float(extent: int) -> str:
    return f"(float){extent}" if isinstance(extent, Dim) else f"{extent}.0f"


def _scale(op: Normalize) -> str:
    """Return the C value of the scale, from the sum of squares (L1: of absolute values)."""
    match op.how:
        case "L1":
            return "total == 0 ? 0 : (float)(1 / total)"
        case "L2":
            return "total == 0 ? 0 : (float)(1 / sqrt(total))"
        case _:
            epsilon = literal(op.epsilon, DType.DOUBLE)
            return f"(float)(1 / sqrt(total / {real(prod(op.axis))} + {epsilon}))"


KERNELS = (SoftmaxRowVectors(), SoftmaxColumnVectors(), NormalizeRowVectors())
