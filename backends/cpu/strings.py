"""Portable kernels of strings: cells of a fixed size, each ended by a NUL."""

from __future__ import annotations

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.target import Target
from atc.ops.strings import StringConcat, StringMatch, StringRewrite


class ConcatStrings(Kernel):
    """One string after another."""

    name = "string_concat"
    op = StringConcat
    template = "cpu/string_concat.c.j2"
    fallible = True

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """How many strings there are."""
        return {"count": w.outputs[0].size}


class RewriteStrings(Kernel):
    """Code points replaced by a table, which is searched by halves."""

    name = "string_rewrite"
    op = StringRewrite
    template = "cpu/string_rewrite.c.j2"
    fallible = True

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """Sizes of the data and of the table."""
        op = w.op
        assert isinstance(op, StringRewrite)
        return {"count": w.outputs[0].size, "codes": op.codes, "width": 1 + op.longest}


class MatchStrings(Kernel):
    """A deterministic automaton over bytes."""

    name = "string_match"
    op = StringMatch
    template = "cpu/string_match.c.j2"

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """How many strings, and classes of bytes, there are."""
        op = w.op
        assert isinstance(op, StringMatch)
        return {"count": w.outputs[0].size, "classes": op.classes}


KERNELS = (ConcatStrings(), RewriteStrings(), MatchStrings())
