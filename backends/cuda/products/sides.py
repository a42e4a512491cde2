"""Operands of products by `mma.sync`, and how their tiles come to shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from atc.backends.cuda.products.tiles import Operand

ROW = 64
"""Bytes of a tile's row: the depth that is loaded at a time."""


@dataclass(frozen=True)
class Form:
    """A form of product of tensor cores: the function, the bytes of a number, the parts of a value.

    `parts` are functions of as many values as a word has numbers: words of each part of them. There
    are none where elements are multiplied as they are stored; if `stored`, memory holds numbers.
    """

    function: str
    bytes: int
    parts: tuple[str, ...] = ()
    stored: bool = True

    @property
    def planes(self) -> int:
        """The number of parts of a value."""
        return max(1, len(self.parts))

    def words(self, values: Sequence[str]) -> tuple[str, ...]:
        """Return the C of a word of each part of values, or of stored elements as words."""
        if self.parts:
            return tuple(f"{part}({', '.join(values)})" for part in self.parts)
        shifted = (f"{v} << {8 * self.bytes * k}" if k else v for k, v in enumerate(values))
        return (" | ".join(shifted),)

    @property
    def packed(self) -> int:
        """The bfloat16 of a packed value; 0: it is packed as it is stored."""
        return 0 if self.stored else self.planes

    @property
    def chunk(self) -> int:
        """Numbers of 16 bytes."""
        return 16 // self.bytes

    @property
    def depth(self) -> int:
        """Numbers of a tile's row."""
        return ROW // self.bytes


@dataclass(frozen=True)
class Side:
    """An operand's part of a tile, and how it is copied to shared memory."""

    name: str
    index: str
    rows: int
    extent: int
    first: str
    operand: Operand
    copies: tuple[tuple[str, str], ...]
    """Where a chunk of each part of a value is: base and index; none: numbers are computed."""
    begin: str
    """Where a chunk's first number lies, if that says where the others do, else ''."""
    type: str
    found: str
    """The C type and value of an element that is loaded, from which numbers are made."""
    words: tuple[str, ...]
    """The C of word `k` of a chunk of each part, of what a thread holds."""
    outside: str = ""
    """What padding holds: the variable of the zero point, '' where that is 0."""
    counted: bool = False
    """Whether the kernel sums the operand over the depth: the other one's zero point takes that."""

    @property
    def along_rows(self) -> bool:
        """Whether neighbouring threads load neighbouring rows."""
        return self.operand.along_rows


SPLIT = Form("t_bf16", 2, ("t_uppers", "t_lowers"), stored=False)
"""Floats as sums of two bfloat16; three of the four products are summed."""

ROUNDED = Form("t_bf16", 2, ("t_uppers",), stored=False)
"""Floats rounded to bfloat16."""

SHORTENED = Form("t_tf32", 4, ("t_bits",))
"""Floats, rounded to TF32 where they are multiplied."""


def side_of(
    name: str, index: str, rows: int, extent: int, operand: Operand, form: Form,
    packed: tuple[tuple[str, str], ...] = (), counted: bool = False,
) -> Side:  # fmt: skip
    """Return how a tile of an operand is loaded; of a packed one, from where chunks are copied."""
    stored = form.stored and not operand.computed and operand.chunks >= form.chunk
    copies = packed or (((operand.source, operand.place),) if stored else ())
    each = 4 // form.bytes
    at = (f"{each} * k" + (f" + {e}" if e else "") if each > 1 else "k" for e in range(each))
    words = form.words([f"{name}_held[turn][{e}]" for e in at])
    begin, read = "", operand
    if operand.run >= form.chunk and not copies:
        begin = f"{operand.source} + (inside ? {operand.place} : 0)"
        read = replace(operand, source=f"{name}_from", place=f"e * {operand.stride}")
    elif operand.inside and not copies:
        read = replace(operand, place=f"inside ? {operand.place} : 0")
    return Side(
        name, index, rows, extent, f"tile_{index} * {rows}", operand, copies, begin,
        "float" if form.parts else "uint32_t",
        read.value if form.parts else f"(uint{8 * form.bytes}_t){read.element}",
        words, f"{name}_zero" if operand.inside and operand.zero else "", counted,
    )  # fmt: skip
