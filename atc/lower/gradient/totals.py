"""Sums of gradients: those of a value's parts are joined, thin products are one of all rows.

A value that is read part by part gets gradients that are 0 outside of a part, and one that is read
step by step, as a recurrent layer's weights are, a product of few rows for each step. Adding
these up element by element would be most of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from atc.ir.expr import Input
from atc.ir.ops import Map, MatMul, Reshape, identity_epilogue
from atc.ir.ops.data import Pad
from atc.ir.view import View, broadcast
from atc.lower.builder import Builder
from atc.lower.concat_pad import join
from atc.lower.context import LoweringContext
from atc.lower.gradient.derivatives import added, zeros
from atc.lower.matmul import product


@dataclass(frozen=True)
class _Part:
    """A gradient that is 0 outside of columns: `value` fills [rows, begin : begin + columns]."""

    gradient: str
    value: str
    rows: int
    row: int
    begin: int
    columns: int


@dataclass
class Total:
    """The gradients of one value as they come; what isn't joined later is added at once."""

    ctx: LoweringContext
    plain: str = ""
    parts: list[_Part] = field(default_factory=list)
    products: list[str] = field(default_factory=list)

    def add(self, gradient: str) -> None:
        """Note one more gradient."""
        b = self.ctx.b
        part = _part(b, gradient)
        if part is not None:
            self.parts.append(part)
        elif _is_thin(b, gradient):
            self.products.append(gradient)
        else:
            self.plain = added(self.ctx, self.plain, gradient) if self.plain else gradient

    def value(self) -> str:
        """Return the sum of what has come so far."""
        found = [*self._joined(), *self._multiplied()]
        self.parts, self.products = [], []
        for each in found:
            self.plain = added(self.ctx, self.plain, each) if self.plain else each
        return self.plain

    def _joined(self) -> list[str]:
        """Return parts side by side where they are disjoint, else each of them."""
        b, parts = self.ctx.b, sorted(self.parts, key=lambda p: p.begin)
        ends = [0, *(p.begin + p.columns for p in parts)]
        disjoint = all(p.begin >= end for p, end in zip(parts, ends, strict=False))
        if len(parts) < 2 or not disjoint or len({(p.rows, p.row) for p in parts}) > 1:
            return [p.gradient for p in parts]
        rows, row, whole = parts[0].rows, parts[0].row, b.type(parts[0].gradient)
        slices: list[str] = []
        for part, end in zip(parts, ends, strict=False):
            slices.append(zeros(b, (rows, part.begin - end), whole.dtype))
            slices.append(b.reshape(part.value, (rows, part.columns)))
        slices.append(zeros(b, (rows, row - ends[-1]), whole.dtype))
        return [b.reshape(join(b, slices, 1), whole.shape)]

    def _multiplied(self) -> list[str]:
        """Return one product of all rows: that of a^T c is the sum of the steps'."""
        if len(self.products) < 2:
            return self.products
        b = self.ctx.b
        steps = [b.maker(p) for p in reversed(self.products)]  # in the order of the network
        pairs = [(s.inputs[0], s.inputs[1]) for s in steps if s is not None]
        left = _stacked(b, [_transposed(b, a) for a, _ in pairs])
        right = _stacked(b, [c for _, c in pairs])
        return [product(self.ctx, b.transpose(left, (1, 0)), right)]


def _bare(b: Builder, value: str) -> str:
    """Return what a value is before it is reshaped."""
    node = b.maker(value)
    while node is not None and isinstance(node.op, Reshape):
        value = node.inputs[0]
        node = b.maker(value)
    return value


def _part(b: Builder, gradient: str) -> _Part | None:
    """Return the part of a gradient that isn't 0, where only columns of it are."""
    node = b.maker(_bare(b, gradient))
    if node is None or not isinstance(node.op, Pad) or len(node.inputs) > 1:
        return None
    op = node.op
    axes = [d for d, ends in enumerate(zip(op.begins, op.ends, strict=True)) if any(ends)]
    if op.mode != "constant" or len(axes) != 1:
        return None
    (axis,) = axes
    inner = prod(op.shape[axis + 1 :])
    rows, row = prod(op.shape[:axis]), op.extents[axis] * inner
    begin, columns = op.begins[axis] * inner, op.shape[axis] * inner
    return _Part(gradient, _bare(b, node.inputs[0]), rows, row, begin, columns)


def _is_thin(b: Builder, gradient: str) -> bool:
    """Return whether a gradient is a product that takes fewer numbers than it gives."""
    node = b.maker(gradient)
    if node is None or not isinstance(node.op, MatMul):
        return False
    op = node.op
    plain = MatMul((), op.m, op.n, op.k, broadcast((op.m, op.k), (op.m, op.k)),
                   broadcast((op.k, op.n), (op.k, op.n)), identity_epilogue(op.accumulator),
                   op.accumulator)  # fmt: skip
    shapes = [b.shape(i) for i in node.inputs]
    return (op == plain and shapes == [(op.m, op.k), (op.k, op.n)]
            and (op.m + op.n) * op.k < op.m * op.n)  # fmt: skip


def _transposed(b: Builder, a: str) -> str:
    """Return a matrix transposed: what it was before, if it is a transpose itself."""
    m, k = b.shape(a)
    node, dtype = b.maker(a), b.type(a).dtype
    flipped = Map((m, k), Input(dtype, 0), (View((1, m)),))
    if node is not None and node.op == flipped and b.type(node.inputs[0]).size == m * k:
        return b.reshape(node.inputs[0], (k, m))
    return b.transpose(a, (1, 0))


def _stacked(b: Builder, matrices: Sequence[str]) -> str:
    """Return the rows of all matrices, one below the other."""
    columns = b.shape(matrices[0])[1]
    rows = [b.reshape(_bare(b, v), (1, b.type(v).size)) for v in matrices]
    whole = join(b, rows, 1)
    return b.reshape(whole, (b.type(whole).size // columns, columns))
