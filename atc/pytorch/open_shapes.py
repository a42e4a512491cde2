"""Extents that Dynamo leaves open: which axes have them, and the ranges that a library is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from atc.errors import OptionError, UnsupportedError
from atc.pytorch.axes import Axes, OpenAxis

FEW = 64
"""The largest extent of a range that nothing bounds; above it ranges end at powers of two."""

MOST = 65536
"""Bounds of Dynamo's beyond this one count as none."""

Range = tuple[int, int]
Limits = tuple[int, int | None]
Place = tuple[int, int]
"""An input's number, and an axis of it."""


@dataclass(frozen=True)
class OpenShapes:
    """The open extents of a graph's inputs, by Dynamo's names."""

    axes: Mapping[Place, str]
    numbers: Mapping[int, str]
    """The inputs that are no tensors but such an extent."""
    limits: Mapping[str, Limits]

    def named(self, index: int) -> dict[int, str]:
        """Return the open axes of an input."""
        return {axis: name for (k, axis), name in self.axes.items() if k == index}

    def batches(self) -> OpenShapes:
        """Return these with the first axes alone open, and what equals them."""
        kept = {name for (_, axis), name in self.axes.items() if axis == 0}
        return OpenShapes(
            {place: name for place, name in self.axes.items() if name in kept},
            {k: name for k, name in self.numbers.items() if name in kept},
            {name: limits for name, limits in self.limits.items() if name in kept},
        )

    def places(self) -> dict[str, Place]:
        """Return an axis that has each extent."""
        return {name: place for place, name in self.axes.items()}

    def extents(self, inputs: Sequence[Any]) -> dict[str, int]:
        """Return what the open extents are in a call."""
        return {name: int(inputs[k].shape[axis]) for name, (k, axis) in self.places().items()}

    def ranges(self, inputs: Sequence[Any], within: Limits) -> dict[str, Range] | None:
        """Return the ranges of a library for such a call, None where it is beyond the limits."""
        found = {}
        for name, extent in self.extents(inputs).items():
            least, most = self.limits[name]
            low = max(least, within[0])
            ends = [end for end in (most, within[1]) if end is not None]
            high = min(ends) if ends else max(FEW, 1 << (extent - 1).bit_length())
            if not low <= extent <= high:
                return None
            found[name] = (low, high)
        return found


NOTHING_OPEN = OpenShapes({}, {}, {})


def limits_of(option: Any) -> Limits | None:
    """Return the limits of ranges that the option `dynamic` gives; None if there are no ranges.

    Raises OptionError.
    """
    if isinstance(option, bool):
        return (0, None) if option else None
    ends = [*option] if isinstance(option, (tuple, list)) else []
    if len(ends) == 2 and all(type(n) is int for n in ends) and 0 <= ends[0] <= ends[1]:
        return (ends[0], ends[1])
    raise OptionError(
        f"{option!r} is not a range", where="dynamic",
        hint="give (lowest, largest), True, or False for a library for each shape", code="E10002",
    )  # fmt: skip


def open_shapes(graph: torch.fx.GraphModule, partly: bool = False) -> OpenShapes:
    """Return what is open in the shapes of a graph of Dynamo's.

    Raises UnsupportedError for an extent that follows from others, unless `partly` is enough.
    """
    axes: dict[Place, str] = {}
    limits: dict[str, Limits] = {}
    inputs = [_value(node) for node in _nodes(graph, "placeholder")]
    for k, value in enumerate(inputs):
        for axis, extent in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if not isinstance(extent, torch.SymInt):
                continue
            symbol = extent.node.expr
            if symbol.free_symbols and not isinstance(symbol, sympy.Symbol):
                if partly:
                    continue
                raise UnsupportedError(f"an input has the extent {symbol}")
            if symbol.free_symbols:
                axes[k, axis] = str(symbol)
                limits[str(symbol)] = _limits(extent)
    numbers = {
        k: str(value.node.expr) for k, value in enumerate(inputs)
        if isinstance(value, torch.SymInt) and str(value.node.expr) in limits
    }  # fmt: skip
    return OpenShapes(axes, numbers, limits)


@dataclass(frozen=True)
class NumbersRead:
    """The inputs that are Python's numbers: constants of a library."""

    items: frozenset[int]
    """Those that come as tensors without axes, whose item is taken."""
    numbers: frozenset[int]
    """All of them, but for extents of tensors."""


