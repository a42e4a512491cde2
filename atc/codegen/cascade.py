"""Write a cascade: the loop over its stripes, with a table of the rows of each call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from atc.backends.kernel import stripe_names
from atc.ir.graph import TensorType
from atc.program.steps import Call, CascadeLoop

_COLUMNS = ("begin", "end", "x_first", "y_first")
"""The columns of the table, named like the kernels' parameters."""


def row_arguments(call: Call, number: int) -> list[str]:
    """Return the last arguments of call `number` of a loop: the rows that it computes."""
    names = stripe_names(call.choice.candidate.params)
    return [f"r[{number}][{_COLUMNS.index(name)}]" for name in names]


def cascade_loop(
    step: CascadeLoop, types: Mapping[str, TensorType], kept: Sequence[str],
    calls: Sequence[Sequence[str]],
) -> Iterator[str]:  # fmt: skip
    """Yield the table and the loop. `calls` are their lines, `kept` the pointers of all but one."""
    yield "static const ptrdiff_t rows[][4] = { /* begin, end; first row in memory of x, of y */"
    for stripe in step.stripes:
        own = (f"{{{t.begin}, {t.end}, {t.x_first}, {t.y_first}}}" for t in stripe)
        yield f"  {', '.join(own)},"
    yield "};"
    size = len(calls)
    end = f"rows + {size * len(step.stripes)}"
    yield f"for (const ptrdiff_t (*r)[4] = rows; r < {end}; r += {size}) {{"
    for k, pointer in enumerate(kept):
        type_ = types[step.calls[k].node.outputs[0]]
        yield f"  if (r > rows) shift_rolling_buffer({pointer}, {_moved(type_, k, size)});"
    yield from (f"  {line}" for lines in calls for line in lines)
    yield "}"


def _moved(type_: TensorType, k: int, size: int) -> str:
    """Return the C of the rows of result `k` that are moved as the next call reads them, too."""
    row = type_.nbytes // prod(type_.shape[:3])
    begin, first, before = f"r[{k}][0]", f"r[{k}][3]", f"r[{k - size}][3]"
    planes = f"{prod(type_.shape[:2])}, {type_.shape[2] * row}, {row}"
    return f"{planes}, {first} - {before}, {begin} - {first}"
