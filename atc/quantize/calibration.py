"""Inputs in files of numpy's: what a quantised model is calibrated with and judged by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from atc.errors import OptionError, one_line, reason_of, way_out
from atc.files.arrays import load_arrays
from atc.ir.graph import Array

Types = Mapping[str, tuple[tuple[int, ...], np.dtype]]
"""Shape and type of a model's inputs by name."""

Feeds = Mapping[str, Array]

_FILES = (".npy", ".npz")
_HINT = "give .npy for a single input, .npz with arrays by the inputs' names, or a folder of them"


@dataclass(frozen=True)
class Labelled:
    """Inputs with the class that each belongs to."""

    feeds: tuple[Feeds, ...]
    labels: tuple[int, ...]


def read_samples(path: Path, types: Types) -> tuple[Feeds, ...]:
    """Return the inputs in a file, or in all files of a folder in the order of their names.

    An array may hold one input or, along its first axis, many. Raises OptionError, which names the
    file, for what can't be read or doesn't fit the model.
    """
    files = [path]
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in _FILES)
    found = [feeds for file in files for feeds in _split(_arrays(file, types), types, file)]
    if not found:
        raise OptionError("there are no inputs in it", where=str(path), hint=_HINT)
    return tuple(found)


def read_labelled(path: Path, types: Types, samples: Sequence[Feeds]) -> Labelled:
    """Return the labelled inputs of an .npz, or `samples` with the labels of an .npy.

    An .npz holds the inputs by name and one more array, the labels: a whole number per input.
    """
    arrays = _load(path)
    rest = [name for name in arrays if name not in types]
    if len(rest) != 1:
        raise OptionError(
            f"{len(rest)} arrays in it could be the labels", where=str(path),
            hint="give the inputs by name and one more array, or an .npy of labels only",
        )  # fmt: skip
    labels = arrays.pop(rest[0]).reshape(-1)
    feeds = tuple(_split(arrays, types, path)) if arrays else tuple(samples)
    if labels.dtype.kind not in "iu" or len(labels) != len(feeds):
        raise OptionError(
            f"the labels are {len(labels)} of {labels.dtype}, there are {len(feeds)} inputs",
            where=str(path), hint="a label is the number of an input's class",
        )  # fmt: skip
    return Labelled(feeds, tuple(map(int, labels)))


def _arrays(file: Path, types: Types) -> dict[str, Array]:
    arrays = _load(file)
    if len(types) == len(arrays) == 1:
        return dict(zip(types, arrays.values(), strict=True))
    return arrays


def _load(file: Path) -> dict[str, Array]:
    try:
        loaded = load_arrays(file)
        return dict(loaded) if isinstance(loaded, Mapping) else {"": np.asarray(loaded)}
    except Exception as error:  # zipfile and numpy raise many kinds for a damaged file
        raise OptionError(
            f"can't be read: {one_line(reason_of(error, file), 160)}", where=str(file),
            hint=way_out(error) or _HINT,
        ) from None


def _split(arrays: Mapping[str, Array], types: Types, file: Path) -> Iterator[Feeds]:
    """Yield the inputs that a file holds, one by one."""
    each = {name: _inputs(name, arrays, *types[name], file) for name in types}
    counts = {name: len(inputs) for name, inputs in each.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{n} of '{one_line(name, 40)}'" for name, n in counts.items())
        raise OptionError(f"the inputs differ in number: {listed}", where=str(file))
    for k in range(min(counts.values(), default=0)):
        yield {name: inputs[k] for name, inputs in each.items()}


def _inputs(
    name: str, arrays: Mapping[str, Array], shape: tuple[int, ...], dtype: np.dtype, file: Path
) -> Array:
    """Return the inputs of one name along a new first axis."""
    shown = one_line(name, 60)
    if name not in arrays:
        raise OptionError(f"has no array '{shown}'", where=str(file), hint=_HINT)
    array = arrays[name]
    rest = array.size // max(1, int(np.prod(shape)))
    fits = array.shape in (shape, (rest, *shape)) or (
        len(shape) == array.ndim > 0 and array.shape[1:] == shape[1:]
        and array.shape[0] == rest * shape[0]
    )  # fmt: skip
    if not fits or (array.dtype.kind != dtype.kind and array.dtype != dtype):
        raise OptionError(
            f"'{shown}' is {array.dtype} {list(array.shape)}, the model takes {dtype} "
            f"{list(shape)} or many of them", where=str(file),
        )  # fmt: skip
    return array.astype(dtype).reshape(-1, *shape)