def numbers_read(graph: torch.fx.GraphModule) -> NumbersRead:
    """Return which inputs of a graph of Dynamo's are Python's numbers."""
    nodes = _nodes(graph, "placeholder")
    values = [_value(node) for node in nodes]
    shapes = [extent for v in values if isinstance(v, torch.Tensor) for extent in v.shape]
    extents = {str(e.node.expr) for e in shapes if isinstance(e, torch.SymInt)}
    items = frozenset(
        k for k, (node, value) in enumerate(zip(nodes, values, strict=True))
        if isinstance(value, torch.Tensor) and not value.shape and node.users
        and all((user.op, user.target) == ("call_method", "item") for user in node.users)
    )  # fmt: skip
    loose = frozenset(
        k for k, value in enumerate(values)
        if isinstance(value, torch.SymInt) and str(value.node.expr) not in extents
    )  # fmt: skip
    return NumbersRead(items, items | loose)


def numbers_made(graph: torch.fx.GraphModule) -> list[Any]:
    """Return Dynamo's symbol for each result that is a number made of extents; None for others.

    Raises UnsupportedError for one that depends on more than shapes.
    """
    (output,) = _nodes(graph, "output")
    values = [
        _value(result) if isinstance(result, torch.fx.Node) else result
        for result in output.args[0]
    ]
    symbols = [
        value if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else None
        for value in values
    ]
    if any(value is not None and free_unbacked_symbols(value) for value in symbols):
        raise UnsupportedError("the graph returns a number that depends on values")
    return symbols


def number_of(symbol: Any, shapes: OpenShapes) -> Callable[[Sequence[Any]], int]:
    """Return what computes a number of `numbers_made` from a call's inputs.

    Raises UnsupportedError where it isn't whole, or made of other extents.
    """
    places = shapes.places()
    expression = symbol.node.expr
    variables = expression.free_symbols
    if not isinstance(symbol, torch.SymInt) or {str(v) for v in variables} - {*places}:
        raise UnsupportedError(f"the graph returns the number {expression}")
    read = [(v, *places[str(v)]) for v in variables]

    def computed(inputs: Sequence[Any]) -> int:
        extents = {v: sympy.Integer(inputs[k].shape[axis]) for v, k, axis in read}
        return int(expression.xreplace(extents))

    return computed


def dims_of(shapes: OpenShapes, given: Sequence[int], ranges: Mapping[str, Range]) -> Any:
    """Return ranges as torch.export has them, for a function of the inputs `given`."""
    dims = {name: torch.export.Dim(name, min=a, max=b) for name, (a, b) in ranges.items()}
    return (tuple({axis: dims[n] for axis, n in shapes.named(k).items()} for k in given),)


def narrowed(
    axes: Axes, shapes: OpenShapes, given: Sequence[int], ranges: Mapping[str, Range]
) -> dict[str, Range]:
    """Return the part of the ranges that a function of the inputs `given` was exported for.

    Raises UnsupportedError where the exporter closed an axis.
    """
    found = dict(ranges)
    for (k, axis), name in shapes.axes.items():
        own = axes.get(f"tensors_{given.index(k)}")
        if own is None:  # nobody reads it
            continue
        extent = own[axis]
        if not isinstance(extent, OpenAxis) or extent.name != name:
            raise UnsupportedError(f"torch.onnx makes {extent} of an open extent")
        found[name] = extent.within(*found[name])
    return found


def input_shape_of(axes: Axes, ranges: Mapping[str, Range]) -> dict[str, list[int | str]]:
    """Return the shapes of inputs as `atc.compile` has them, with ranges by their names."""
    return {
        name: [
            extent.text(*ranges[extent.name]) if isinstance(extent, OpenAxis) else extent
            for extent in extents
        ]
        for name, extents in axes.items()
    }  # fmt: skip


def _nodes(graph: torch.fx.GraphModule, op: str) -> list[torch.fx.Node]:
    return [node for node in graph.graph.nodes if node.op == op]


def _value(node: torch.fx.Node) -> Any:
    """Return what Dynamo or AOTAutograd knows of a node's value."""
    return node.meta.get("example_value", node.meta.get("val"))


def _limits(extent: torch.SymInt) -> Limits:
    """Return the least and the largest value of a variable as Dynamo knows them."""
    bounds = extent.node.shape_env.bound_sympy(extent.node.expr)
    low, high = (
        int(end) if isinstance(end, (int, sympy.Integer)) else None
        for end in (bounds.lower, bounds.upper)
    )
    return max(low or 0, 0), None if high is None or high > MOST else high
