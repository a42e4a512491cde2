"""The self-test of a library: inputs by a formula, and what elements of the outputs must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from atc.codegen.interface import Port
from atc.errors import OptionError
from atc.ir.graph import Array

VALUES = 192
"""Numbers that a self-test compares, in all outputs together: 768 bytes."""

_INTEGERS = {"int8": "(int)({0} >> 24) - 128", "uint8": "{0} >> 24"}
_OTHERS = ("int16", "int32", "int64", "uint16", "uint32", "uint64", "bool")


@dataclass(frozen=True)
class Golden:
    """What every `stride`-th element of an output must be, give or take `tolerance`."""

    values: tuple[float, ...]
    stride: int
    tolerance: float
    is_float: bool

    @property
    def type(self) -> str:
        """The C type that values are compared in."""
        return "float" if self.is_float else "int64_t"

    @property
    def limit(self) -> str:
        """The tolerance in C."""
        return self._number(self.tolerance)

    @property
    def lines(self) -> list[str]:
        """The values in C, eight a line."""
        texts = [self._number(v) for v in self.values]
        return [", ".join(texts[k : k + 8]) for k in range(0, len(texts), 8)]

    def _number(self, value: float) -> str:
        return _float(value) if self.is_float else str(int(value))


def _float(value: float) -> str:
    text = f"{value:.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def golden_of(outputs: Sequence[Array], tolerance: float) -> tuple[Golden, ...]:
    """Return what a self-test compares of a reference's outputs; OptionError for no numbers."""
    count = max(VALUES // max(len(outputs), 1), 1)
    found = []
    for k, output in enumerate(outputs):
        array = np.asarray(output).ravel()
        is_float = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
        if not is_float and array.dtype.kind not in "iub":
            raise OptionError(f"output {k} is {array.dtype}", where="--selftest",
                              hint="self-tests compare numbers")  # fmt: skip
        stride = max(-(-array.size // count), 1)
        values = array[::stride].astype(np.float64)
        if not np.isfinite(values).all() or np.abs(values).max(initial=0) >= 2**62:
            raise OptionError(
                f"output {k} has no finite numbers for the self-test's inputs", where="--selftest"
            )
        scale = float(np.abs(array.astype(np.float64)).max(initial=0)) or 1.0
        step = float(array.dtype.kind in "iu" and array.dtype.itemsize == 1)
        allowed = tolerance * scale if is_float else step
        found.append(Golden(tuple(values.tolist()), stride, allowed, is_float))
    return tuple(found)


def formula(port: Port) -> str:
    """Return the C of an element of an input over the generator's next number."""
    name, word = port.dtype.numpy.name, "next(&state)"
    if name in ("float32", "float64"):
        text = f"(float)((int32_t)({word} >> 16) - 32768) / 32768.0f"
        return text if name == "float32" else f"(double)({text})"
    if name in _INTEGERS:
        return f"({port.dtype.c})({_INTEGERS[name].format(word)})"
    return f"({port.dtype.c})({word} >> 31)"


def inputs_by_formula(shape: Sequence[int], dtype: np.dtype, number: int) -> Array:
    """Return the self-test's input of this number, as `formula` makes it in C.

    Raises OptionError for types that it has no formula for.
    """
    name = np.dtype(dtype).name
    if name not in ("float32", "float64", *_INTEGERS, *_OTHERS):
        raise OptionError(f"an input is {name}", where="--selftest",
                          hint="self-tests have inputs of numbers of 32 or 64 bits, or integers"
                          )  # fmt: skip
    state, words = number + 1, np.empty(prod(shape), np.uint32)
    for k in range(words.size):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        words[k] = state
    values: Array
    if name.startswith("float"):
        values = ((words >> 16).astype(np.float32) - 32768) / np.float32(32768)
    elif name in _INTEGERS:
        values = (words >> 24).astype(np.int32) - (128 if name == "int8" else 0)
    else:
        values = words >> 31
    return values.astype(dtype).reshape(tuple(shape))
