"""CUDA kernels of Softmax and Normalize: a block for each row, sums in double."""

from __future__ import annotations

from math import prod

import numpy as np

from atc.backends.cuda.kernel import RowKernel, unravel
from atc.backends.kernel import Params, Workload
from atc.backends.render.expr import literal
from atc.backends.render.loops import epilogue_lines, loop_names
from atc.backends.target import Target
from atc.dims import Dim
from atc.ir.graph import DType
from atc.ir.ops import Normalize, Softmax


def lowest(dtype: DType) -> str:
    """Return the lowest finite number: minus infinity less it is minus infinity, not NaN."""
    wide = dtype is DType.DOUBLE
    return literal(float(np.finfo(np.float64 if wide else np.float32).min), dtype)


def _in_place(w: Workload) -> tuple[int, ...]:
    """Return (0,) if the result may overwrite x: same type, and no other operand is x."""
    x = w.input(0)
    return (0,) if w.outputs[0].dtype is x.dtype and x not in w.inputs[1:] else ()


class SoftmaxRows(RowKernel[Softmax]):
    """Softmax and LogSoftmax: maximum, sum of exponentials, results."""

    name = "cuda_softmax"
    op = Softmax
    template = "cuda/normalize/softmax.cu.j2"
    dynamic = True

    def rows(self, w: Workload[Softmax]) -> int:
        """Return the number of rows along the axis."""
        op = w.op
        return op.outer * op.inner

    def values(self, w: Workload[Softmax], params: Params, target: Target) -> dict[str, object]:
        """Return the formulas of each pass."""
        op, x = w.op, w.input(0)
        rows = [("o", op.outer), ("i", op.inner)]
        after, value = epilogue_lines(op.epilogue, w, "value", ["o", "k", "i"], 1)
        exp = "exp" if x.dtype is DType.DOUBLE else "expf"
        row = f"o * {op.axis} + k"
        place = row if op.inner == 1 else f"({row}) * {op.inner} + i"
        last = "log(total[0])" if op.log else "1 / total[0]"
        if op.masked:
            last = "total[0] == 0 ? 0 : 1 / total[0]"
        result = f"x0[{place}] - maximum - ({x.dtype.c})last"
        if not op.log:
            result = f"{exp}(x0[{place}] - maximum) * ({x.dtype.c})last"
        return {
            "op": op, "count": self.rows(w), "indices": unravel("at", rows), "type": x.dtype.c,
            "place": place, "exponential": f"{exp}(x0[{place}] - maximum)",
            "start": lowest(x.dtype) if op.masked else "-INFINITY", "last": last,
            "result": result, "after": after, "value": value,
        }  # fmt: skip

    def in_place(self, w: Workload[Softmax]) -> tuple[int, ...]:
        """x, which the last pass reads only where it writes."""
        return _in_place(w)


class NormalizeRows(RowKernel[Normalize]):
    """Normalize, the variance in two passes around the mean."""

    name = "cuda_normalize"
    op = Normalize
    template = "cuda/normalize/normalize.cu.j2"
    dynamic = True

    def rows(self, w: Workload[Normalize]) -> int:
        """Return the number of rows that are normalized, each with statistics of its own."""
        op = w.op
        return prod(op.outer) * prod(op.inner)

    def values(self, w: Workload[Normalize], params: Params, target: Target) -> dict[str, object]:
        """Loops and formulas."""
        op, x = w.op, w.input(0)
        length, inner = prod(op.axis), prod(op.inner)
        rows = [*loop_names("o", op.outer), *loop_names("i", op.inner)]
        steps = loop_names("k", op.axis)
        names = [v for v, _ in (*rows[: len(op.outer)], *steps, *rows[len(op.outer) :])]
        after, value = epilogue_lines(op.epilogue, w, "value", names, 1)
        return {
            "op": op, "count": self.rows(w), "indices": unravel("at", rows),
            "steps": unravel("step", steps), "length": length, "elements": _real(length),
            "type": x.dtype.c,
            "place": f"at * {length} + step" if inner == 1 else (
                f"(at / {inner or 1} * {length} + step) * {inner} + at % {inner or 1}"),
            "centred": op.how == "Variance", "scale": _scale(op, x.dtype),
            "statistics": len(w.outputs) > 1, "after": after, "value": value,
        }  # fmt: skip

    def in_place(self, w: Workload[Normalize]) -> tuple[int, ...]:
        """x, which the last pass reads only where it writes."""
        return _in_place(w)


def _scale(op: Normalize, dtype: DType) -> str:
    """Return the C of the factor of the centred elements."""
    match op.how:
        case "L1":
            return f"total[0] == 0 ? 0 : ({dtype.c})(1 / total[0])"
        case "L2":
            return f"total[0] == 0 ? 0 : ({dtype.c})(1 / sqrt(total[0]))"
        case _:
            epsilon = literal(op.epsilon, DType.DOUBLE)
            return f"({dtype.c})(1 / sqrt(total[0] / {_real(prod(op.axis))} + {epsilon}))"


def _real(extent: int) -> str:
    """Return an extent as a C double."""
    return f"(double){extent}" if isinstance(extent, Dim) else f"{extent}.0"


KERNELS = (SoftmaxRows(), NormalizeRows())
