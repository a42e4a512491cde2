"""The grammar of `--input`: `[name:]value;...`, values from files, literals and shapes.

Differences from MegEngine's tool: `.ppm` headers may stand on any lines, images may be text (P2,
P3), arrays in Fortran's order are transposed, JSON's `raw` must have as many numbers as the shape
says, `.npz` files are read. Whole numbers are taken for inputs of any type that holds them, images
for inputs with channels first too.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from atc.errors import OptionError, one_line, reason_of, way_out
from atc.files.arrays import load_arrays
from atc.files.regular import regular
from atc.ir.graph import Array
from atc.load_and_run.images import read_image

OPTION = "--input"
DEFAULT_NAME = "data"
_JSON_TYPES = {"float32": "f4", "float": "f4", "int32": "i4", "int": "i4", "int8": "i1",
               "uint8": "u1"}  # fmt: skip
_NPY_TYPES = frozenset({"f4", "i4", "i2", "u2", "i1", "u1", "i8", "f8", "f2", "b1"})


@dataclass(frozen=True)
class Filled:
    """A shape whose every byte is to be 1; the type is the model's."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Given:
    """An input as the user gave it. `literal` arrays may have a leading 1 too many.

    `named` is false where the name is only the grammar's default. An `image` is an array of shape
    [1, height, width, channels].
    """

    name: str
    value: Array | Filled
    literal: bool = False
    named: bool = True
    image: bool = False

    def laid_out(self, fits: Callable[[tuple[int, ...]], bool]) -> Given:
        """Return the input with an image's channels first, if only so its shape `fits`."""
        if not self.image or isinstance(self.value, Filled) or fits(self.value.shape):
            return self
        transposed = self.value.transpose(0, 3, 1, 2)
        return replace(self, value=transposed) if fits(transposed.shape) else self


def read_inputs(text: str) -> tuple[Given, ...]:
    """Return the inputs of an `--input` text; raises OptionError that shows the wrong item."""
    found = [given for item in text.split(";") if item.strip() for given in _item(item.strip())]
    names = [given.name for given in found]
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"duplicate name '{one_line(name, 60)}'", where=OPTION)
    return tuple(found)


def _item(item: str) -> Iterator[Given]:
    name, colon, value = item.partition(":")
    if not colon:
        name, value = DEFAULT_NAME, item
    value = value.strip()
    suffix = Path(value).suffix.lower() if not value.startswith(("[", "{")) else ""
    try:
        match suffix:
            case ".json":
                for key, array in _json(Path(value)).items():
                    yield Given(key, array)
            case ".npz":
                with load_arrays(Path(value)) as arrays:
                    yield from [Given(key, arrays[key]) for key in arrays.files]
            case ".npy":
                yield Given(name, _npy(Path(value)), named=bool(colon))
            case ".ppm" | ".pgm":
                yield Given(name, read_image(Path(value)), named=bool(colon), image=True)
            case _ if value.startswith("{"):
                yield Given(name, Filled(_shape(value)), named=bool(colon))
            case _:
                yield Given(name, parse_literal(value), literal=True, named=bool(colon))
    except OptionError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = one_line(reason_of(error, value), 200)
        raise OptionError(
            f"'{one_line(value, 80)}' can't be read: {reason}", where=OPTION, hint=way_out(error)
        ) from None


# ---- values -------------------------------------------------------------------------------------


def _shape(text: str) -> tuple[int, ...]:
    if not text.endswith("}"):
        raise ValueError("the closing brace is missing")
    dims = [part.strip() for part in text[1:-1].split(",")]
    if not all(part.isdecimal() for part in dims):
        raise ValueError("a shape is {n,c,h,w}")
    return tuple(int(part) for part in dims)


