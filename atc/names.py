"""The user's names in generated text: identifiers and comments that no model can break out of."""

from __future__ import annotations

import re
from collections.abc import Iterable

RESERVED = frozenset(
    """auto break case char const continue default do double else enum extern float for goto if
    inline int long register restrict return short signed sizeof static struct switch typedef union
    unsigned void volatile while bool true false asm typeof main NULL class new delete this template
    namespace public private protected virtual operator using try catch throw export and or not xor
    ctx arena arena_size status weights inputs outputs linux unix errno stdin stdout stderr""".split()
)
"""Words of C and C++ and of the generated code itself that a tensor's parameter can't be called."""


def identifier(name: str, fallback: str = "net") -> str:
    """Return a C identifier made of the name's ASCII letters, digits and underscores."""
    text = re.sub(r"[^A-Za-z0-9_]+", "_", name)[:48].strip("_")
    if not text:
        return fallback
    if text[0].isdigit() or text in RESERVED:
        text = f"{fallback}_{text}"
    return text


def unique_identifiers(names: Iterable[str], fallback: str) -> list[str]:
    """Return one distinct identifier per name, in order."""
    taken: set[str] = set()
    result = []
    for name in names:
        base = identifier(name, fallback)
        text, n = base, 1
        while text in taken:
            n += 1
            text = f"{base}_{n}"
        taken.add(text)
        result.append(text)
    return result


def comment(name: str, limit: int = 60) -> str:
    """Return the name as it may stand in a C comment: no end of comment, trigraph or control."""
    text = "".join(c if " " <= c <= "~" and c not in "\\?" else "_" for c in name[: limit + 1])
    text = text.replace("*/", "*_").replace("/*", "/_")
    text = text.replace("*/", "*_")
    return text if len(text) <= limit else text[: limit - 3] + "..."


def c_string(text: str) -> str:
    """Return a C string literal with these UTF-8 bytes."""
    out = []
    for byte in text.encode("utf-8", "replace"):
        char = chr(byte)
        plain = " " <= char <= "~" and char not in '"\\?'
        out.append(char if plain else f"\\{byte:03o}")
    return '"' + "".join(out) + '"'
