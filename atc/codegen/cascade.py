"""Write a cascade: the loop over its stripes, with a table of the rows of each call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from atc.backends.kernel import stripe_names
from atc.ir.graph import TensorType
from atc.program.steps import CascadeLoop


def row_arguments(step: CascadeLoop, number: int) -> list[str]:
    """Return the last arguments of call `number` of a loop: the rows that it computes."""
    own = _rows(step, number)
    return [own[name] for name in stripe_names(step.calls[number].choice.candidate.params)]


def rolls(step: CascadeLoop, number: int) -> bool:
    """Return whether rows of result `number` are moved to the begin of its buffer."""
    if number == len(step.calls) - 1:
        return False  # it is all there
    return any(stripe[number].y_first < stripe[number].begin for stripe in step.stripes[1:])


def cascade_loop(
    step: CascadeLoop, types: Mapping[str, TensorType], kept: Mapping[int, str],
    calls: Sequence[Sequence[str]],
) -> Iterator[str]:  # fmt: skip
    """Yield the table and the loop of calls' lines; `kept` are pointers to results that roll."""
    body = [line for lines in calls for line in lines]
    if len(step.calls) == len(step.stripes) == 1:
        yield from body
        return
    if height := _height(step):
        begin, end = step.stripes[0][0].begin, step.stripes[-1][0].end
        yield f"for (ptrdiff_t row = {begin}; row < {end}; row += {height}) {{"
        yield from (f"  {line}" for line in body)
        yield "}"
        return
    size = len(calls)
    lines = [[(t.begin, t.y_first) for t in step.stripes[0]]]
    lines += [[(t.end, t.y_first) for t in stripe] for stripe in step.stripes]
    element = _element(lines)
    yield "{"
    yield f"  static const {element} rows[][2] = {{ /* end; first row of y in memory */"
    for line in lines:
        yield f"    {', '.join(f'{{{end}, {first}}}' for end, first in line)},"
    yield "  };"
    row = f"const {element} (*r)[2] = rows + {size}"
    yield f"  for ({row}; r < rows + {size * len(lines)}; r += {size}) {{"
    for k, pointer in kept.items():
        type_ = types[step.calls[k].node.outputs[0]]
        yield f"    shift_rolling_buffer({pointer}, {_moved(type_, k, size)});"
    yield from (f"    {line}" for line in body)
    yield "  }"
    yield "}"


def _rows(step: CascadeLoop, number: int) -> dict[str, str]:
    """Return the C of a call's rows by the names of the kernels' parameters."""
    size = len(step.calls)
    if size > 1:
        return {
            "begin": f"r[{number - size}][0]", "end": f"r[{number}][0]",
            "x_first": f"r[{number - 1}][1]" if number else "0",
            "y_first": f"r[{number}][1]" if number < size - 1 else "0",
        }  # fmt: skip
    ((first,), *_, (last,)) = (*step.stripes, *step.stripes)
    whole = {"x_first": "0", "y_first": "0"}
    if len(step.stripes) == 1:
        return {"begin": str(first.begin), "end": str(first.end), **whole}
    if height := _height(step):
        end = f"row + {height}"
        if (last.end - first.begin) % height:
            end = f"({end} < {last.end} ? {end} : {last.end})"
        return {"begin": "row", "end": end, **whole}
    return {"begin": "r[-1][0]", "end": "r[0][0]", **whole}


def _height(step: CascadeLoop) -> int:
    """Return the rows of each stripe of a single call but the last; 0 if they aren't alike."""
    if len(step.calls) > 1:
        return 0
    heights = [stripe.end - stripe.begin for (stripe,) in step.stripes]
    alike = len(set(heights[:-1])) <= 1 and heights[-1] <= heights[0]
    return heights[0] if alike else 0


def _element(lines: Sequence[Sequence[tuple[int, int]]]) -> str:
    """Return the smallest C type that holds all rows of a table."""
    most = max(row for line in lines for pair in line for row in pair)
    return "uint8_t" if most < 1 << 8 else "uint16_t" if most < 1 << 16 else "ptrdiff_t"


def _moved(type_: TensorType, k: int, size: int) -> str:
    """Return the C of the rows of result `k` that are moved as the next call reads them, too."""
    row = type_.nbytes // prod(type_.shape[:3])
    first, before, begin = f"r[{k}][1]", f"r[{k - size}][1]", f"r[{k - size}][0]"
    planes = f"{prod(type_.shape[:2])}, {type_.shape[2] * row}, {row}"
    return f"{planes}, {first} - {before}, {begin} - {first}"
