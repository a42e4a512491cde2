"""One MXNet node as its translation sees it, and the table of translations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from atc.errors import ModelError, UnsupportedError
from atc.importers.mxnet import attributes
from atc.importers.mxnet.builder import Builder
from atc.importers.mxnet.symbol import Symbol, SymbolNode
from atc.importers.mxnet.tensor import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class NodeContext:
    """A node to be translated with `b`; attributes are read with MXNet's default values.

    An attribute without a default is required. Attributes written as 'None' count as absent.
    """

    node: SymbolNode
    inputs: tuple[Tensor, ...]
    b: Builder
    inline: Callable[[Symbol, Sequence[Tensor], Mapping[int, Tensor]], tuple[Tensor, ...]]
    """Translate a subgraph: values for its variables, those of nodes that are known already."""

    def input(self, index: int) -> Tensor:
        """Return a required input."""
        if index >= len(self.inputs):
            raise self.error(f"input {index} is missing")
        return self.inputs[index]

    @property
    def x(self) -> Tensor:
        """The first input."""
        return self.input(0)

    def error(self, message: str, hint: str = "") -> ModelError:
        """Return the error for a rule that the node breaks."""
        return self.b.error(message, hint)

    def unsupported(self, message: str, hint: str = "") -> UnsupportedError:
        """Return the error for a legal use that isn't covered."""
        return self.b.unsupported(message, hint)

    def require(self, condition: bool, message: str) -> None:
        """Raise unless the node keeps a rule."""
        if not condition:
            raise self.error(message)

    def rank(self, *ranks: int) -> None:
        """Raise unless the first input has one of these ranks."""
        self.require(self.x.rank in ranks, f"rank {self.x.rank} is not possible here")

    # ---- attributes ---------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Return whether an attribute is given."""
        return not attributes.is_none(self.node.attrs.get(name, ""))

    def _read(self, name: str, default: T | None, parse: Callable[[str], T], what: str) -> T:
        text = self.node.attrs.get(name, "")
        if attributes.is_none(text):
            if default is None:
                raise self.error(f"attribute '{name}' is missing")
            return default
        try:
            return parse(text)
        except (ValueError, OverflowError):
            raise self.error(f"attribute '{name}' is {text[:80]!r}, not {what}") from None

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an integer attribute."""
        return self._read(name, default, attributes.parse_int, "an integer")

    def maybe_integer(self, name: str) -> int | None:
        """Return an integer attribute, None where it isn't given."""
        return self.integer(name) if self.has(name) else None

    def truth(self, name: str, default: bool | None = None) -> bool:
        """Return a truth value."""
        return self._read(name, default, attributes.parse_bool, "True or False")

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number."""
        return self._read(name, default, attributes.parse_float, "a number")

    def maybe_number(self, name: str) -> float | None:
        """Return a number, None where it isn't given."""
        return self.number(name) if self.has(name) else None

    def word(self, name: str, default: str | None = None, allowed: Sequence[str] = ()) -> str:
        """Return a word, one of `allowed` where that is given."""
        text = self._read(name, default, lambda t: t.strip(), "a word")
        if allowed and text not in allowed:
            raise self.unsupported(f"{name}={text[:80]!r}", f"one of {', '.join(allowed)}")
        return text

    def maybe_integers(
        self, name: str, default: Sequence[int] | None = None
    ) -> tuple[int | None, ...]:
        """Return a tuple of integers that may hold None."""
        given = None if default is None else tuple(default)
        return self._read(name, given, attributes.parse_ints, "a tuple of integers")

    def integers(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return a tuple of integers."""
        values = self.maybe_integers(name, default)
        if None in values:
            raise self.error(f"attribute '{name}' holds None")
        return tuple(v for v in values if v is not None)

    def numbers(self, name: str, default: Sequence[float] | None = None) -> tuple[float, ...]:
        """Return a tuple of numbers."""
        given = None if default is None else tuple(default)
        return self._read(name, given, attributes.parse_floats, "a tuple of numbers")

    def spatial(self, name: str, rank: int, default: int) -> tuple[int, ...]:
        """Return one integer for each of `rank` spatial axes; () means all `default`."""
        values = self.integers(name, ())
        if not values:
            return (default,) * rank
        self.require(len(values) == rank, f"attribute '{name}' has {len(values)} of {rank} numbers")
        return values

    def element_type(self, name: str = "dtype", default: str = "float32") -> np.dtype[np.generic]:
        """Return an element type that is written by name."""
        text = self.word(name, default)
        found = DTYPES.get(text)
        if found is None:
            raise self.unsupported(f"{name}={text[:80]!r}", f"one of {', '.join(DTYPES)}")
        return found

    def axis(self, value: int, rank: int) -> int:
        """Return a non-negative axis."""
        if not -rank <= value < rank:
            raise self.error(f"axis {value} is outside rank {rank}")
        return value % rank

    def axes(self, name: str, rank: int) -> tuple[int, ...]:
        """Return the distinct axes of an attribute, non-negative; () where it isn't given."""
        found = tuple(self.axis(v, rank) for v in self.integers(name, ()))
        self.require(len(set(found)) == len(found), f"attribute '{name}' repeats an axis")
        return found


DTYPES: Mapping[str, np.dtype[np.generic]] = MappingProxyType(
    {n: np.dtype(n) for n in (
        "float32", "float64", "float16", "int32", "int64", "int8", "uint8", "bool",
    )}
)  # fmt: skip
"""Element types as attributes spell them."""

Translation = Callable[[NodeContext], "Tensor | Sequence[Tensor]"]
"""Emits ONNX nodes and returns the MXNet node's outputs, in order."""

F = TypeVar("F", bound=Translation)


@dataclass(frozen=True)
class Rule:
    """The translation of one MXNet operator.

    `reads` is the number of inputs that inference reads (labels come after them), None for all;
    `weights` are the inputs that are parameters, whose types are those of the data.
    """

    translate: Translation
    reads: int | None = None
    weights: tuple[int, ...] = ()


_TABLE: dict[str, Rule] = {}

RULES: Mapping[str, Rule] = MappingProxyType(_TABLE)
"""All translations by MXNet operator name; the ops_* modules fill it when they are imported."""


def translates(
    *ops: str, reads: int | None = None, weights: Sequence[int] = ()
) -> Callable[[F], F]:
    """Register a translation under all names of an operator."""

    def register(function: F) -> F:
        for op in ops:
            if op in _TABLE:
                raise ValueError(f"{op} is registered twice")
            _TABLE[op] = Rule(function, reads, tuple(weights))
        return function

    return register
