"""The keys that an Attention's queries can see, as C: bounds derived from position masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.backends.kernel import Workload
from atc.backends.render.expr import render_expr
from atc.backends.render.loops import reader
from atc.ir.key_bounds import Positions, key_bounds
from atc.ir.ops import Attention


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
    scores = w.op.scores
    present = [t is not None for t in w.inputs[3:]]
    found = Positions(scores, present)
    lines: list[str] = []
    dtypes = [t.dtype if t else None for t in w.inputs[3:]]
    causal = False
    for number, (fn, bound) in enumerate(key_bounds(scores, present).bounds):
        upper = fn.startswith("Less")
        causal |= upper and not found.is_steady(bound)
        indices = [*batch, last if upper else first, "0"]
        read = reader(scores.views, dtypes, indices, 3)
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
