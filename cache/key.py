"""The key of a compiled operator: a labelled list of everything that can change the result.

A digest is the SHA-256 over `label NUL length NUL bytes` of each ingredient, so that no two lists
run together to the same bytes. The bytes are stored beside the object: a miss is then explained
by comparing two lists, and a stored list proves its own digest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from atc.errors import InternalError, one_line

SCHEMA = "1"  # of this list's form; what is in the list is its own version
_SHORT = 80


@dataclass(frozen=True)
class Key:
    """Everything a compiled operator depends on, as (label, bytes) sorted by label."""

    ingredients: tuple[tuple[str, bytes], ...]

    def __post_init__(self) -> None:
        for label, _ in self.ingredients:
            if "\0" in label:
                raise InternalError(f"NUL in the label of a cache key: {label!r}")

    def encoded(self) -> bytes:
        """Return the delimited bytes that are hashed and stored."""
        return b"".join(
            b"%s\0%d\0%s" % (label.encode(), len(value), value) for label, value in self.ingredients
        )

    def digest(self) -> str:
        """Return the SHA-256 of `encoded()` as 64 hexadecimal digits."""
        return self._digest

    @cached_property
    def _digest(self) -> str:  # headers are some 100 kB: look-ups and stores ask for it
        return hashlib.sha256(self.encoded()).hexdigest()

    def text(self) -> str:
        """Return the key for people: a line per ingredient, long texts indented below theirs."""
        return "".join(_ingredient_text(label, value) for label, value in self.ingredients)


def make_key(**ingredients: str | bytes) -> Key:
    """Return the key of these ingredients; `schema`, the form of the list, is added."""
    if "schema" in ingredients:
        raise InternalError("the cache key's label 'schema' is reserved")
    named = {"schema": SCHEMA, **ingredients}
    return Key(tuple((label, _to_bytes(named[label])) for label in sorted(named)))


def parse_key(data: bytes) -> Key:
    """Return the key whose `encoded()` is `data`; raise ValueError if there is none."""
    ingredients = []
    at = 0
    while at < len(data):
        label_end = data.index(b"\0", at)
        length_end = data.index(b"\0", label_end + 1)
        end = length_end + 1 + int(data[label_end + 1 : length_end])
        ingredients.append((data[at:label_end].decode(), data[length_end + 1 : end]))
        at = end
    key = Key(tuple(ingredients))
    if key.encoded() != data:
        raise ValueError("not the encoding of a cache key")
    return key


def differences(old: Key, new: Key) -> tuple[str, ...]:
    """Say per ingredient how `new` differs from `old`, e.g. 'flags differ: -O2 -> -O3'."""
    before, after = dict(old.ingredients), dict(new.ingredients)
    return tuple(
        _difference(label, before.get(label), after.get(label))
        for label in sorted(before.keys() | after.keys())
        if before.get(label) != after.get(label)
    )


def _to_bytes(value: str | bytes) -> bytes:
    # Paths may hold surrogates for bytes that aren't UTF-8; they must neither fail nor merge.
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _ingredient_text(label: str, value: bytes) -> str:
    text = _as_text(value)
    name = one_line(label, _SHORT)
    if text is None:
        return f"{name}: {_summary(value)}\n"
    lines = text.splitlines()
    if len(lines) <= 1:
        return f"{name}: {one_line(text)}\n"
    return f"{name}: {len(lines)} lines\n" + "".join(f"    {one_line(line)}\n" for line in lines)


def _difference(label: str, old: bytes | None, new: bytes | None) -> str:
    name = one_line(label, _SHORT)
    if old is None:
        return f"{name} is new"
    if new is None:
        return f"{name} is gone"
    verb = "differ" if name.endswith("s") else "differs"
    before, after = _as_text(old), _as_text(new)
    if before is None or after is None:
        return f"{name} {verb}: {_summary(old)} -> {_summary(new)}"
    place, left, right = _first_difference(before, after)
    return f"{name} {verb}{place}: {one_line(left, _SHORT)} -> {one_line(right, _SHORT)}"


def _first_difference(old: str, new: str) -> tuple[str, str, str]:
    """Return where two texts first differ and, cut to what matters, the lines that do."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    place = ""
    if max(len(before), len(after)) > 1:
        pairs = zip(before, after, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after)))
        place = f" at line {same + 1}"
        before, after = before[same : same + 1], after[same : same + 1]
    left, right = "".join(before), "".join(after)
    if left.rstrip("\r\n") != right.rstrip("\r\n"):
        left, right = left.rstrip("\r\n"), right.rstrip("\r\n")
    if max(len(left), len(right)) > _SHORT:
        common = next(
            (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
            min(len(left), len(right)),
        )
        start = max(0, common - 20)
        left, right = left[start : start + _SHORT - 20], right[start : start + _SHORT - 20]
    return place, left or "(nothing)", right or "(nothing)"


def _as_text(value: bytes) -> str | None:
    try:
        return None if b"\0" in value else value.decode()
    except UnicodeDecodeError:
        return None


def _summary(value: bytes) -> str:
    return f"{len(value)} bytes, sha256 {hashlib.sha256(value).hexdigest()[:12]}"
