"""Portable kernels of Softmax and Normalize: sums in double, and only then a rounded result.

Each comes for contiguous rows (inner = 1) and for columns, whose statistics take a row of scratch.
"""

from __future__ import annotations

from math import prod

import numpy as np

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.render.expr import address, literal, load
from atc.backends.render.loops import epilogue_lines, loop_names
from atc.backends.target import Target
from atc.dims import Dim
from atc.ir.graph import DType
from atc.ir.ops import Normalize, Softmax
from atc.ir.view import dense


def overwrites_operand(w: Workload) -> tuple[int, ...]:
    """Return (0,) where the result may take x's place: same element, and no other operand is x."""
    x = w.input(0)
    return (0,) if w.outputs[0].dtype is x.dtype and x not in w.inputs[1:] else ()


class SoftmaxRows(Kernel[Softmax]):
    """Softmax and LogSoftmax of contiguous rows: maximum, exponentials with their sum, result."""

    name = "softmax_rows"
    op = Softmax
    template = "cpu/normalize/softmax.c.j2"
    dynamic = True
    by_column = False
    """Whether it computes all columns of a matrix at once."""

    def accepts(self, w: Workload[Softmax], target: Target) -> bool:
        """Rows must be contiguous."""
        return w.op.inner == 1

    def scratch(self, w: Workload[Softmax], params: Params, target: Target) -> int:
        """Reserve room for the exponentials where y can't hold them."""
        op, computed = w.op, w.input(0).dtype.computed
        kept = op.log or w.outputs[0].dtype is computed
        return 0 if kept else op.axis * op.inner * computed.itemsize

    def values(self, w: Workload[Softmax], params: Params, target: Target) -> dict[str, object]:
        """Return the formulas of each pass."""
        op, x = w.op, w.input(0).dtype
        computed, (at, place) = x.computed, names_of(self.by_column)
        type_, element = computed.c, load(x, f"x[{place}]")
        final = f"k * {op.inner} + i" if self.by_column else "k"
        result = f"e[{final}] * ({type_})total{at}"
        if op.log:
            result = f"{load(x, f'x[{final}]')} - maximum{at} - ({type_})total{at}"
        after, value = epilogue_lines(op.epilogue, w, "value", ["o", "k", "i" if at else "0"], 1)
        exp = "exp" if x is DType.DOUBLE else "expf"
        return {
            "op": op, "type": type_, "by_column": self.by_column, "at": at, "place": place,
            "stored": x.c, "element": element,
            "each": [("i", op.inner)] * self.by_column, "final": final,
            "exponential": f"{exp}({element} - maximum{at})",
            "store": "" if op.log else self._store(w),
            "start": lowest(computed) if op.masked else "-INFINITY",
            "last": _last(op, f"total{at}", single(target, computed)),
            "single": single(target, computed),
            "result": result, "after": after, "value": value,
        }  # fmt: skip

    def _store(self, w: Workload[Softmax]) -> str:
        """Return the C address of the exponentials of row `o`."""
        op, computed = w.op, w.input(0).dtype.computed
        if w.outputs[0].dtype is computed:
            return f"y0 + o * {op.axis * op.inner}"
        return "scratch" if op.inner == 1 else f"maximum + {op.inner}"

    def in_place(self, w: Workload[Softmax]) -> tuple[int, ...]:
        """x, which each pass reads where it then writes."""
        return overwrites_operand(w)


def names_of(by_column: bool) -> tuple[str, str]:
    """Return what C appends to the names of statistics, and an element's place in the passes."""
    return ("[i]", "k + i") if by_column else ("", "k")


def lowest(dtype: DType) -> str:
    """Return the lowest finite number, from which even minus infinity is infinitely far."""
    wide = dtype is DType.DOUBLE
    return literal(float(np.finfo(np.float64 if wide else np.float32).min), dtype)


def single(target: Target, dtype: DType) -> bool:
    """Return whether sums over a type are kept in compensated floats, not in double."""
    return target.own_math and dtype is not DType.DOUBLE


def _last(op: Softmax, total: str, as_float: bool) -> str:
    """Return what becomes of the sum before it is applied; that of a masked row is 0."""
    if op.log:
        return f"{'logf' if as_float else 'log'}({total})"
    return f"{total} == 0 ? 0 : 1 / {total}" if op.masked else f"1 / {total}"


class SoftmaxColumns(SoftmaxRows):
    """The same down columns, all columns of a matrix at once."""

    name = "softmax_columns"
    by_column = True

    def accepts(self, w: Workload[Softmax], target: Target) -> bool:
        """Any."""
        return w.op.inner != 1

    def scratch(self, w: Workload[Softmax], params: Params, target: Target) -> int:
        """Reserve a row of maxima and one of sums besides."""
        statistics = 8 + w.input(0).dtype.computed.itemsize
        return w.op.inner * statistics + super().scratch(w, params, target)


