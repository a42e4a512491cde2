"""Portable kernels of strings: cells of a fixed size, each ended by a NUL."""

from __future__ import annotations

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.target import Target
from atc.ir.graph import DType
from atc.ir.ops.strings import (
    FLOAT_DIGITS,
    StringConcat,
    StringMatch,
    StringOf,
    StringPieces,
    StringRewrite,
    StringTokens,
    StringValue,
)


class ConcatStrings(Kernel[StringConcat]):
    """One string after another."""

    name = "string_concat"
    op = StringConcat
    template = "cpu/special/string_concat.c.j2"
    fallible = ("STRING",)

    def values(
        self, w: Workload[StringConcat], params: Params, target: Target
    ) -> dict[str, object]:
        """Return the number of strings."""
        return {"count": w.outputs[0].size}


class RewriteStrings(Kernel[StringRewrite]):
    """Code points replaced by a table, which is searched by bisection."""

    name = "string_rewrite"
    op = StringRewrite
    template = "cpu/special/string_rewrite.c.j2"
    fallible = ("STRING",)

    def values(
        self, w: Workload[StringRewrite], params: Params, target: Target
    ) -> dict[str, object]:
        """Sizes of the data and of the table."""
        op = w.op
        return {"count": w.outputs[0].size, "codes": op.codes, "width": 1 + op.longest}


class MatchStrings(Kernel[StringMatch]):
    """A deterministic automaton over bytes."""

    name = "string_match"
    op = StringMatch
    template = "cpu/special/string_match.c.j2"

    def values(self, w: Workload[StringMatch], params: Params, target: Target) -> dict[str, object]:
        """Return the numbers of strings and of classes of bytes."""
        op = w.op
        return {"count": w.outputs[0].size, "classes": op.classes}


class WriteNumbers(Kernel[StringOf]):
    """Numbers as decimal text, exactly rounded."""

    name = "string_of"
    op = StringOf
    template = "cpu/special/string_of.c.j2"

    def values(self, w: Workload[StringOf], params: Params, target: Target) -> dict[str, object]:
        """Return the kind of numbers, and how an element is read."""
        x = w.input(0)
        kind = "float" if x.dtype.is_float else "signed" if x.dtype.is_signed else "unsigned"
        return {
            "count": w.outputs[0].size, "kind": kind, "value": "x0[i]", "digits": FLOAT_DIGITS
        }  # fmt: skip


class ReadNumbers(Kernel[StringValue]):
    """Decimal text as numbers."""

    name = "string_value"
    op = StringValue
    template = "cpu/special/string_value.c.j2"
    fallible = ("NUMBER",)

    def values(self, w: Workload[StringValue], params: Params, target: Target) -> dict[str, object]:
        """Return the operand's type and the conversion."""
        dtype = w.outputs[0].dtype
        kind = "signed" if dtype.is_signed else "unsigned"
        cast = f"k_cast_f64_{dtype.label}(value)"
        if dtype.is_float:
            kind, cast = "float", f"({dtype.c})value"
        elif dtype is DType.BOOL:
            kind, cast = "bool", "value != 0"
        read = "(double)strtof" if dtype is DType.FLOAT else "strtod"
        return {
            "count": w.outputs[0].size, "kind": kind, "type": dtype.c, "read": read, "cast": cast
        }  # fmt: skip


class SplitStrings(Kernel[StringPieces]):
    """The parts between delimiters, counted first."""

    name = "string_pieces"
    op = StringPieces
    template = "cpu/special/string_pieces.c.j2"
    dynamic = True

    def values(
        self, w: Workload[StringPieces], params: Params, target: Target
    ) -> dict[str, object]:
        """Return the op, how many strings there are, and the delimiter as C's bytes."""
        op = w.op
        codes = ", ".join(f"0x{byte:02x}" for byte in op.delimiter)
        return {"op": op, "count": w.outputs[1].size, "codes": codes, "size": len(op.delimiter)}


class FindTokens(Kernel[StringTokens]):
    """The tokens that a deterministic automaton finds, counted first."""

    name = "string_tokens"
    op = StringTokens
    template = "cpu/special/string_tokens.c.j2"
    dynamic = True

    def values(
        self, w: Workload[StringTokens], params: Params, target: Target
    ) -> dict[str, object]:
        """Return the op and how many strings there are."""
        x = w.input(0)
        return {"op": w.op, "count": x.size}


KERNELS = (ConcatStrings(), RewriteStrings(), MatchStrings(), WriteNumbers(), ReadNumbers(),
           SplitStrings(), FindTokens())  # fmt: skip
