"""Integers known only at run time, as extents: with a bound that is declared or proven.

`--value_range` declares the integers of a value; else `value_ranges.py` proves what it can. A
number outside its bounds ends the run with a status.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf

import numpy as np
import onnx_ir

from atc.dims import Dim, Range
from atc.errors import ModelError, OptionError, UnsupportedError
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Reshape
from atc.ir.ops.data import Concat, WriteExtents
from atc.ir.ops.data_dependent import ReadExtents
from atc.ir.view import View
from atc.lower.builder import Builder
from atc.lower.value_ranges import interval_of

VALUE_RANGES = "atc.value_ranges"
"""Where a value of a model says the declared ranges of its elements."""

_DECLARABLE = (DType.INT64, DType.INT32, DType.BOOL)
MOST = 64
"""Elements of a value that may be extents."""
LARGEST = 1 << 31
"""A bound from which on none is taken for proven: it is only what the type holds."""


class RunTimeOperand(UnsupportedError):
    """A node needs the elements of an operand when compiling, and they are computed at run time."""

    unbounded = ""
    """The operand in the builder, if a bound of its integers would do."""


def declare_ranges(model: onnx_ir.Model, ranges: Mapping[str, tuple[Range, ...]]) -> None:
    """Mark the values whose integers --value_range bounds; OptionError for an unknown name."""
    loops = [n for n in _nodes(model.graph) if n.op_type == "Loop"]
    values: dict[str | None, onnx_ir.Value | onnx_ir.Node] = {
        **{v.name: v for v in _values(model.graph)},
        **{n.name or n.outputs[0].name: n for n in loops if n.outputs},
    }
    for name, given in ranges.items():
        if name not in values:
            raise OptionError(
                f"'{name}' is not a value of the model", where="--value_range",
                hint="name an input, a node's result, or a Loop", code="E10016",
            )  # fmt: skip
        values[name].meta[VALUE_RANGES] = given


def _nodes(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Node]:
    for node in graph:
        yield node
        for attribute in node.attributes.values():
            if isinstance(attribute.value, onnx_ir.Graph):
                yield from _nodes(attribute.value)


def _values(graph: onnx_ir.Graph) -> Iterator[onnx_ir.Value]:
    for node in graph:
        for attribute in node.attributes.values():
            if isinstance(attribute.value, onnx_ir.Graph):
                yield from _values(attribute.value)
        yield from node.outputs
    yield from graph.inputs


def as_declared(b: Builder, value: onnx_ir.Value, name: str) -> str:
    """Return a value whose integers are extents, where --value_range says what they are."""
    given: Sequence[Range] | None = value.meta.get(VALUE_RANGES)
    if given is None or b.value(name) is not None or b.extents_of(name) is not None:
        return name
    type_ = b.type(name)
    size = type_.size
    if type_.dtype not in _DECLARABLE or isinstance(size, Dim) or size > MOST:
        raise ModelError(
            f"'{value.name}' is {type_}; --value_range takes integers and truth values, {MOST} at "
            "most", where="--value_range",
        )  # fmt: skip
    if len(given) not in (1, size):
        raise ModelError(
            f"'{value.name}' has {size} elements, --value_range gives {len(given)} ranges",
            where="--value_range",
        )
    every = list(given) * (size if len(given) == 1 else 1)
    if type_.dtype is DType.BOOL:
        if any(r.low < 0 or r.high > 1 for r in every):
            raise ModelError(f"'{value.name}' is true, 1, or false, 0", where="--value_range")
        if any(r.low < r.high for r in every):
            return name
        name = b.cast(name, DType.INT64)
    found = [_read(b, name, k, r, value.name or "") for k, r in enumerate(every)]
    return b.extents(np.array(found, object).reshape(type_.shape), type_.dtype)


def _read(b: Builder, name: str, k: int, bounds: Range, label: str) -> int:
    """Return element k of a value as an extent; one that has a single value is checked alone."""
    single = bounds.low == bounds.high
    extent = b.symbol(f"{label}[{k}]", bounds.low, bounds.high + single)
    element = b.view(name, (1,), View((1,), k))
    b.emit(ReadExtents((extent,)), [element], TensorType(DType.INT64, (1,)))
    if single:
        b.must_be_equal(extent, bounds.low)
    return bounds.low if single else extent


def bounded_integers(b: Builder, name: str, least: int, label: str) -> list[int] | None:
    """Return the integers of a computed value as extents, None where a bound can't be proven.

    None is below `least`, or the run ends.
    """
    type_ = b.type(name)
    if type_.dtype.is_float or isinstance(type_.size, Dim) or type_.size > MOST:
        return None
    found: list[int] = []
    for source, k in elements(b, name):
        known = b.value(source)
        extents = b.extents_of(source)
        if known is not None:
            found.append(int(known.reshape(-1)[k]))
            continue
        if extents is not None:
            found.append(extents.reshape(-1)[k])
            continue
        maker = b.maker(source)
        if maker is not None and isinstance(maker.op, WriteExtents):
            found.append(maker.op.values[k])
            continue
        lowest, highest = interval_of(b, source)
        if highest == inf or highest >= LARGEST:
            return None
        bounds = Range(max(int(max(lowest, -LARGEST)), least), max(int(highest), least))
        if bounds.low == bounds.high:
            found.append(bounds.low)
            continue
        found.append(_read(b, source, k, bounds, label))
    return found


def elements(b: Builder, name: str) -> list[tuple[str, int]]:
    """Return where each element of a value comes from: through reshapes and concatenations."""
    maker = b.maker(name)
    if maker is not None and isinstance(maker.op, Reshape):
        return elements(b, maker.inputs[0])
    if maker is not None and isinstance(maker.op, Concat) and maker.op.outer == 1:
        return [e for x in maker.inputs for e in elements(b, x)]
    return [(name, k) for k in range(b.type(name).size)]


def unbounded(what: str, name: str, label: str, operand: str) -> RunTimeOperand:
    """Return the error for integers that nothing bounds, a value of the model and the builder's."""
    error = RunTimeOperand(
        f"{what} is computed at run time, and nothing bounds it", where=label,
        hint=_hint([name]),
    )  # fmt: skip
    error.unbounded = operand
    return error


def point_at_sources(error: RunTimeOperand, b: Builder, names: Mapping[str, str]) -> None:
    """Let an error name the integers from which the unbounded ones follow, all at once.

    `names` are the builder's names by those of the model.
    """
    of_model: dict[str, str] = {}
    for name, value in names.items():
        of_model.setdefault(value, name)
    found: dict[str, None] = {}
    front = [error.unbounded] if error.unbounded in of_model else []
    while front:
        value = front.pop(0)
        maker = b.maker(value)
        read = {} if maker is None else dict.fromkeys(i for i in maker.inputs if _is_open(b, i))
        if maker is None or not read or not all(i in of_model for i in read):
            found[of_model[value]] = None
        else:
            front += [i for i in read if i not in front]
    if found:
        error.hint = _hint(list(found))
    error.unbounded = ""


def _is_open(b: Builder, name: str) -> bool:
    """Return whether a bound of a value's integers may be declared, and none is proven."""
    if not name or b.value(name) is not None or b.extents_of(name) is not None:
        return False
    type_ = b.type(name)
    if type_.dtype not in (DType.INT64, DType.INT32) or isinstance(type_.size, Dim):
        return False
    return type_.size <= MOST and interval_of(b, name)[1] >= LARGEST


def _hint(names: Sequence[str]) -> str:
    ranges = ";".join(f"{name}:1~100" for name in names)
    return f'say what it may be: --value_range="{ranges}", a range per element'
