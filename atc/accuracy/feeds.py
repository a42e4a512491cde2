"""Inputs of a network as the tools take them: files with arrays, or seeded numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from atc.accuracy.inputs import random_inputs
from atc.errors import OptionError, one_line, reason_of, way_out
from atc.files.arrays import load_arrays
from atc.ir.graph import Array
from atc.runtime.network import Network
from atc.runtime.values import Tensor

HINT = "give x.npy for one input, name:x.npy;name2:y.npy, or an .npz with arrays by name"


def read_feeds(
    net: Network, text: str, seed: int, of_any_shape: bool = False
) -> tuple[dict[str, Array], str]:
    """Return the inputs by name that `text` means, and what they are, for people.

    `text` is empty (seeded numbers), an .npz, an .npy, or a list `name:a.npy;name2:b.npy`. Shapes
    are the largest, or with `of_any_shape` given arrays have any that the network takes. Raises
    OptionError for files that can't be read or don't fit the network.
    """
    types = {t.name: (tuple(t.shape), np.dtype(t.dtype)) for t in net.inputs}
    if not text:
        return random_inputs(types, seed), f"seed {seed}"
    lowest = {t.name: t.lowest for t in net.inputs if of_any_shape and t.lowest}
    return fitting(types, text, lowest), text


def fitting(
    types: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], text: str,
    lowest: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> dict[str, Array]:  # fmt: skip
    """Return the arrays that `text` names for inputs of these types; raises OptionError.

    Inputs may be smaller, down to the `lowest` extents.
    """
    found = _arrays(text, list(types))
    for name, (shape, dtype) in types.items():
        if name not in found:
            raise OptionError(f"there is no array for '{one_line(name, 60)}'", where="--input",
                              hint=HINT)  # fmt: skip
        array, tensor = found[name], Tensor(name, shape, dtype, lowest=lowest.get(name, ()))
        if not tensor.takes(array.shape) or array.dtype != dtype:
            raise OptionError(
                f"'{one_line(name, 60)}' is {array.dtype} {list(array.shape)}, the network takes "
                f"{dtype} [{', '.join(tensor.extents)}]", where="--input",
            )  # fmt: skip
    return {name: found[name] for name in types}


def _arrays(text: str, names: list[str]) -> Mapping[str, Array]:
    if text.endswith(".npz"):
        loaded = _load(Path(text))
        return dict(loaded)
    found: dict[str, Array] = {}
    for part in filter(None, text.split(";")):
        name, colon, path = part.rpartition(":")
        if not colon:
            if len(names) != 1:
                raise OptionError(f"the network has {len(names)} inputs", where="--input",
                                  hint=HINT)  # fmt: skip
            name = names[0]
        found[name] = np.asarray(_load(Path(path)))
    return found


def _load(path: Path) -> Any:
    try:
        return load_arrays(path)
    except Exception as error:  # zipfile and numpy raise many kinds for a damaged file
        raise OptionError(
            f"{path} can't be read: {one_line(reason_of(error, path), 160)}", where="--input",
            hint=way_out(error) or HINT,
        ) from None
