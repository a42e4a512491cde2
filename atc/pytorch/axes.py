"""The axes of an exported module's inputs, and the extents that open ones may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from atc.dims import Extent, InputShape, Named, Range
from atc.errors import OptionError
from atc.options.shapes import shapes


@dataclass(frozen=True)
class OpenAxis:
    """An axis that is open, and the extents that the module is exported for.

    The exporter narrows them where the module does something else for others.
    """

    name: str
    low: int
    high: int | None

    def within(self, low: int, high: int) -> tuple[int, int]:
        """Return the part of a range that it is exported for."""
        return max(low, self.low), high if self.high is None else min(high, self.high)

    def text(self, low: int, high: int) -> str:
        """Return it with a range, as `input_shape` has it."""
        return f"{self.name}={low}~{high}"


Axes = Mapping[str, Sequence[int | str | OpenAxis]]
"""The axes of each input: a number, an open axis, or what follows from others as a text."""


def axes_of(program: torch.onnx.ONNXProgram) -> Axes:
    """Return the axes of an exported module's inputs."""
    exported = program.exported_program
    assert exported is not None
    found = {
        node.name: node.meta["val"].shape for node in exported.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)
    }  # fmt: skip

    def axis(written: Any, extent: Any) -> int | str | OpenAxis:
        if not isinstance(extent, torch.SymInt):
            return int(extent)
        bounds = exported.range_constraints.get(extent.node.expr)
        if bounds is None:
            return str(written)
        high = int(bounds.upper) if isinstance(bounds.upper, (int, sympy.Integer)) else None
        return OpenAxis(str(written), int(bounds.lower), high)

    return {
        value.name: [axis(*pair) for pair in zip(value.shape, found[value.name], strict=True)]
        for value in program.model.graph.inputs if value.name in found
    }  # fmt: skip


def with_ranges(axes: Axes, given: object) -> dict[str, object]:
    """Return `input_shape` as it is given, with the module's own ranges for other inputs.

    Raises OptionError for extents that the module isn't exported for.
    """
    found: dict[str, object] = {}
    ranges = shapes(given)
    for name, own in axes.items():
        if name in ranges:
            _check(name, own, ranges[name])
            continue
        opened = [axis for axis in own if not isinstance(axis, int)]
        if opened and all(isinstance(a, OpenAxis) and a.high is not None for a in opened):
            found[name] = [
                axis.text(max(axis.low, 1), axis.high or 0) if isinstance(axis, OpenAxis) else axis
                for axis in own
            ]
    return {**found, **_mapping(given)}


def _check(name: str, own: Sequence[int | str | OpenAxis], given: InputShape) -> None:
    if not isinstance(given, tuple):
        return
    for k, (axis, extent) in enumerate(zip(own, given, strict=False)):
        ends = _ends(extent)
        if not isinstance(axis, OpenAxis) or ends is None or axis.within(*ends) == ends:
            continue
        raise OptionError(
            f"axis {k} of '{name}' is {extent}, the module is exported for {axis.low} to "
            f"{'any' if axis.high is None else axis.high}", where="input_shape",
            hint="its own Python does something else beyond", code="E10014",
        )  # fmt: skip


def _ends(extent: Extent) -> tuple[int, int] | None:
    """Return the least and the largest of an extent, None where they follow from others."""
    extent = extent.extent if isinstance(extent, Named) else extent
    if isinstance(extent, Range):
        return extent.low, extent.high
    return (extent, extent) if isinstance(extent, int) and extent >= 0 else None


def _mapping(given: object) -> Mapping[str, object]:
    """Return `input_shape` as a mapping, whichever form it is given in."""
    if isinstance(given, Mapping):
        return {str(name): dims for name, dims in given.items()}
    items = [item.rpartition(":") for item in str(given).split(";")] if given else []
    return {name.strip(): dims for name, _, dims in items}
