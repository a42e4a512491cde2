"""The keys that an Attention's queries can see: bounds found in position masks of its scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from atc.ir.expr import Call, Const, Expr, Extent, Input, operands_of
from atc.ir.graph import DType
from atc.ir.ops import Epilogue

_MIRRORED = {"Less": "Greater", "LessOrEqual": "GreaterOrEqual", "Greater": "Less",
             "GreaterOrEqual": "LessOrEqual"}  # fmt: skip

_INTEGERS = (DType.INT32, DType.INT64)


@dataclass(frozen=True)
class KeyBounds:
    """Comparisons (function, bound) that every visible key passes, with bounds that rise with the
    query. `shown` are the scores of keys that pass all conditions; `whole`: there are no others."""

    bounds: tuple[tuple[str, Expr], ...]
    shown: Expr
    whole: bool


def key_bounds(scores: Epilogue, present: Sequence[bool]) -> KeyBounds:
    """Return what is known of visible keys; `present` says which operands of the scores are there,
    the others are coordinates."""
    found = Positions(scores, present)
    conditions, shown = _conditions(scores.expr)
    bounds = tuple(map(found.bound, conditions))
    known = tuple(b for b in bounds if b is not None)
    return KeyBounds(known, shown, len(known) == len(bounds))


@dataclass(frozen=True)
class Positions:
    """Operands of scores, of which some are coordinates."""

    scores: Epilogue
    present: Sequence[bool]

    def bound(self, condition: Expr) -> tuple[str, Expr] | None:
        """Return a condition as a comparison of the key with a bound that rises, or None."""
        if not isinstance(condition, Call) or condition.fn not in _MIRRORED:
            return None
        fn, (left, right) = condition.fn, condition.args
        if self._is_key(right):
            fn, left, right = _MIRRORED[fn], right, left
        return (fn, right) if self._is_key(left) and self._rises(right) else None

    def _strides(self, operand: Input) -> tuple[int, int] | None:
        """Return the steps of an operand's view from query to query and key to key."""
        if operand.index == 0:
            return None
        *_, query, key = self.scores.views[operand.index - 1].strides
        return query, key

    def _is_coordinate(self, operand: Input) -> bool:
        """Return whether an operand is an index itself: it has a view but no tensor."""
        return operand.index > 0 and not self.present[operand.index - 1]

    def _is_key(self, e: Expr) -> bool:
        if not isinstance(e, Input) or not self._is_coordinate(e):
            return False
        view = self.scores.views[e.index - 1]
        return view.offset == 0 and view.strides[-1] == 1 and not any(view.strides[:-1])

    def is_steady(self, e: Expr) -> bool:
        """Return whether a value is the same for all queries and keys."""
        return all(self._strides(operand) == (0, 0) for operand in operands_of(e))

    def _rises(self, e: Expr) -> bool:
        """Return whether a value never decreases from query to query, for any key: an integer."""
        match e:
            case Const() | Extent():
                return e.dtype in _INTEGERS
            case Input() if self._is_coordinate(e):
                query, key = self._strides(e) or (-1, -1)
                return key == 0 and query in (0, 1)
            case Call(fn="Add"):
                return all(map(self._rises, e.args))
            case Call(fn="Sub"):
                return all(map(self._rises, e.args)) and self.is_steady(e.args[1])
            case _:
                return e.dtype in _INTEGERS and self.is_steady(e)


def _conditions(e: Expr) -> tuple[list[Expr], Expr]:
    """Return conditions without which a score is minus infinity, and the score with all of them."""
    found: list[Expr] = []
    while isinstance(e, Call) and e.fn == "Where":
        condition, shown, hidden = e.args
        if not isinstance(hidden, Const) or hidden.value != float("-inf"):
            break
        found += _parts(condition)
        e = shown
    return found, e


def _parts(condition: Expr) -> Iterator[Expr]:
    if isinstance(condition, Call) and condition.fn == "And":
        for part in condition.args:
            yield from _parts(part)
    else:
        yield condition
