"""The extents of inputs whose axes have names: in `--input_shape`, and in the model.

Equal names are equal extents. Sums that exporters write, such as `past_sequence_length + 1`, and
sums in the option, such as `s+p`, follow from the names in them, and an input that the option
leaves out follows from the names of the others. A name may be given by an axis that is a multiple
of it, such as PyTorch's `32*h`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir

from atc.dims import (
    RANGES,
    Extent,
    Multiple,
    Named,
    Range,
    Sum,
    collected,
    named,
    read_multiple,
    read_sum,
    within,
)
from atc.errors import ModelError


@dataclass(frozen=True)
class Names:
    """The facts known of names: an extent, a range of them, or their origin."""

    known: Mapping[str, int | Range | Sum]
    file: str

    def resolved(self, total: Sum, above: frozenset[str] = frozenset()) -> Sum | str:
        """Return a sum over names of ranges alone, or an unknown name."""
        terms: list[tuple[str, int]] = []
        constant = total.constant
        for name, factor in total.terms:
            match self.known.get(name) if name not in above else None:
                case None:
                    return name
                case int(extent):
                    constant += extent * factor
                case Range():
                    terms.append((name, factor))
                case Sum() as other:
                    inner = self.resolved(other, above | {name})
                    if isinstance(inner, str):
                        return inner
                    terms += [(n, k * factor) for n, k in inner.terms]
                    constant += inner.constant * factor
        return collected(terms, constant)

    def range(self, total: Sum) -> Range:
        """Return the least and the largest value of a resolved sum."""
        low = high = total.constant
        for name, factor in total.terms:
            ends = self.known[name]
            assert isinstance(ends, Range)
            low += factor * (ends.low if factor > 0 else ends.high)
            high += factor * (ends.high if factor > 0 else ends.low)
        return Range(low, high)


def names_of(
    inputs: Iterable[onnx_ir.Value], shapes: Mapping[str, object], file: str
) -> Names:  # fmt: skip
    """Return what `--input_shape` defines: its own names, and the model's where it gives extents.

    Raises ModelError for a name that it gives two extents.
    """
    inputs = [*inputs]
    own: dict[str, int | Range | Sum] = {}
    pinned: dict[str, set[int | Range]] = {}
    inside: dict[str, set[int | Range]] = {}  # names that only multiples have
    follows: dict[str, Sum] = {}
    for value in inputs:
        shape = shapes.get(value.name or "")
        if not isinstance(shape, tuple):
            continue
        declared = [*value.shape] if value.shape is not None else []
        unnamed = len(declared) != len(shape)
        texts = [""] * len(shape) if unnamed else [_text(dim) for dim in declared]
        for text, extent in zip(texts, shape, strict=True):
            match extent:
                case Named(name, ends):
                    whole = read_multiple(name) or named(name)
                    name, ends = whole.names[0], _of_name(value, whole, ends, file)
                    if own.setdefault(name, ends) != ends:
                        raise ModelError(
                            f"--input_shape says of '{name}' that it is {own[name]} and {ends}",
                            where=file, hint="an equal name is an equal extent", code="E10002",
                        )  # fmt: skip
                    follows.setdefault(text, whole)
                case Sum():
                    follows.setdefault(text, extent)
                case _:
                    pinned.setdefault(text, set()).add(extent)
                    total = read_multiple(text) if extent != -1 else None
                    if total is not None and (isinstance(extent, Range) or within(total, extent)):
                        ends = _of_name(value, total, extent, file)
                        inside.setdefault(total.names[0], set()).add(ends)
    clear = {name: ends.copy().pop() for name, ends in pinned.items() if len(ends) == 1}
    multiples = {name: ends.copy().pop() for name, ends in inside.items() if len(ends) == 1}
    known = {**multiples, **follows, **clear, **own}
    for name in ("", *(n for n, ends in pinned.items() if len(ends) > 1 and n not in own)):
        known.pop(name, None)
    for name, total in follows.items():  # a range that says what follows anyway
        others = Names({n: extent for n, extent in known.items() if n != name}, file)
        found = others.resolved(total)
        if name in clear and isinstance(found, Sum) and others.range(found) == clear[name]:
            known[name] = total
    return Names({**_totals(inputs, known), **known}, file)


def _of_name(
    value: onnx_ir.Value, total: Sum, ends: int | Range, file: str
) -> int | Range:  # fmt: skip
    """Return what the name is of which an axis is a multiple, or which it has itself."""
    if total.name:
        return ends
    found = within(total, ends)
    if found is None:
        raise ModelError(
            f"an axis of input '{value.name}' is {total}, which is nothing in {ends}", where=file,
            hint="give a range with a multiple in it", code="E10011",
        )  # fmt: skip
    return found.low if isinstance(ends, int) else found


def _totals(
    inputs: Iterable[onnx_ir.Value], known: Mapping[str, int | Range | Sum]
) -> Mapping[str, Sum]:
    """Return what follows of axes that onnxruntime-genai calls `total_X`: `past_X` + `X`.

    A past of one length other than 0 is a buffer, whose length says nothing.
    """
    texts = {_text(dim) for value in inputs for dim in value.shape or ()}
    found = {}
    for text in texts:
        name = text.removeprefix("total_")
        past = f"past_{name}"
        length = known.get(past, -1)
        if name != text and name in known and (length == 0 or not isinstance(length, int)):
            found[text] = collected([(past, 1), (name, 1)], 0)
    return found


def resolve(value: onnx_ir.Value, shape: Sequence[Extent], names: Names) -> None:
    """Set the shape of an input.

    Axes with ranges keep their names; `meta` holds their ranges, and the sums that other open axes
    follow from. Raises ModelError for an extent that doesn't follow from what is known, and for a
    range that contradicts the model's names.
    """
    own = [*value.shape] if value.shape is not None else [None] * len(shape)
    dims: list[int | str | None] = []
    open_axes: list[Range | Sum | Multiple | None] = []
    for axis, (dim, extent) in enumerate(zip(own, shape, strict=True)):
        text = _text(dim)
        found: int | Range | Sum | Multiple
        match extent:
            case Named(name, ends):
                total = read_multiple(name)
                text, found = name, ends if total is None else _followed(value, axis, total, names)
            case Sum():
                text, found = "", _followed(value, axis, extent, names)
            case Range():
                found = _agreed(value, axis, text, extent, names)
            case _:
                found = extent
        if isinstance(found, Sum):
            text, found = _simplest(value, axis, found, names)
            found = _as_multiple(found, names)
        elif isinstance(extent, Range) and names.known.get(text, extent) != extent:
            text = ""  # another range has this name
        if isinstance(extent, Sum) and isinstance(dim, int) and dim not in (0, found):
            raise ModelError(
                f"axis {axis} of input '{value.name}' is {dim} in the model, --input_shape gives "
                f"{extent}", where=names.file, code="E10050",
            )  # fmt: skip
        dims.append(found if isinstance(found, int) else text or None)
        open_axes.append(None if isinstance(found, int) else found)
    value.shape = onnx_ir.Shape(dims)
    if any(each is not None for each in open_axes):
        value.meta[RANGES] = open_axes


def resolve_by_names(value: onnx_ir.Value, names: Names) -> None:
    """Set the shape of an input that follows from the names of its axes.

    If not all extents do, only the fixed ones are set: lowering reports the open ones.
    """
    if value.shape is None or not names.known:
        return
    totals = [_sum_of(_text(dim)) for dim in value.shape]
    found = [None if total is None else names.resolved(total) for total in totals]
    fixed = [n.constant if isinstance(n, Sum) and not n.terms else None for n in found]
    dims = [dim if n is None else n for n, dim in zip(fixed, value.shape, strict=True)]
    if any(isinstance(n, str) for n in found):
        value.shape = onnx_ir.Shape(dims)
    elif any(isinstance(n, Sum) for n in found):
        extents = zip(totals, value.shape, strict=True)
        resolve(value, [_whole(dim) if total is None else total for total, dim in extents], names)


def _followed(value: onnx_ir.Value, axis: int, extent: Sum, names: Names) -> Sum:
    found = names.resolved(extent)
    if isinstance(found, str):
        raise ModelError(
            f"--input_shape says that axis {axis} of input '{value.name}' is {extent}, but nothing "
            f"says what '{found}' is", where=names.file, code="E10002",
            hint=f'name the axis of that extent, e.g. "x:1,{found}=1~8"',
        )  # fmt: skip
    return found


def _agreed(
    value: onnx_ir.Value, axis: int, text: str, extent: Range, names: Names
) -> Range | Sum:  # fmt: skip
    """Return the sum that an axis follows from by the model's own name, else its range."""
    total = _sum_of(text)
    if total is None or (total.name and not isinstance(names.known.get(text), Sum)):
        return extent
    found = names.resolved(total)
    if isinstance(found, str):
        return extent
    ends, only = names.range(found), within(total, extent) if total.is_multiple else None
    if ends != extent and (only is None or names.known[total.names[0]] != only):
        raise ModelError(
            f"axis {axis} of input '{value.name}' is {text} in the model, which is {ends}; "
            f"--input_shape gives {extent}", where=names.file, code="E10050",
            hint="leave the input out, or give the axis a name that nothing else has, "
            f'e.g. "own={extent}"',
        )  # fmt: skip
    return found


