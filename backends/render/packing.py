"""Packings: constants arranged as kernels read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from atc.ir.graph import Array

Pack = Callable[[Array], Array]
"""Arranges a constant as a kernel reads it."""


@dataclass(frozen=True)
class PackInParts:
    """A packing whose result, several times the constant, needn't be whole in memory."""

    parts: Callable[[Array], Iterator[tuple[int, Array]]]
    """Returns flat parts of the result, each with the element at which it begins."""
    size: int
    """The elements of all, which have the constant's type."""

    def __call__(self, constant: Array) -> Array:
        """Return the whole."""
        result = np.empty(self.size, constant.dtype)
        for begin, part in self.parts(constant):
            result[begin : begin + part.size] = part
        return result
