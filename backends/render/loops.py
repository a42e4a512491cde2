"""Loop nests in C: how operands are read through views, and epilogues applied to a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from atc.backends.kernel import Workload
from atc.backends.render.expr import address, load, render_expr, store
from atc.ir.graph import DType
from atc.ir.ops.elementwise import Epilogue
from atc.ir.view import View


def reader(
    views: Sequence[View],
    dtypes: Sequence[DType | None],
    indices: Sequence[str],
    first: int = 0,
) -> Callable[[int], str]:
    """Return how Input(k) reads operand `first + k`; beyond the operands it is a coordinate."""

    def read(k: int) -> str:
        place = address(views[k], indices)
        dtype = dtypes[k] if k < len(dtypes) else None
        if dtype is None:
            return f"(int64_t)({place})"
        return load(dtype, f"x{first + k}[{place}]")

    return read


def loop_names(prefix: str, extents: Sequence[int]) -> list[tuple[str, int]]:
    """Return (variable, extent) of a nest: i0, i1, ..."""
    return [(f"{prefix}{d}", n) for d, n in enumerate(extents)]


def epilogue_lines(
    epilogue: Epilogue, w: Workload, result: str, indices: Sequence[str], first: int,
    rounding: str = "rintf",
) -> tuple[list[str], str]:  # fmt: skip
    """Return the lines and the stored value of an epilogue applied to the C value `result`.

    The epilogue's operands start at input `first`; `indices` run over the output. `rounding` is the
    function that rounds floats.
    """
    dtypes = [t.dtype if t else None for t in w.inputs[first:]]
    operand = reader(epilogue.views, dtypes, indices, first)
    read = lambda k: result if k == 0 else operand(k - 1)  # noqa: E731
    lines, value = render_expr(epilogue.expr, read, "e", rounding)
    return lines, store(w.outputs[0].dtype, value)
