"""Ops on strings: cells of `DType.STRING`, each UTF-8 ended by a NUL.

An op whose result may not fit a cell makes the run return a status.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops.elementwise import require


class StringOp(Op):
    """An op that knows what a string is."""


def _all_strings(types: Sequence[TensorType | None], size: int) -> None:
    for type_ in types:
        require(type_ is not None and type_.dtype is DType.STRING, f"{type_} is not a string")
        require(type_ is not None and type_.size == size, f"{type_} for {size} strings")


@dataclass(frozen=True)
class StringConcat(StringOp):
    """y[i] = x0[i] with x1[i] after it.  ONNX StringConcat-20."""

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that there are as many strings on both sides."""
        require(len(inputs) == 2, f"{len(inputs)} operands")
        _all_strings((*inputs, *outputs), outputs[0].size)


@dataclass(frozen=True)
class StringRewrite(StringOp):
    """y[i] = x0[i] with each code point that x1 lists replaced.  ONNX StringNormalizer-10.

    x1 is INT32 [codes, 1 + `longest`]: in ascending order a code point, then those that stand for
    it, 0 after the last one. Bytes that aren't UTF-8 stay as they are.
    """

    codes: int
    longest: int

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that the table has its size."""
        require(len(inputs) == 2, f"{len(inputs)} operands")
        _all_strings((inputs[0], outputs[0]), outputs[0].size)
        table = inputs[1]
        require(table is not None and table.dtype is DType.INT32, f"the table is {table}")
        require(table is not None and table.size == self.codes * (1 + self.longest), f"{table}")


FLOAT_DIGITS = 8
"""Significant digits of a real number's text: those that onnxruntime writes."""


@dataclass(frozen=True)
class StringOf(StringOp):
    """y[i] = x0[i] in decimal digits; real numbers as printf's %.8g, NaN, INF.  ONNX Cast-25."""

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Numbers of a type that C has."""
        x = inputs[0]
        _all_strings(outputs, outputs[0].size)
        require(x is not None and x.size == outputs[0].size, f"{x} -> {outputs[0]}")
        require(x is not None and x.dtype.computed is x.dtype, f"{x}")
        require(x is not None and x.dtype is not DType.STRING, f"{x}")


@dataclass(frozen=True)
class StringValue(StringOp):
    """y[i] = the number that x0[i] is; a fraction is cut off of integers.  ONNX Cast-25."""

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Numbers of a type that C has."""
        y = outputs[0]
        _all_strings(inputs, y.size)
        require(y.dtype.computed is y.dtype and y.dtype is not DType.STRING, f"{y}")


@dataclass(frozen=True)
class StringMatch(StringOp):
    """y[i] = whether an automaton accepts all bytes of x0[i].  ONNX RegexFullMatch-20.

    Operands: x0; UINT8 [256], the class of each byte; UINT16 [states, classes], the next state;
    BOOL [states], whether the string may end there. It starts in state 1; state 0 is never left.
    """

    states: int
    classes: int

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that the tables have their sizes."""
        require(len(inputs) == 4 and None not in inputs, f"{len(inputs)} operands")
        x, byte, step, accept = inputs
        assert byte is not None
        assert step is not None
        assert accept is not None
        _all_strings((x,), outputs[0].size)
        require(outputs[0].dtype is DType.BOOL, f"{outputs[0]}")
        sizes = (byte.size, step.size, accept.size)
        require(sizes == (256, self.states * self.classes, self.states), f"tables of {sizes}")
        dtypes = (byte.dtype, step.dtype, accept.dtype)
        require(dtypes == (DType.UINT8, DType.UINT16, DType.BOOL), f"tables of {dtypes}")


@dataclass(frozen=True)
class StringPieces(StringOp):
    """y0 [n, width] = the parts of each string between delimiters, then ""; y1 [n] how many.

    `width` is the greatest number of parts. Without a `delimiter` white space divides, and begins
    and ends no part. Behind `most` delimiters all is one part, unless that is -1.
    ONNX StringSplit-20.
    """

    width: int
    delimiter: bytes
    most: int

    @property
    def written(self) -> tuple[int, ...]:
        """The extent that the kernel writes."""
        return (self.width,)

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that there is a row of parts for each string."""
        parts, counts = outputs
        require(counts.dtype is DType.INT64, f"{counts}")
        _all_strings(inputs, counts.size)
        _all_strings((parts,), counts.size * self.width)


@dataclass(frozen=True)
class StringTokens(StringOp):
    """y0 [n, width] = what an automaton finds in each string, the longest first, then x4[0].

    What has fewer than `least` characters is no token. With `mark` the bytes 2 and 3 stand before
    and behind a row's tokens. Operands beside x4 are those of StringMatch. onnxruntime's Tokenizer.
    """

    width: int
    states: int
    classes: int
    least: int
    mark: bool

    @property
    def written(self) -> tuple[int, ...]:
        """The extent that the kernel writes."""
        return (self.width,)

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that there is a row of tokens for each string; the tables have their sizes."""
        require(len(inputs) == 5, f"{len(inputs)} operands")
        x, *tables, pad = inputs
        assert x is not None
        _all_strings((x,), x.size)
        _all_strings(outputs, x.size * self.width)
        _all_strings((pad,), 1)
        sizes = tuple(t.size for t in tables if t is not None)
        require(sizes == (256, self.states * self.classes, self.states), f"tables of {sizes}")
