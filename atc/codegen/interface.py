"""The inputs and outputs of a library, as its C interface describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.dims import Dim, Symbol, is_data_dependent, lower_bound, upper_bound, written
from atc.ir.graph import DType, TensorType
from atc.names import c_string, comment

MAX_LITERAL = 4095
"""Characters of a string that every C99 compiler accepts."""


@dataclass(frozen=True)
class Port:
    """An input or output. `table` is the stem of its static tables' names."""

    name: str
    c_name: str
    type: TensorType
    table: str
    used: bool = True
    extents: tuple[int, ...] = ()
    """The shape as it is known at compile time; `type` has the largest."""
    ends: tuple[tuple[int, int], ...] = ()
    """With shape profiles: the smallest and the largest of each extent."""

    @property
    def label(self) -> str:
        """The model's own name, safe for a comment."""
        return comment(self.name)

    @property
    def text(self) -> str:
        """Element type and shape for people, e.g. `float32 [1, 10]`."""
        name = "string" if self.is_string else self.type.dtype.numpy.name
        ends = self.ends or tuple((lower_bound(n), upper_bound(n)) for n in self.extents)
        dims = [str(a) if a == b else f"{a}~{b}" for a, b in ends]
        return f"{name} [{', '.join(dims)}]"

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype

    @property
    def is_string(self) -> bool:
        """Whether the elements are strings."""
        return self.dtype is DType.STRING

    @property
    def parameter(self) -> str:
        """The C declaration of the pointer, without `const`."""
        return f"{self.dtype.c} *{self.c_name}"

    @property
    def has_elements(self) -> str:
        """The C of whether a run's shape has elements, over a context; "" if it always has."""
        may_be_zero = (n for n in self.extents if isinstance(n, Dim) and lower_bound(n) <= 0)
        given = (n for n in may_be_zero if not is_data_dependent(n) and not self.ends)
        return " && ".join(f"{written(n, _in_context)} != 0" for n in given)

    @property
    def long_name(self) -> Sequence[int]:
        """The name's bytes if it is too long for a C string, else nothing."""
        data = self.name.encode("utf-8", "replace")
        return data if len(data) > MAX_LITERAL else b""

    @property
    def c_string(self) -> str:
        """The name as a C expression."""
        return f"{self.table}_name" if self.long_name else c_string(self.name)


def _in_context(symbol: Symbol) -> str:
    return f"ctx->dims[{symbol.index}]"
