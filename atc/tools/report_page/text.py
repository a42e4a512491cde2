"""Numbers and names as people read them."""

from __future__ import annotations

from atc.errors import one_line


def bytes_text(count: float) -> str:
    """Return a size: 512 B, 1.5 KiB, 24.4 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1000 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return ""


def time_text(ns: float) -> str:
    """Return a time: 850 ns, 12.3 us, 4.56 ms."""
    for unit in ("ns", "µs", "ms"):
        if ns < 1000:
            return f"{ns:.3g} {unit}" if ns < 99.95 else f"{ns:.0f} {unit}"
        ns /= 1000
    return f"{ns:.3g} s"


def percent(part: float | None, digits: int = 1) -> str:
    """Return a part of one as a percentage, '' for None."""
    return "" if part is None else f"{100 * part:.{digits}f} %"


def short(name: str, limit: int) -> str:
    """Return a name in one line, its middle cut out where it is too long: the ends say most."""
    text = one_line(name, 4000)
    if len(text) <= limit:
        return text
    head = (limit - 1) // 3 if limit >= 20 else 0
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head):]}"
