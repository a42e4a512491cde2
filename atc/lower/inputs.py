"""The types of a model's inputs, with run-time extents where ranges of shapes are given."""

from __future__ import annotations

import re
from collections.abc import Sequence

import onnx_ir

from atc.dims import RANGES, Multiple, Range, Sum, read_multiple
from atc.errors import UnsupportedError
from atc.ir.graph import DType, TensorType
from atc.lower.builder import Builder

Axes = dict[tuple[str, Range], int]
"""The run-time extent of each axis by its name and range."""


def open_axes(value: onnx_ir.Value) -> Sequence[Range | Sum | Multiple | None]:
    """Return the range of each axis of an input or what it follows from, None where it is fixed."""
    given = value.meta.get(RANGES)
    return given if given is not None else [None] * len(value.shape or ())


def add_symbols(value: onnx_ir.Value, builder: Builder, axes: Axes) -> None:
    """Add the run-time extents of an input; axes of one name and one range are one symbol."""
    limits = builder.caches.limits
    for axis, (dim, given) in enumerate(zip(value.shape or (), open_axes(value), strict=True)):
        label = f"{value.name}[{axis}]"
        match given:
            case Range():
                key = axis_name(value, axis, dim), given
            case Multiple(name, ends, factor, constant):
                key = name, ends
                label = f"({label} - {constant}) / {factor}" if constant else f"{label} / {factor}"
            case _:
                continue
        if key not in axes:
            most = limits.get(len(builder.symbols), key[1].high)
            axes[key] = builder.symbol(label, key[1].low, most, given=True)


def axis_name(value: onnx_ir.Value, axis: int, dim: object) -> str:
    """Return what the model calls an axis of an input, else the axis itself."""
    return str(getattr(dim, "value", None) or f"{value.name}[{axis}]")


def check_extents(value: onnx_ir.Value, file: str) -> None:
    """Raise UnsupportedError, which names the file, for an input of an extent that nobody gave."""
    name, shape = value.name or "", value.shape or ()
    shown = [str(d if isinstance(d, int) else d.value or "?") for d in shape]
    for dim, text, given in zip(shape, shown, open_axes(value), strict=True):
        if not _is_fixed(dim) and given is None:
            fixed, ranges = _proposed(value, "1", "224"), _proposed(value, "1~8", "64~224")
            raise UnsupportedError(
                f"input '{name}' has the dynamic dimension '{text}' in [{', '.join(shown)}]",
                where=file,
                hint=f'pin it: --input_shape="{fixed}", or give a range: "{ranges}"',
            )  # fmt: skip


def _proposed(value: onnx_ir.Value, open_: str, side: str) -> str:
    """Return shapes for an input and for the others whose axes have names that no one before has.

    What came before may be nothing. Open axes are `open_`, those of an image's sides are `side`.
    """
    others = value.graph.inputs if value.graph is not None else ()
    named: set[str] = set()
    shapes = []
    rest = sorted((v for v in others if v is not value), key=lambda v: " + " in str(v.shape))
    for each in (value, *rest):
        dims = [*(each.shape or ())]
        missing = {
            str(d) for d, given in zip(dims, open_axes(each), strict=True)
            if not _is_fixed(d) and given is None
        }  # fmt: skip
        names = {n for text in missing for n in re.findall(r"\w*[^\W\d]\w*", text)}
        followed = all(n in named or n.startswith("total_") for n in names)
        if each is value or (missing and not followed):
            sides = _sides(dims)
            extents = ",".join(
                str(d) if _is_fixed(d) else _of_axis(d, side if axis in sides else open_)
                for axis, d in enumerate(dims)
            )
            shapes.append(f"{each.name}:{extents}")
            named |= names
    return ";".join(shapes)


def _sides(dims: Sequence[object]) -> list[int]:
    """Return the axes of any height and width, if an input looks like images, else none."""
    gray_or_rgb = (1, 3)
    if len(dims) != 4 or any(str(d).startswith("past") for d in dims):
        return []
    axes = (2, 3) if dims[1] in gray_or_rgb else (1, 2) if dims[3] in gray_or_rgb else ()
    return [axis for axis in axes if read_multiple(str(dims[axis])) is None]


def _of_axis(dim: object, open_: str) -> str:
    """Return what is proposed for an axis; of a multiple the ends are multiples."""
    total = read_multiple(str(dim))
    if total is not None:
        name = total.names[0]
        return "~".join(str(total.value({name: int(end)})) for end in open_.split("~"))
    return f"0{open_[1:]}" if str(dim).startswith("past") else open_


def _is_fixed(dim: object) -> bool:
    return isinstance(dim, int) and dim >= 0


def input_type(value: onnx_ir.Value, axes: Axes, file: str) -> TensorType:
    """Return an input's type in the extents that `add_symbols` has added for all inputs.

    Raises UnsupportedError, which names the file, for one that isn't covered or isn't known.
    """
    name = value.name or ""
    if value.shape is None or value.dtype is None:
        raise UnsupportedError(
            f"input '{name}' has no shape or type", where=file,
            hint=f'give it one: --input_shape="{name}:1,8"',
        )  # fmt: skip
    check_extents(value, file)
    try:
        dtype = DType.from_onnx(value.dtype.value)
    except KeyError:
        raise UnsupportedError(
            f"input '{name}' has the type {value.dtype.name}, which is not covered", where=file
        ) from None
    return TensorType(dtype, _extents(value, axes))


def _extents(value: onnx_ir.Value, axes: Axes) -> tuple[int, ...]:
    by_name = {name: extent for (name, _), extent in axes.items()}
    result: list[int] = []
    for axis, (dim, given) in enumerate(zip(value.shape or (), open_axes(value), strict=True)):
        match given:
            case None:
                assert isinstance(dim, int)
                result.append(dim)
            case Range():
                result.append(axes[axis_name(value, axis, dim), given])
            case Multiple(name, ends, factor, constant):
                result.append(axes[name, ends] * factor + constant)
            case Sum():
                result.append(given.value(by_name))
    return tuple(result)
