"""The keys that an Attention's queries can see, as C: bounds derived from position masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from atc.backends.kernel import Workload
from atc.backends.render.expr import render_expr
from atc.backends.render.loops import reader
from atc.ir.expr import Call, Const, Expr, Extent, Input, operands_of
from atc.ir.graph import DType
from atc.ir.ops import Attention

_MIRRORED = {"Less": "Greater", "LessOrEqual": "GreaterOrEqual", "Greater": "Less",
             "GreaterOrEqual": "LessOrEqual"}  # fmt: skip

_INTEGERS = (DType.INT32, DType.INT64)


@dataclass(frozen=True)
class KeyRange:
    """Statements that raise `begin` and lower `end` to the keys that some queries see.

    All other keys have the score minus infinity for all of these queries. There are no statements
    if nothing is known. `causal`: later queries see more.
    """

    lines: tuple[str, ...] = ()
    causal: bool = False


def key_range(w: Workload[Attention], batch: Sequence[str], first: str, last: str) -> KeyRange:
    """Return the keys that the queries from `first` to `last`, C indices, see in a batch."""
    found = _Bounds(w)
    lines: list[str] = []
    dtypes = [t.dtype if t else None for t in w.inputs[3:]]
    causal = False
    for number, (fn, bound) in enumerate(found.bounds()):
        upper = fn.startswith("Less")
        causal |= upper and not found.is_steady(bound)
        indices = [*batch, last if upper else first, "0"]
        read = reader(w.op.scores.views, dtypes, indices, 3)
        own, value = render_expr(
            bound, lambda k, read=read: read(k - 1),  # type: ignore[misc]
            f"{'end' if upper else 'begin'}{number}_",
        )  # fmt: skip
        limit = f"(ptrdiff_t)({value})" + (" + 1" if fn in ("LessOrEqual", "Greater") else "")
        name = f"{'end' if upper else 'begin'}{number}"
        lines += (*own, f"const ptrdiff_t {name} = {limit};")
        lines.append(
            f"if ({name} < end) end = {name};" if upper else f"if ({name} > begin) begin = {name};"
        )
    return KeyRange(tuple(lines), causal)


@dataclass(frozen=True)
class _Bounds:
    w: Workload[Attention]

    def bounds(self) -> Iterator[tuple[str, Expr]]:
        """Yield comparisons that every visible key passes, with bounds that rise with the query."""
        for condition in _conditions(self.w.op.scores.expr):
            if not isinstance(condition, Call) or condition.fn not in _MIRRORED:
                continue
            fn, (left, right) = condition.fn, condition.args
            if self._is_key(right):
                fn, left, right = _MIRRORED[fn], right, left
            if self._is_key(left) and self._rises(right):
                yield fn, right

    def _strides(self, operand: Input) -> tuple[int, int] | None:
        """Return the steps of an operand's view from query to query and key to key."""
        if operand.index == 0:
            return None
        *_, query, key = self.w.op.scores.views[operand.index - 1].strides
        return query, key

    def _is_coordinate(self, operand: Input) -> bool:
        """Whether an operand is an index itself: it has a view but no tensor."""
        return operand.index > 0 and self.w.inputs[2 + operand.index] is None

    def _is_key(self, e: Expr) -> bool:
        if not isinstance(e, Input) or not self._is_coordinate(e):
            return False
        view = self.w.op.scores.views[e.index - 1]
        return view.offset == 0 and view.strides[-1] == 1 and not any(view.strides[:-1])

    def is_steady(self, e: Expr) -> bool:
        """Whether a value is the same for all queries and keys."""
        return all(self._strides(operand) == (0, 0) for operand in operands_of(e))

    def _rises(self, e: Expr) -> bool:
        """Whether a value is an integer that never decreases from query to query, for any key."""
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


def _conditions(e: Expr) -> Iterator[Expr]:
    """Yield conditions without which a score is minus infinity."""
    while isinstance(e, Call) and e.fn == "Where":
        condition, shown, hidden = e.args
        if not isinstance(hidden, Const) or hidden.value != float("-inf"):
            return
        yield from _parts(condition)
        e = shown


def _parts(condition: Expr) -> Iterator[Expr]:
    if isinstance(condition, Call) and condition.fn == "And":
        for part in condition.args:
            yield from _parts(part)
    else:
        yield condition
