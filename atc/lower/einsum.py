"""Lowering of Einsum: pairs of operands as matrix products, the rest as reductions over views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atc.dims import plain
from atc.ir.expr import Expr, Input, call
from atc.ir.graph import DType, TensorType, row_major
from atc.ir.ops import MatMul, Reduce, identity_epilogue
from atc.ir.view import View
from atc.lower.builder import Builder
from atc.lower.context import LoweringContext
from atc.lower.registry import lowers


@dataclass(frozen=True)
class Term:
    """An operand: its value and the label of each axis; a label that repeats is a diagonal."""

    name: str
    labels: tuple[str, ...]

    def view(self, b: Builder, loops: Sequence[str]) -> View:
        """Return how loops with these labels read the operand; axes of 1 stand still."""
        shape = b.shape(self.name)
        strides: dict[str, int] = {}
        for label, extent, stride in zip(self.labels, shape, row_major(shape), strict=True):
            strides[label] = strides.get(label, 0) + (0 if extent == 1 else stride)
        return View(tuple(strides.get(label, 0) for label in loops))


@lowers("Einsum")
def einsum(ctx: LoweringContext) -> str:
    """ONNX Einsum-12, with ellipsis, implicit output, diagonals and any number of operands."""
    b = ctx.b
    operands = [ctx.input(i) for i in range(len(ctx.inputs))]
    terms, output = parse_equation(ctx, ctx.str("equation"), operands)
    extents = _extents(ctx, terms)
    terms = [_expanded(b, term, extents) for term in terms]
    ctx.require(all(label in extents for label in output), "an output label is in no operand")
    dtype = b.type(operands[0]).dtype
    ctx.require(all(b.type(o).dtype is dtype for o in operands), "the operands' types differ")
    if dtype.is_half:
        terms = [Term(b.cast(t.name, DType.FLOAT), t.labels) for t in terms]
    while len(terms) > 2:
        kept = [k for t in terms[2:] for k in t.labels] + [*output]
        labels = [k for k in extents if k in kept and k in (*terms[0].labels, *terms[1].labels)]
        terms = [Term(_contract(b, terms[:2], labels, extents), tuple(labels)), *terms[2:]]
    return b.cast(_contract(b, terms, output, extents), dtype)


# ---- the equation -------------------------------------------------------------------------------


def parse_equation(
    ctx: LoweringContext, equation: str, operands: Sequence[str]
) -> tuple[list[Term], tuple[str, ...]]:
    """Return the operands with a label per axis, and the output's labels."""
    text = equation.replace(" ", "")
    inputs, arrow, result = text.partition("->")
    parts = inputs.split(",")
    ctx.require(len(parts) == len(operands), f"{len(operands)} operands for '{equation}'")
    ranks = [len(ctx.b.shape(o)) for o in operands]
    wild = [r - len(p.replace("...", "")) for p, r in zip(parts, ranks, strict=True)]
    for part, count in zip(parts, wild, strict=True):
        ctx.require(_is_subscript(part), f"equation '{equation}'")
        ctx.require(count == 0 or ("..." in part and count > 0), f"'{part}' for rank {count}")
    depth = max((n for p, n in zip(parts, wild, strict=True) if "..." in p), default=0)
    terms = [Term(o, _labels(p, depth, n)) for o, p, n in zip(operands, parts, wild, strict=True)]
    if not arrow:
        letters = [c for c in inputs if c.isalpha()]
        result = "..." * ("..." in inputs) + "".join(
            sorted(c for c in set(letters) if letters.count(c) == 1)
        )
    ctx.require(_is_subscript(result), f"equation '{equation}'")
    output = _labels(result, depth, depth)
    ctx.require(len(set(output)) == len(output), f"'{result}' repeats a label")
    return terms, output


def _is_subscript(text: str) -> bool:
    letters = text.replace("...", "", 1)
    return not letters or (letters.isascii() and letters.isalpha())


def _labels(text: str, depth: int, count: int) -> tuple[str, ...]:
    """Return one label per axis: the last `count` of `depth` wildcards for an ellipsis."""
    before, dots, after = text.partition("...")
    wildcards = [f"...{k}" for k in range(depth - count, depth)] if dots else []
    return (*before, *wildcards, *after)


def _extents(ctx: LoweringContext, terms: Sequence[Term]) -> dict[str, int]:
    """Return each label's extent; extents of 1 broadcast."""
    extents: dict[str, int] = {}
    for term in terms:
        for label, extent in zip(term.labels, ctx.b.shape(term.name), strict=True):
            known = extents.get(label, 1)
            try:
                (extents[label],) = ctx.b.broadcast((known,), (extent,))
            except ValueError:
                ctx.require(False, plain(f"'{label}' is {known} and {extent}"))
    return extents


def _expanded(b: Builder, term: Term, extents: Mapping[str, int]) -> Term:
    """Return an operand with the extents that its labels have; axes of 1 stay."""
    shape = b.shape(term.name)
    wanted = tuple(n if n == 1 else extents[k] for n, k in zip(shape, term.labels, strict=True))
    return term if shape == wanted else Term(b.expand(term.name, wanted), term.labels)


# ---- emitting -----------------------------------------------------------------------------------


