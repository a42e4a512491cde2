"""What networks take and give beside arrays of numbers: sequences, optionals and strings.

A part of `atc/runtime.py`; generated projects carry both in one module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Value:
    """An input or output of the model: one tensor, a sequence of them, or (None) nothing."""

    name: str
    first: int
    count: int | None = 1
    is_sequence: bool = False


def flat(values: Sequence[Value], given: Sequence[Any]) -> Sequence[Any]:
    """Return the arrays of inputs, those of sequences in their places."""
    if not any(v.is_sequence or v.count is None for v in values):
        return given
    if len(given) != len(values):
        names = [v.name for v in values]
        raise TypeError(f"{len(given)} inputs given, the network takes {len(values)}: {names}")
    arrays: list[Any] = []
    for value, item in zip(values, given, strict=True):
        if value.count is None:
            if item is not None:
                raise TypeError(f"input {value.name!r} must be None: it was compiled without value")
        elif value.is_sequence:
            if not isinstance(item, list | tuple) or len(item) != value.count:
                raise TypeError(f"input {value.name!r} must be a list of {value.count} arrays")
            arrays += item
        else:
            arrays.append(item)
    return arrays


def grouped(values: Sequence[Value], arrays: Sequence[Array]) -> list[Any]:
    """Return the outputs of the model: arrays, lists of them, None."""
    found: list[Any] = []
    for value in values:
        if value.is_sequence:
            found.append([*arrays[value.first : value.first + (value.count or 0)]])
        else:
            found.append(None if value.count is None else arrays[value.first])
    return found


def to_cells(array: Array, name: str, cell: int, in_place: bool) -> Array:
    """Return the strings of an input as C holds them: UTF-8, each in a cell of so many bytes."""
    if in_place or array.dtype.kind not in "OSU":
        what = f"S{cell}" if in_place else "an array of strings"
        raise TypeError(f"input {name!r} must be {what}, not {array.dtype}")
    cells = []
    for text in array.reshape(-1).tolist():
        if not isinstance(text, str | bytes):
            raise TypeError(f"input {name!r} holds a {type(text).__name__}, not a string")
        data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
        if len(data) >= cell or b"\0" in data:
            fault = "holds a NUL" if b"\0" in data else f"is longer than {cell - 1} bytes"
            raise ValueError(f"a string of input {name!r} {fault}: {text[:40]!r}")
        cells.append(data)
    return np.asarray(cells, f"S{cell}").reshape(array.shape)


def to_texts(array: Array) -> Array:
    """Return cells as objects; what isn't UTF-8 in them becomes surrogate escapes."""
    texts = np.empty(array.size, object)
    for k, data in enumerate(array.reshape(-1).tolist()):
        texts[k] = data.partition(b"\0")[0].decode("utf-8", "surrogateescape")
    return texts.reshape(array.shape)
