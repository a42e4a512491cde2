"""Attention: two matrix products around a softmax, without the whole matrix of scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops.elementwise import Epilogue, check_epilogue, check_views, require
from atc.ir.view import View, overlaps_itself


@dataclass(frozen=True)
class Attention(Op):
    """y[b, i, e] = result(sum over j of softmax over j of s[b, i, j] * v[b, j, e]).

    The scores are s[b, i, j] = scores(sum over p of q[b, i, p] * k[b, p, j]), for `queries` i,
    `keys` j, `depth` numbers p and `width` numbers e. Where all scores of a row are minus infinity
    the result is NaN, with `masked` 0.  Vaswani and others, "Attention is all you need", 2017.

    The weights, what that softmax gives, are rounded to the type `weights`, if there is one. A
    kernel may round them before it divides them by their sum. All is computed in float where the
    operands are 16-bit floats.

    Views: q over (*batch, queries, depth), k over (*batch, depth, keys), v over (*batch, keys,
    width). The result goes to y through `y_view` over (*batch, queries, width), which fills it. The
    epilogues' views are over (*batch, queries, keys) and (*batch, queries, width); their operands
    follow v in that order. An operand of the scores that isn't there is a coordinate: its value is
    the view's, INT64.
    """

    batch: tuple[int, ...]
    queries: int
    keys: int
    depth: int
    width: int
    q_view: View
    k_view: View
    v_view: View
    y_view: View
    scores: Epilogue
    result: Epilogue
    masked: bool = False
    weights: DType | None = None

    @property
    def loops(self) -> tuple[int, ...]:
        """The index space of the result."""
        return (*self.batch, self.queries, self.width)

    @property
    def flops(self) -> int:
        """Multiplications and additions of both products."""
        return 2 * prod(self.batch) * self.queries * self.keys * (self.depth + self.width)

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that views stay inside the operands and the result is filled once."""
        (y,) = outputs
        spaces = [(self.queries, self.depth), (self.depth, self.keys), (self.keys, self.width)]
        views = (self.q_view, self.k_view, self.v_view)
        for k, (view, space) in enumerate(zip(views, spaces, strict=True)):
            check_views((*self.batch, *space), (view,), inputs[k : k + 1])
        split = 3 + len(self.scores.views)
        rows = (*self.batch, self.queries, self.keys)
        require(inputs[0] is not None, "q is missing")
        assert inputs[0] is not None
        computed = inputs[0].dtype.computed
        require(self.weights is None or self.weights.is_half, "weights are rounded to 16 bits")
        shown = [
            operand or TensorType(DType.INT64, (1 + own.bounds(rows)[1],))
            for own, operand in zip(self.scores.views, inputs[3:split], strict=True)
        ]
        check_epilogue(self.scores, rows, shown, TensorType(computed, y.shape))
        check_epilogue(self.result, self.loops, inputs[split:], y)
        require(prod(self.loops) == y.size, f"loops {self.loops} don't fill {y}")
        require(not overlaps_itself(self.loops, self.y_view), "a result is written twice")
        low, high = self.y_view.bounds(self.loops)
        require(y.size == 0 or (low == 0 and high == y.size - 1), f"the result leaves {y}")