def _contract(
    b: Builder, terms: Sequence[Term], output: Sequence[str], extents: Mapping[str, int]
) -> str:
    """Multiply one or two operands and sum over the labels that the output lacks."""
    used = {k for t in terms for k in t.labels}
    summed = [k for k in extents if k in used and k not in output]
    if len(terms) == 2:
        terms = [_presummed(b, terms[k], terms[1 - k], output) for k in (0, 1)]
        summed = [k for k in summed if all(k in t.labels for t in terms)]
        if summed and all(extents[k] for k in (*output, *summed)):
            groups = _grouped(b, terms, output, summed, extents)
            if groups is not None:
                return _product(b, groups, output, extents)
    return _reduce(b, terms, output, summed, extents)


def _presummed(b: Builder, term: Term, other: Term, output: Sequence[str]) -> Term:
    """Sum first over what neither the other operand nor the output has."""
    own = [k for k in dict.fromkeys(term.labels) if k not in other.labels and k not in output]
    if not own:
        return term
    kept = [k for k in dict.fromkeys(term.labels) if k not in own]
    local = dict(zip(term.labels, b.shape(term.name), strict=True))
    return Term(_reduce(b, [term], kept, own, local), tuple(kept))


def _reduce(
    b: Builder,
    terms: Sequence[Term],
    output: Sequence[str],
    summed: Sequence[str],
    extents: Mapping[str, int],
) -> str:
    dtype = b.type(terms[0].name).dtype
    shape = [extents[k] for k in output]
    loops = [*output, *summed]
    views = [t.view(b, loops) for t in terms]
    if not summed:
        return b.map(_multiplied, *(t.name for t in terms), shape=shape, views=views)
    inputs = [Input(dtype, k) for k in range(len(terms))]
    reduced = [extents[k] for k in summed]
    op = Reduce(
        "Sum", tuple(shape), tuple(reduced), _multiplied(*inputs), tuple(views),
        identity_epilogue(dtype),
    )  # fmt: skip
    return b.emit1(op, [t.name for t in terms], TensorType(dtype, tuple(shape)))


def _multiplied(*factors: Expr) -> Expr:
    result, *rest = factors
    for factor in rest:
        result = call("Mul", result, factor)
    return result


# ---- matrix products ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Loop:
    """Neighbouring labels that both operands walk as one, with their strides."""

    labels: tuple[str, ...]
    extent: int
    a: int
    b: int


@dataclass(frozen=True)
class Groups:
    """The loops of a matrix product of two terms: `inner` is summed, the others are kept."""

    terms: tuple[Term, Term]
    batch: tuple[Loop, ...]
    rows: tuple[Loop, ...]
    columns: tuple[Loop, ...]
    inner: Loop


def _grouped(
    b: Builder,
    terms: Sequence[Term],
    output: Sequence[str],
    summed: Sequence[str],
    extents: Mapping[str, int],
) -> Groups | None:
    """Return the contraction as a product; None where it has no columns or not one inner loop."""
    left, right = terms
    columns = [k for k in output if k in right.labels and k not in left.labels]
    if not columns:
        left, right = right, left
        columns = [k for k in output if k in right.labels and k not in left.labels]
    rows = [k for k in output if k in left.labels and k not in right.labels]
    batch = [k for k in output if k in left.labels and k in right.labels]

    def loops(labels: Sequence[str]) -> tuple[Loop, ...]:
        return _merged(labels, extents, left.view(b, labels), right.view(b, labels))

    inner = loops(summed)
    if not columns or len(inner) != 1:
        return None
    return Groups((left, right), loops(batch), loops(rows), loops(columns), inner[0])


def _merged(
    labels: Sequence[str], extents: Mapping[str, int], a: View, b: View
) -> tuple[Loop, ...]:
    """Return loops over labels, neighbours merged where both operands walk them as one."""
    loops: list[Loop] = []
    for label, sa, sb in zip(labels, a.strides, b.strides, strict=True):
        n = extents[label]
        last = loops[-1] if loops else Loop((), 0, 0, 0)
        if loops and n == 1:
            loops[-1] = Loop((*last.labels, label), last.extent, last.a, last.b)
        elif last.extent == 1 or (loops and (last.a, last.b) == (sa * n, sb * n)):
            loops[-1] = Loop((*last.labels, label), last.extent * n, sa, sb)
        else:
            loops.append(Loop((label,), n, sa, sb))
    return tuple(loops)


def _product(b: Builder, groups: Groups, output: Sequence[str], extents: Mapping[str, int]) -> str:
    """Emit a MatMul; what are not its last rows and columns becomes batch."""
    still = Loop((), 1, 0, 0)
    batch = (*groups.batch, *groups.rows[:-1], *groups.columns[:-1])
    row = groups.rows[-1] if groups.rows else still
    column, inner = groups.columns[-1], groups.inner
    names = [t.name for t in groups.terms]
    dtype = b.type(names[0]).dtype
    op = MatMul(
        tuple(g.extent for g in batch), row.extent, column.extent, inner.extent,
        View((*(g.a for g in batch), row.a, inner.a)),
        View((*(g.b for g in batch), inner.b, column.b)),
        identity_epilogue(dtype), dtype,
    )  # fmt: skip
    order = [k for g in (*batch, row, column) for k in g.labels]
    y = b.emit1(op, names, TensorType(dtype, tuple(extents[k] for k in order)))
    return b.transpose(y, [order.index(k) for k in output])