def _simplest(
    value: onnx_ir.Value, axis: int, total: Sum, names: Names
) -> tuple[str, int | Range | Sum]:  # fmt: skip
    """Return the name of an axis and its extent, range, or the sum that it follows from."""
    ends = names.range(total)
    if ends.low < 0:
        raise ModelError(
            f"axis {axis} of input '{value.name}' is {total}, which may be {ends.low}",
            where=names.file, hint="give a range from which it can't be negative", code="E10011",
        )  # fmt: skip
    if not total.terms:
        return "", total.constant
    return (total.name, ends) if total.name else (str(total), total)


def _as_multiple(
    found: int | Range | Sum, names: Names
) -> int | Range | Sum | Multiple:  # fmt: skip
    """Return what is a multiple of one name so that the name follows from it."""
    if not isinstance(found, Sum) or not found.is_multiple:
        return found
    ((name, factor),) = found.terms
    ends = names.known[name]
    return Multiple(name, ends, factor, found.constant) if isinstance(ends, Range) else found


def _text(dim: object) -> str:
    """Return the name that a model gives an axis, "" if it gives none."""
    return "" if isinstance(dim, int) else str(getattr(dim, "value", None) or "")


def _sum_of(text: str) -> Sum | None:
    """Return the sum that a model's name of an axis stands for; a plain name stands for itself."""
    return (read_sum(text) or named(text)) if text else None


def _whole(dim: object) -> int:
    return dim if isinstance(dim, int) else -1
