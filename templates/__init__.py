"""The templates and the one Jinja environment that renders them.

Values in, text out; imports nothing of ours.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from atc.templates.compiled import Beside, StoredBytecode, keeping_templates

__all__ = [
    "FOLDER", "TemplateRuleError", "environment", "keeping_templates", "render", "verbatim",
]  # fmt: skip

FOLDER = Path(__file__).parent


class TemplateRuleError(AssertionError):
    """A template's own `require(condition, message)` failed: a kernel gave it wrong values."""


def _require(condition: bool, message: str) -> str:
    if not condition:
        raise TemplateRuleError(message)
    return ""


def _uses(text: str, name: str) -> bool:
    """Return whether C text names a variable."""
    return re.search(rf"\b{name}\b", text) is not None


def _times(term: str, factor: object) -> str:
    """Return the C of a term times a factor; a sum among terms is put into parentheses."""
    if str(factor) == "1":
        return term
    return f"({term}) * {factor}" if re.search(r" [+-] ", term) else f"{term} * {factor}"


def _plus(term: str, offset: object) -> str:
    """Return the C of a term and what is added to it."""
    if isinstance(offset, int) and offset < 0:
        return _minus(term, -offset)
    return term if str(offset) == "0" else f"{term} + {offset}"


def _minus(term: str, offset: object) -> str:
    """Return the C of a term and what is taken off it."""
    if isinstance(offset, int) and offset < 0:
        return _plus(term, -offset)
    return term if str(offset) == "0" else f"{term} - {offset}"


def _over(term: str, divisor: int) -> str:
    """Return the C of a quotient, rounded up; the term isn't negative."""
    return term if divisor == 1 else f"({term} + {divisor - 1}) / {divisor}"


@cache
def environment() -> Environment:
    """Return the environment: undefined names are errors, block lines leave no blank lines."""
    env = Environment(
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        bytecode_cache=StoredBytecode(Beside(FOLDER)),
    )
    env.globals["require"] = _require
    env.globals["uses"] = _uses
    env.filters |= {"times": _times, "plus": _plus, "minus": _minus, "over": _over}
    return env


def render(name: str, values: dict[str, object]) -> str:
    """Render a template, e.g. `cpu/map/portable.c.j2`, with these values."""
    return environment().get_template(name).render(values)


@cache  # each kernel that compilers begin with early needs the same few
def verbatim(name: str) -> str:
    """Return a file that goes into generated projects as it is, e.g. `simd/avx2.h`."""
    return (FOLDER / name).read_text("utf-8")
