"""C as templates write it: what of it is code, and which names the code has.

All that changes the C of kernels, or asks what is in it, does so by these functions. Comments,
strings and lines of the preprocessor aren't code.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_OTHER = re.compile(
    r"""(/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|^[ ]*\#(?:\\\n|[^\n])*)""",
    re.DOTALL | re.MULTILINE,
)
_NAME = re.compile(r"\b[A-Za-z_]\w*")
_FUNCTION = re.compile(r"(?P<head>^[^\n]*\)\n{\n)(?P<body>.*?)(?=^})", re.DOTALL | re.MULTILINE)


def changed(text: str, change: Callable[[str], str]) -> str:
    """Return C whose code is what `change` makes of its parts, between all that is no code."""
    return "".join(part if k % 2 else change(part) for k, part in enumerate(_OTHER.split(text)))


def names_in(text: str) -> frozenset[str]:
    """Return the names that the code has."""
    return frozenset(_NAME.findall(_OTHER.sub(" ", text)))


def functions_changed(text: str, change: Callable[[str, str], str]) -> str:
    """Return C with each function as `change` makes it of its head and its body's lines."""
    return _FUNCTION.sub(lambda found: change(found["head"], found["body"]), text)