def parse_literal(text: str) -> Array:
    """Return the array of a text such as `[[1,2],[3,4]]`: int32, or float32.

    The latter where a `.` stands in it, or a number isn't whole (`5e-1`, which MegEngine makes 0).
    The shape has a dimension for each level of brackets, counted at the first child, and a
    leading 1 for the outermost; the last one is what remains of the number of values.
    """
    levels, values = _scan(text)
    known = int(np.prod(levels, dtype=np.int64))
    if not values or len(values) % known:
        raise ValueError(f"{len(values)} values don't fill the brackets")
    try:
        numbers = [float(v) for v in values]
        if "." in text or not all(n.is_integer() for n in numbers):
            array = np.array(numbers, np.float32)
        else:
            array = np.array([int(n) for n in numbers], np.int32)
    except (OverflowError, ValueError) as error:
        raise ValueError(f"a number is wrong: {error}") from None
    return array.reshape((*levels, len(values) // known))


def _scan(text: str) -> tuple[list[int], list[str]]:
    """Return the number of children at each level's first bracket, and the numbers."""
    counts: list[int] = []
    first: list[bool] = []
    values: list[str] = []
    depth, number = 0, ""
    counts.append(0)
    first.append(True)
    for character in f"{text},":
        if character in "[],":
            if number.strip():
                values.append(number.strip())
            number = ""
        match character:
            case "[":
                if first[depth]:
                    counts[depth] += 1
                depth += 1
                if depth == len(counts):
                    counts.append(0)
                    first.append(True)
            case "]":
                first[depth] = False
                depth -= 1
                if depth < 0:
                    raise ValueError("a bracket is closed that isn't open")
            case ",":
                pass
            case _:
                number += character
    if depth:
        raise ValueError("a bracket isn't closed")
    return [n for n in counts[:-1] if n] or [1], values


def _json(path: Path) -> dict[str, Array]:
    content = json.loads(regular(path).read_text("utf-8"))
    if not isinstance(content, dict):
        raise ValueError("the file holds no JSON object")
    return {str(name): _json_array(str(name), entry) for name, entry in content.items()}


def _json_array(name: str, entry: Any) -> Array:
    whose = f"'{one_line(name, 60)}'"
    if not isinstance(entry, dict) or not {"shape", "type", "raw"} <= set(entry):
        raise ValueError(f"{whose} must have shape, type and raw")
    shape, kind, raw = entry["shape"], entry["type"], entry["raw"]
    if not isinstance(shape, list) or not all(type(d) is int and d >= 0 for d in shape):
        raise ValueError(f"{whose}: shape must be a list of whole numbers")
    if kind not in _JSON_TYPES:
        raise ValueError(f"{whose}: type must be one of {', '.join(_JSON_TYPES)}")
    if not isinstance(raw, list):
        raise ValueError(f"{whose}: raw must be a flat list of numbers")
    if len(raw) != int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{whose}: {len(raw)} numbers for the shape {shape}")
    dtype = np.dtype(_JSON_TYPES[kind])
    numbers = np.array([_number(whose, v) for v in raw], np.float64)
    if dtype.kind == "f":
        return numbers.astype(dtype).reshape(shape)
    numbers = np.rint(numbers)
    limits = np.iinfo(dtype)
    if not ((limits.min <= numbers) & (numbers <= limits.max)).all():
        raise ValueError(f"{whose}: raw holds numbers that are not {kind}")
    return numbers.astype(dtype).reshape(shape)


def _number(whose: str, value: object) -> float:
    """Return a number, or what a string says in the way of JSON's numbers."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
        raise ValueError(f"{whose}: '{one_line(value, 40)}' in raw is not a number")
    if type(value) not in (int, float):
        raise ValueError(f"{whose}: raw must be a flat list of numbers")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise ValueError(f"{whose}: a number in raw is too large") from None


def _npy(path: Path) -> Array:
    array: Array = load_arrays(path)
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError("the file holds several arrays")
    if array.dtype.str[1:] not in _NPY_TYPES:
        raise ValueError(f"arrays of {array.dtype} are not read")
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))


# ---- inputs of a network ------------------------------------------------------------------------

Signature = Mapping[str, tuple[tuple[int, ...], "np.dtype[Any]"]]
"""Shapes and types by the names of a network's inputs."""


def fit_inputs(
    given: Sequence[Given], signature: Signature, batch_size: int = -1,
    lowest: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Array]:  # fmt: skip
    """Return an array for every input of a network: what is given, else zeros.

    An only input needs no name. Inputs named in `lowest` take shapes from there up to that of the
    signature. Raises OptionError naming the input that doesn't fit.
    """
    found: dict[str, Array] = {}
    for each in given:
        name = input_name(each, tuple(signature))
        shape, dtype = signature[name]
        low = (lowest or {}).get(name, shape)
        found[name] = _fitted(each, name, shape, dtype, batch_size, low)
    return {
        name: found.get(name, np.zeros(shape, dtype)) for name, (shape, dtype) in signature.items()
    }


def input_name(given: Given, names: Sequence[str]) -> str:
    """Return which of a network's inputs is meant."""
    if given.name in names:
        return given.name
    if not given.named and len(names) == 1:
        return names[0]
    listed = ", ".join(one_line(n, 60) for n in names)
    raise OptionError(
        f"the network has no input '{one_line(given.name, 60)}'", where=OPTION,
        hint=f"its inputs are {listed}" if names else "it has no inputs",
    )  # fmt: skip


def _fitted(
    given: Given, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], batch_size: int,
    low: tuple[int, ...],
) -> Array:  # fmt: skip
    given = given.laid_out(lambda found: _between(low, found, shape))
    array = _array_of(given.value, dtype)
    if given.literal and array.ndim == len(shape) + 1:
        array = array[0] if array.shape[0] == 1 else array
    if batch_size > 0 and array.ndim and array.shape[0]:
        array = array[np.arange(batch_size) % array.shape[0]]
    whose = f"input '{one_line(name, 60)}'"
    array = _typed(array, dtype, whose, given.literal)
    fits = _between(low, array.shape, shape)
    if not fits and low != shape:
        raise OptionError(
            f"{whose} must have a shape from {list(low)} to {list(shape)}, not "
            f"{list(array.shape)}", where=OPTION,
        )  # fmt: skip
    if not fits:
        raise OptionError(
            f"{whose} must have the shape {list(shape)}, not {list(array.shape)}", where=OPTION,
            hint="a library has fixed shapes: compile the model for another one",
        )  # fmt: skip
    return np.ascontiguousarray(array)


def _between(low: Sequence[int], shape: Sequence[int], high: Sequence[int]) -> bool:
    """Return whether a shape lies in a range of shapes, both ends in it."""
    return len(shape) == len(high) and all(
        least <= d <= most for least, d, most in zip(low, shape, high, strict=True)
    )


def _typed(array: Array, dtype: np.dtype[Any], whose: str, literal: bool) -> Array:
    """Return an array in an input's type: whole numbers in any that holds them all.

    A literal's floats become floats of any width. Raises OptionError for what doesn't fit.
    """
    if array.dtype == dtype:
        return array
    wide = literal and array.dtype.kind == dtype.kind == "f"
    if not wide and (array.dtype.kind not in "iu" or dtype.kind not in "iufb"):
        raise OptionError(f"{whose} must be {dtype}, not {array.dtype}", where=OPTION)
    with np.errstate(all="ignore"):
        found = array.astype(dtype)
    if not wide and not np.array_equal(found.astype(array.dtype), array):
        raise OptionError(f"{whose} must be {dtype}, which doesn't hold all of its numbers",
                          where=OPTION)  # fmt: skip
    return found


def _array_of(value: Array | Filled, dtype: np.dtype[Any]) -> Array:
    if not isinstance(value, Filled):
        return value
    count = int(np.prod(value.shape, dtype=np.int64)) * dtype.itemsize
    return np.ones(count, np.uint8).view(dtype).reshape(value.shape)
