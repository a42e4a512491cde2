"""Extents that are known, but taken by C as numbers: functions that differ in these are one.

An `Opened` is an int for all that asks for its value, and a `Dim` for text: it is printed as a
token that `bind_tokens` gives a name. Numbers made of one by arithmetic are such numbers, too: a
kernel's table holds them as they are, and no run computes them.
"""

from __future__ import annotations


class Opened(int):
    """A known extent that is printed as a name: `origin` says which one it is, or what of others.

    A constant that was added stays a literal of its own. Equal to any int of its value, it has
    another hash than that: what remembers results by arguments never mixes up the two.
    """

    origin: str
    added: int

    def __new__(cls, value: int, origin: str, added: int = 0) -> Opened:
        """Make the number `value`, which is `added` more than what `origin` says."""
        made = super().__new__(cls, value)
        made.origin, made.added = origin, added
        return made

    def __hash__(self) -> int:
        return hash((int(self), self._text))

    def __eq__(self, other: object) -> bool:
        return int.__eq__(self, other) if isinstance(other, int) else NotImplemented

    @property
    def _text(self) -> str:
        return f"({self.origin}+{self.added})" if self.added else self.origin

    def __str__(self) -> str:
        token = f"⟨{int(self) - self.added}|{self.origin}⟩"
        if not self.added:
            return token
        return f"({token} {'+' if self.added > 0 else '-'} {abs(self.added)})"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else format(int(self), spec)

    # ---- arithmetic ---------------------------------------------------------------------------

    def __add__(self, other: int) -> int:
        if isinstance(other, Opened):
            added = self.added + other.added
            return Opened(int(self) + int(other), f"({self.origin}+{other.origin})", added)
        return Opened(int(self) + other, self.origin, self.added + other)

    __radd__ = __add__

    def __neg__(self) -> int:
        return self * -1

    def __sub__(self, other: int) -> int:
        return self + -other

    def __rsub__(self, other: int) -> int:
        return -self + other

    def __mul__(self, other: int) -> int:
        if isinstance(other, Opened):
            return Opened(int(self) * int(other), f"{self._text}*{other._text}")
        if other in (0, 1):
            return self if other else 0
        return Opened(int(self) * other, f"{other}*{self.origin}", self.added * other)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> int:
        return self if other == 1 else self._of(int(self) // int(other), "/", other)

    def __rfloordiv__(self, other: int) -> int:
        return Opened(other // int(self), f"{other}/{self._text}")

    def __mod__(self, other: int) -> int:
        return self._of(int(self) % int(other), "%", other)

    def __divmod__(self, other: int) -> tuple[int, int]:
        return self // other, self % other

    def _of(self, value: int, operator: str, other: int) -> int:
        by = other._text if isinstance(other, Opened) else str(other)
        return Opened(value, f"({self._text}{operator}{by})")


def opened(value: int, name: str) -> int:
    """Return a known extent as a number that C takes, by a name that is one kernel's own.

    0 and 1 stay as they are: they decide what C there is.
    """
    return value if type(value) is not int or -2 < value < 2 else Opened(value, name)
