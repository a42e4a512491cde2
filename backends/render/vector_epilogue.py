"""Epilogues in the vector vocabulary: what they can be, and their C."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from atc.backends.kernel import Workload
from atc.backends.render.vector_expr import (
    lanes,
    readable,
    readable_typed,
    render_vector,
    stored,
    vector_reader,
    vectorisable,
)
from atc.backends.target import Target
from atc.ir.expr import operands_of
from atc.ir.graph import DType
from atc.ir.ops import Epilogue


def typed_epilogue(epilogue: Epilogue, w: Workload, first: int) -> bool:
    """Return whether an epilogue over floats, bytes and INT32 sums can be computed in vectors."""
    value = stored(epilogue.expr)
    fits = value is not None and vectorisable(value)
    return fits and readable_typed(epilogue.views, w.inputs[first:])


def vector_epilogue(
    epilogue: Epilogue, w: Workload, target: Target, first: int,
    results: Container[DType] = (DType.FLOAT,),
) -> bool:  # fmt: skip
    """Return whether vectors can compute an epilogue whose operands start at input `first`, and
    whose results are of one of the types `results`: floats, or 16 bits of them."""
    value = stored(epilogue.expr) if w.outputs[0].dtype in results else None
    computed = value is not None and lanes(target) > 1 and vectorisable(value)
    return computed and readable(epilogue.views, w.inputs[first:])


def of_floats(epilogue: Epilogue) -> Epilogue:
    """Return an epilogue up to the floats that storing its results rounds, if it does."""
    return replace(epilogue, expr=stored(epilogue.expr) or epilogue.expr)


def epilogue_types(epilogue: Epilogue) -> list[DType]:
    """Return the types of an epilogue's operands, of those that it doesn't read FLOAT."""
    types = {i.index: i.dtype for i in operands_of(epilogue.expr)}
    return [types.get(k, DType.FLOAT) for k in range(1, len(epilogue.views) + 1)]


def vector_epilogue_lines(
    epilogue: Epilogue, result: str, indices: Sequence[str], first: int, count: str = ""
) -> tuple[list[str], str]:  # fmt: skip
    """Return the lines and the vector to be stored of an epilogue applied to the vector `result`.

    The epilogue's operands start at input `first`; `indices` run over the output, the last one is
    where the vector begins.
    """
    read = vector_reader(epilogue.views, indices, first, count, epilogue_types(epilogue))
    return render_vector(epilogue.expr, lambda k: result if k == 0 else read(k - 1), "e")