class NormalizeRows(Kernel[Normalize]):
    """Normalize of contiguous rows, the variance in two passes around the mean."""

    name = "normalize_rows"
    op = Normalize
    template = "cpu/normalize/normalize.c.j2"
    dynamic = True
    by_column = False
    """Whether it computes all columns of a matrix at once."""

    def accepts(self, w: Workload[Normalize], target: Target) -> bool:
        """Rows must be contiguous."""
        return prod(w.op.inner) == 1

    def values(self, w: Workload[Normalize], params: Params, target: Target) -> dict[str, object]:
        """Loops and formulas."""
        op, x = w.op, w.input(0).dtype
        outer = loop_names("o", op.outer)
        inner = loop_names("i", op.inner)
        as_float, computed = single(target, x.computed), x.computed
        nest = (*loop_names("k", op.axis), *inner)
        indices = [v for v, _ in (*outer, *nest)]
        at, place = names_of(self.by_column)
        last = f"[{address(dense(op.inner), [v for v, _ in inner])}]" if self.by_column else ""
        target_ = address(dense(op.loops), indices)
        centred = op.how == "Variance"
        after, value = epilogue_lines(op.epilogue, w, "value", indices, 1)
        final = load(x, f"x0[{target_}]")
        result = f"({final} - centre{last})" if centred else final
        element = load(x, f"x[{place}]")
        return {
            "op": op, "type": computed.c, "stored": x.c, "element": element, "size": prod(op.axis),
            "length": real(prod(op.axis), as_float), "single": as_float, "columns": prod(op.inner),
            "by_column": self.by_column, "each": [("i", prod(op.inner))] * self.by_column,
            "at": at, "place": place,
            "outer": outer, "inner": nest, "statistics": len(w.outputs) > 1, "centred": centred,
            "row": address(dense(op.outer), [v for v, _ in outer]),
            "term": (f"{element} * unit{at}" if as_float else element)
                    + _centre(at, as_float) * centred,
            "unit": _unit(op),
            "scale": scale_of(op, computed, f"total{at}", f"unit{at}" * as_float),
            "result": f"{result} * scale{last}", "after": after, "value": value,
            "target": target_,
        }  # fmt: skip

    def in_place(self, w: Workload[Normalize]) -> tuple[int, ...]:
        """x, which the last pass reads where it writes."""
        return overwrites_operand(w)


def real(extent: int, as_float: bool = False) -> str:
    """Return an extent as a C double, or float."""
    type_ = "float" if as_float else "double"
    suffix = "f" if as_float else ""
    return f"({type_}){extent}" if isinstance(extent, Dim) else f"{extent}.0{suffix}"


def _centre(at: str, as_float: bool) -> str:
    """Return what is taken from an element before it is squared."""
    return f" - mean{at} - shift{at}" if as_float else f" - mean{at}"


def _unit(op: Normalize) -> str:
    """Return a power of two times which elements have squares in a float's range, by the largest.

    It is 1 but for the very large, and for the very small where no epsilon is larger than those.
    """
    tiny = op.how == "L2" or (op.how != "L1" and not op.epsilon)
    rest = "most < 0x1p-40f ? 0x1p80f : 1.0f" if tiny else "1.0f"
    return f"most > 0x1p48f ? 0x1p-96f : {rest}"


def scale_of(op: Normalize, dtype: DType, total: str, unit: str = "") -> str:
    """Return the C value that the centred elements are multiplied by.

    `unit` is what the total is made of floats in, '' where it is in double.
    """
    as_float = bool(unit)
    cast, root = ("", "sqrtf") if as_float else (f"({dtype.c})", "sqrt")
    one = unit or "1"
    match op.how:
        case "L1":
            return f"{total} == 0 ? 0 : {cast}({one} / {total})"
        case "L2":
            return f"{total} == 0 ? 0 : {cast}({one} / {root}({total}))"
        case _:
            epsilon = literal(op.epsilon, DType.FLOAT if as_float else DType.DOUBLE)
            length = real(prod(op.axis), as_float)
            epsilon += f" * ({unit} * {unit})" * bool(unit and op.epsilon)
            return f"{cast}({one} / {root}({total} / {length} + {epsilon}))"


class NormalizeColumns(NormalizeRows):
    """The same down columns, all columns of a matrix at once."""

    name = "normalize_columns"
    by_column = True

    def accepts(self, w: Workload[Normalize], target: Target) -> bool:
        """Several columns."""
        return prod(w.op.inner) != 1

    def scratch(self, w: Workload[Normalize], params: Params, target: Target) -> int:
        """Two statistics per column, in double and as they are applied; in floats, units too."""
        op, computed = w.op, w.input(0).dtype.computed
        return prod(op.inner) * (16 + (2 + single(target, computed)) * computed.itemsize)


KERNELS = (SoftmaxRows(), SoftmaxColumns(), NormalizeRows(), NormalizeColumns())
