"""Inputs of the runs that a verification compares: those of a file, or random ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from atc.accuracy.inputs import Types, random_inputs
from atc.errors import OptionError, one_line, reason_of, way_out
from atc.files.arrays import load_arrays
from atc.ir.graph import Array

if TYPE_CHECKING:
    from atc.pipeline.input_types import InputType

RUNS = 3
"""Runs of a network that carries states, if nobody says how many."""


def inputs_of_runs(
    types: Types, file: Path | None, seed: int, runs: int, usual: int
) -> tuple[list[dict[str, Array]], str]:
    """Return the inputs of each run by name, and where they come from, for people.

    There are `runs` of them; if that is 0, as many as the .npz has, else the `usual` number.
    """
    if file is None:
        return [random_inputs(types, seed + k) for k in range(runs or usual)], f"seed {seed}"
    arrays = _arrays(file, types)
    stacked = {n: len(a) for n, a in arrays.items() if a.ndim > len(types[n][0])}
    count = runs or min(stacked.values(), default=usual)
    for name, own in stacked.items():
        if own < count or (not runs and own != count):
            raise OptionError(f"'{name}' has {own} runs, not {count}", where=str(file))
    return [
        {n: a[k] if n in stacked else a for n, a in arrays.items()} for k in range(count)
    ], file.name


def check_inputs(path: Path, types: Mapping[str, InputType]) -> None:
    """Raise OptionError for an .npz of inputs that a network of fixed shapes won't take."""
    _arrays(path, {name: (t.shape, t.dtype) for name, t in types.items()})


def _arrays(path: Path, types: Types) -> dict[str, Array]:
    """Return the arrays for inputs, each for all runs or with an axis in front for one a run."""
    try:
        with load_arrays(path) as file:
            arrays = dict(file)
    except Exception as error:  # zipfile and numpy raise many kinds
        raise OptionError(
            f"can't be read as an .npz file: {one_line(reason_of(error, path), 200)}",
            where=str(path), hint=way_out(error),
        ) from error
    for name, (shape, dtype) in types.items():
        if name not in arrays:
            raise OptionError(f"has no array '{name}'", where=str(path))
        array = arrays[name] = _as_taken(arrays[name], dtype)
        fits = array.shape == shape or (array.shape[1:] == shape and len(array) > 0)
        if not fits or array.dtype != dtype:
            raise OptionError(
                f"'{name}' is {array.dtype} {list(array.shape)}, the library takes {dtype} "
                f"{list(shape)}, or that for each of some runs", where=str(path),
            )  # fmt: skip
    return {name: arrays[name] for name in types}


def _as_taken(array: Array, dtype: np.dtype) -> Array:
    """Return an array as the network takes it.

    Files hold strings in numpy's own types, and numbers of other types than numpy's as bytes.
    """
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
        return array.view(dtype)
    return array.astype(object) if dtype.kind == "O" and array.dtype.kind in "US" else array
