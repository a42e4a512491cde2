"""Indices of tensors as NumPy has them, read into what ONNX's operators take."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any

import numpy as np

from atc.tracing.errors import ArgumentError, OperandError, place
from atc.tracing.recording import Shape
from atc.tracing.tape import Tracked

_END = np.iinfo(np.int64).max


@dataclass
class Indices:
    """The meaning of a tensor's indices: slices and their axes, gathers, axes that go or come."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    axes: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    added: list[int] = field(default_factory=list)
    gathers: list[tuple[int, Any]] = field(default_factory=list)

    def take(self, axis: int, start: int, end: int, step: int = 1) -> None:
        """Take a range of an axis."""
        self.starts.append(start)
        self.ends.append(end)
        self.axes.append(axis)
        self.steps.append(step)


def read_indices(shape: Shape, key: tuple[Any, ...]) -> Indices:
    """Read the indices of a tensor: integers, slices, None, `...` and one tensor of integers.

    Raises ArgumentError where they are too many or outside, OperandError for other kinds.
    """
    taken = sum(k is not None and not isinstance(k, EllipsisType) for k in key)
    dots = [k for k, part in enumerate(key) if isinstance(part, EllipsisType)]
    if len(dots) > 1 or taken > len(shape):
        raise ArgumentError(f"{taken} indices of a tensor of {len(shape)} axes", where=place())
    whole = [slice(None)] * (len(shape) - taken)
    at = dots[0] if dots else len(key)
    read, axis, kept = Indices(), 0, 0
    for part in [*key[:at], *whole, *key[at + 1 :]]:
        if part is None:
            read.added.append(kept)
            kept += 1
            continue
        if isinstance(part, slice):
            if part != slice(None):
                by = 1 if part.step is None else operator.index(part.step)
                first, last = (0, _END) if by > 0 else (_END, -_END)
                read.take(
                    axis, first if part.start is None else operator.index(part.start),
                    last if part.stop is None else operator.index(part.stop), by,
                )  # fmt: skip
            kept += 1
        elif _lists_integers(part):
            read.gathers.append((axis, part))
            kept += 1
        elif isinstance(part, (int, np.integer)) and not isinstance(part, bool):
            extent = shape[axis]
            if extent is not None and not -extent <= part < extent:
                raise ArgumentError(f"index {part} of an axis of {extent}", where=place())
            read.take(axis, int(part), int(part) + 1 if part != -1 else _END)
            read.dropped.append(axis)
        else:
            raise OperandError(
                f"an index of {getattr(part, 'dtype', type(part).__name__)} isn't traced",
                where=place(), hint="use integers, slices, None, ..., take() or where()",
            )  # fmt: skip
        axis += 1
    if len(read.gathers) > 1 or (read.gathers and (read.dropped or read.added)):
        raise OperandError("tensors among other indices aren't traced", where=place(),
                           hint="use take()")  # fmt: skip
    return read


def _lists_integers(part: Any) -> bool:
    """Return whether an index is a tensor of integers, with an axis at least."""
    is_tensor = isinstance(part, (Tracked, np.ndarray))
    return is_tensor and part.dtype.kind in "iu" and part.ndim > 0
