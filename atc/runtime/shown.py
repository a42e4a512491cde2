"""Tables for notebooks, in which names mean nothing but themselves.

A part of `atc/runtime/network.py`; generated projects carry both in one module.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_LONGEST_NAME = 120
"""Characters of a cell."""


def html_table(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[object]], note: str = ""
) -> str:
    """Return a table as HTML, whatever its texts hold; `note` is a line below it."""
    lines = [f"<table><caption>{_shown(title)}</caption>"]
    if headings:
        lines.append(f"<tr>{''.join(f'<th>{_shown(each)}</th>' for each in headings)}</tr>")
    for row in rows:
        lines.append(f"<tr>{''.join(f'<td>{_shown(each)}</td>' for each in row)}</tr>")
    lines.append("</table>")
    if note:
        lines.append(f"<p>{_shown(note, 1000)}</p>")
    return "\n".join(lines)


def _shown(value: object, limit: int = _LONGEST_NAME) -> str:
    """Return a value's text for HTML, cut where it is long, control characters as blanks."""
    text = "".join(c if c.isprintable() else " " for c in str(value))
    return html.escape(text if len(text) <= limit else f"{text[: limit - 3]}...")
