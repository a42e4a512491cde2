"""Passes as text in, text out."""

from __future__ import annotations

from textwrap import dedent
from types import MappingProxyType
from typing import Any

from atc.ir.text import dump, parse
from atc.ir.verify import verify
from atc.passes import PASSES, layout_passes

NOTHING_OUTSIDE: MappingProxyType[str, Any] = MappingProxyType({})


def after(name: str, text: str, width: int = 8) -> str:
    """Return what a pass makes of a graph; `width` is the number of floats in a vector."""
    (found,) = [each for each in (*PASSES, *layout_passes(width)) if each.name == name]
    graph = parse(text)
    verify(graph, "parsing")
    changed = found.run(graph, NOTHING_OUTSIDE)
    verify(changed, name)
    return dump(changed)


def plain_lines(text: str) -> str:
    """Return a text of a test without the test's indentation."""
    return dedent(text).lstrip("\n")
