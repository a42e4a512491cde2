"""Derivatives in a direction: nodes of the IR walked forwards, beside what they compute.

Second derivatives are these, of first ones: a Gradient node's own gradient is what its slopes
change by where its xs move (Pearlmutter 1994). The nodes are those of the IR, into which any
operator's derivative has been lowered, so that few rules do for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from atc.ir.expr import Call, Const, Expr, Extent, Input, call, cast, const, inputs_of, renumber
from atc.ir.graph import DType, Node, Op, TensorType
from atc.ir.ops import (
    Conv,
    ConvFilterGradient,
    ConvTranspose,
    Epilogue,
    Map,
    MatMul,
    Normalize,
    Pool,
    Reduce,
    Reshape,
    Softmax,
    SubView,
    identity_epilogue,
)
from atc.ir.ops.data import Concat, Cumulate, Gather, Pad, Scatter
from atc.ir.ops.sampling import Resample
from atc.ir.view import View, dense
from atc.lower.context import LoweringContext
from atc.lower.elementwise import like
from atc.lower.gradient.derivatives import UNARY, minus, over, times, zeros

_SLOPES: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    **{op: UNARY[op] for op in UNARY if op not in ("Relu", "Identity")},
    "Expm1": lambda x, y: call("Exp", x),
    "Log1p": lambda x, y: over(like(x, 1), call("Add", like(x, 1), x)),
    "Trunc": lambda x, y: like(x, 0),
}
"""dy/dx of the functions of expressions, by x and y."""


def directional(
    ctx: LoweringContext, nodes: Sequence[Node], seeds: Mapping[str, str], wanted: Iterable[str]
) -> dict[str, str]:
    """Return what values change by, for those of `wanted` that change at all.

    `seeds` are the changes of some values, `nodes` those between, in order. Raises
    UnsupportedError for a node on the way that has no rule.
    """
    makers = {name: node for node in nodes for name in node.outputs}
    needed: set[int] = set()
    pending = [name for name in wanted if name in makers]
    while pending:
        node = makers[pending.pop()]
        if id(node) not in needed:
            needed.add(id(node))
            pending += [i for i in node.inputs if i in makers and i not in seeds]
    walk = _Walk(ctx, dict(seeds))
    for node in nodes:
        if id(node) in needed and any(i in walk.changes for i in node.inputs):
            walk.follow(node)
    return {name: walk.changes[name] for name in wanted if name in walk.changes}


@dataclass
class _Walk:
    """The changes so far, by value."""

    ctx: LoweringContext
    changes: dict[str, str] = field(default_factory=dict)

    def follow(self, node: Node) -> None:
        """Note what a node's results change by."""
        result = self.ctx.b.type(node.outputs[0])
        if not result.dtype.is_float and len(node.outputs) == 1:
            return
        rule = _RULES.get(type(node.op))
        try:
            found = rule(self, node, node.op) if rule else None
        except _NoSlopeError as error:
            raise self.ctx.unsupported(f"the second derivative of {error} isn't covered") from None
        if found is None:
            how = getattr(node.op, "how", "")
            what = f"{node.op.kind} ({how})" if how else node.op.kind
            raise self.ctx.unsupported(f"the second derivative of {what} isn't covered")
        changes = (found,) if isinstance(found, str) else found
        self.changes.update((o, c) for o, c in zip(node.outputs, changes, strict=False) if c)

    def zero(self, name: str) -> str:
        """Return the change of a value, zeros where it has none."""
        if name in self.changes:
            return self.changes[name]
        type_ = self.ctx.b.type(name)
        return zeros(self.ctx.b, type_.shape, type_.dtype)

    def sum(self, parts: Sequence[str]) -> str:
        """Add up values of one type."""
        total, *rest = parts
        for part in rest:
            total = self.ctx.b.map(lambda p, q: call("Add", p, q), total, part)
        return total

    def changed(
        self, expr: Expr, operands: Sequence[str], views: Sequence[View], extra: int = 0
    ) -> tuple[Expr, list[str], list[View], dict[int, int]] | None:
        """Return what an expression over operands changes by, over more of them.

        The changes of operands are operands behind the others; what was numbered behind these
        (`extra` coordinates) moves: the numbers' new ones are the last of the result.
        """
        moving = [k for k, name in enumerate(operands) if name in self.changes]
        first = len(operands)
        moved = {first + k: first + len(moving) + k for k in range(extra)}
        types = {k: self.ctx.b.type(operands[k]).dtype for k in moving}
        places = {k: Input(types[k], first + j) for j, k in enumerate(moving)}
        found = change_of(renumber(expr, moved), places)
        if found is None:
            return None
        return (
            found, [*operands, *(self.changes[operands[k]] for k in moving)],
            [*views, *(views[k] for k in moving)], moved,
        )  # fmt: skip

    def finished(self, node: Node, own: int, epilogue: Epilogue, loops: Sequence[int],
                 result: str, change: str | None) -> str:  # fmt: skip
        """Return what an epilogue's result changes by where the node's does by `change`.

        `result` is the node's without epilogue, `own` the number of operands before its extras.
        """
        b, extras = self.ctx.b, node.inputs[own:]
        full = dense(loops)
        operands, views = [result, *extras], [full, *epilogue.views]
        inner = _Walk(self.ctx, {n: c for n, c in self.changes.items() if n in extras})
        if change is not None:
            inner.changes[result] = change
        found = inner.changed(epilogue.expr, operands, views)
        if found is None:
            return ""
        expr, names, places, _ = found
        return _mapped(b, tuple(loops), expr, names, places, (), b.type(node.outputs[0]))


def change_of(expr: Expr, places: Mapping[int, Expr]) -> Expr | None:
    """Return what an expression changes by where its operands change by `places`; None for 0."""
    match expr:
        case Input():
            return places.get(expr.index)
        case Const() | Extent():
            return None
    assert isinstance(expr, Call)
    if not expr.dtype.is_float:
        return None
    if expr.fn == "Where":
        condition, *sides = expr.args
        left, right = (change_of(a, places) for a in sides)
        if left is None and right is None:
            return None
        return call("Where", condition, left or like(expr, 0), right or like(expr, 0))
    if expr.fn == "Lookup":
        source, place = expr.args
        moving = change_of(source, places)
        return None if moving is None else call("Lookup", moving, place)
    changes = [change_of(a, places) for a in expr.args]
    if not any(changes):
        return None
    if expr.fn in ("Cast", "CastSaturate"):
        return None if changes[0] is None else cast(changes[0], expr.dtype)
    if len(expr.args) == 1 and expr.fn in _SLOPES:
        assert changes[0] is not None
        return times(changes[0], _SLOPES[expr.fn](expr.args[0], expr))
    parts = [
        _PARTIAL[expr.fn][k](change, *expr.args, expr)
        for k, change in enumerate(changes) if change is not None
    ] if expr.fn in _PARTIAL else None  # fmt: skip
    if parts is None:
        raise _NoSlopeError(expr.fn)
    return parts[0] if len(parts) == 1 else call("Add", *parts)


class _NoSlopeError(Exception):
    """A function of expressions has no derivative here."""


def _power(d: Expr, a: Expr, b: Expr, y: Expr) -> Expr:
    slope = times(b, call("Pow", a, minus(b, like(b, 1))))
    return times(d, call("Where", call("Equal", b, like(b, 0)), like(a, 0), slope))


def _exponent(d: Expr, a: Expr, b: Expr, y: Expr) -> Expr:
    none = call("Equal", y, like(y, 0))
    return call("Where", none, like(y, 0), times(d, y, call("Log", a)))


def _where(fn: str) -> Callable[..., Expr]:
    return lambda d, a, b, y: call("Where", call(fn, a, b), d, like(d, 0))


_PARTIAL: Mapping[str, tuple[Callable[..., Expr], ...]] = {
    "Add": (lambda d, a, b, y: d, lambda d, a, b, y: d),
    "Sub": (lambda d, a, b, y: d, lambda d, a, b, y: call("Neg", d)),
    "Mul": (lambda d, a, b, y: times(d, b), lambda d, a, b, y: times(d, a)),
    "Div": (lambda d, a, b, y: over(d, b), lambda d, a, b, y: call("Neg", over(times(d, y), b))),
    "Pow": (_power, _exponent),
    "Max": (_where("GreaterOrEqual"), _where("Less")),
    "Min": (_where("LessOrEqual"), _where("Greater")),
}  # fmt: skip
"""What functions of two operands change by with either of them."""


# ---- the ops ------------------------------------------------------------------------------------


def _mapped(
    b: Any, loops: tuple[int, ...], expr: Expr, names: Sequence[str], views: Sequence[View],
    coordinates: tuple[View, ...], type_: TensorType,
) -> str:  # fmt: skip
    """Emit a Map of those operands that the expression reads."""
    used = [k for k in inputs_of(expr) if k < len(names)]
    kept = [k for k in inputs_of(expr) if k >= len(names)]
    new = {k: j for j, k in enumerate([*used, *kept])}
    op = Map(loops, renumber(expr, new), tuple(views[k] for k in used),
             tuple(coordinates[k - len(names)] for k in kept))  # fmt: skip
    made: str = b.emit1(op, [names[k] for k in used], TensorType(expr.dtype, type_.shape))
    return made


def _map(walk: _Walk, node: Node, op: Map) -> str:
    found = walk.changed(op.expr, node.inputs, op.views, len(op.coordinates))
    if found is None:
        return ""
    expr, names, views, _ = found
    b = walk.ctx.b
    return _mapped(b, op.shape, expr, names, views, op.coordinates, b.type(node.outputs[0]))


def _summed(
    walk: _Walk, op: Reduce, expr: Expr, names: Sequence[str], views: Sequence[View],
    shape: Sequence[int],
) -> str:  # fmt: skip
    """Emit the sum of an expression over a Reduce's loops."""
    used = [k for k in inputs_of(expr) if k < len(names)]
    kept = [k for k in inputs_of(expr) if k >= len(names)]
    new = {k: j for j, k in enumerate([*used, *kept])}
    made = Reduce("Sum", op.shape, op.reduced, renumber(expr, new), tuple(views[k] for k in used),
                  identity_epilogue(expr.dtype),
                  tuple(op.coordinates[k - len(names)] for k in kept))  # fmt: skip
    return walk.ctx.b.emit1(made, [names[k] for k in used], TensorType(expr.dtype, tuple(shape)))


def _reduce(walk: _Walk, node: Node, op: Reduce) -> str | None:
    """Add up the changes; of a maximum those of the elements that are it, in equal shares."""
    if op.how not in ("Sum", "Max", "Min"):
        return None
    b, own = walk.ctx.b, len(op.views)
    operands, shape = node.inputs[:own], b.shape(node.outputs[0])
    plain = replace(op, epilogue=identity_epilogue(op.expr.dtype))
    result = b.emit1(plain, operands, TensorType(op.expr.dtype, shape))
    found = walk.changed(op.expr, operands, op.views, len(op.coordinates))
    change = None
    if found is not None:
        expr, names, views, moved = found
        if op.how != "Sum":
            over_all = View((*dense(op.shape).strides, *[0] * len(op.reduced)))
            best = Input(op.expr.dtype, len(names))
            shift = {k: k + 1 for k in moved.values()}
            candidate = renumber(renumber(op.expr, moved), shift)
            is_it = call("Equal", candidate, best)
            names, views = [*names, result], [*views, over_all]
            part = call("Where", is_it, renumber(expr, shift), like(best, 0))
            total = _summed(walk, op, part, names, views, shape)
            count = _summed(walk, op, cast(is_it, best.dtype), names, views, shape)
            change = b.map(over, total, count)
        else:
            change = _summed(walk, op, expr, names, views, shape)
    return walk.finished(node, own, op.epilogue, op.shape, result, change)


def _linear(walk: _Walk, node: Node, op: Op) -> str:
    """Do with the first operand's change what is done with it."""
    b = walk.ctx.b
    if node.inputs[0] not in walk.changes:
        return ""
    given = [walk.changes[node.inputs[0]], *node.inputs[1:]]
    return b.emit1(op, given, b.type(node.outputs[0]))


def _joined(walk: _Walk, node: Node, op: Op) -> str:
    """Do with all operands' changes what is done with them."""
    b = walk.ctx.b
    return b.emit1(op, [walk.zero(i) for i in node.inputs], b.type(node.outputs[0]))


def _padded(walk: _Walk, node: Node, op: Pad) -> str | None:
    if any(i in walk.changes for i in node.inputs[1:]):
        return None
    b = walk.ctx.b
    return b.emit1(op, [walk.changes[node.inputs[0]]], b.type(node.outputs[0]))


def _scattered(walk: _Walk, node: Node, op: Scatter) -> str | None:
    old, new = (Input(op.combine.dtype, k) for k in range(2))
    if op.combine not in (new, call("Add", old, new), call("Add", new, old)):
        return None
    b = walk.ctx.b
    given = [walk.zero(i) for i in node.inputs[:2]]
    return b.emit1(op, [*given, *node.inputs[2:]], b.type(node.outputs[0]))


def _cumulated(walk: _Walk, node: Node, op: Cumulate) -> str | None:
    return _linear(walk, node, op) if op.how == "Sum" else None


def _product(walk: _Walk, node: Node, op: Any) -> str | None:
    """Products of two operands: of the one's change and the other, and the other way round."""
    b, type_ = walk.ctx.b, walk.ctx.b.type(node.outputs[0])
    own = 2
    epilogue = getattr(op, "epilogue", None)
    if getattr(op, "zero_points", False):
        return None
    dtype = b.type(node.inputs[0]).dtype
    plain, loops = op, type_.shape
    if epilogue is not None:
        plain = replace(op, epilogue=identity_epilogue(getattr(op, "accumulator", dtype)))
        loops = op.loops if isinstance(op, MatMul) else type_.shape
    inner = TensorType(plain.epilogue.expr.dtype if epilogue else dtype, type_.shape)
    x, w = node.inputs[:own]
    parts = []
    if x in walk.changes:
        parts.append(b.emit1(plain, [walk.changes[x], w], inner))
    if w in walk.changes:
        parts.append(b.emit1(plain, [x, walk.changes[w]], inner))
    change = walk.sum(parts) if parts else None
    if epilogue is None or epilogue == plain.epilogue:
        return change or ""
    result = b.emit1(plain, [x, w], inner)
    return walk.finished(node, own, epilogue, loops, result, change)


def _pooled(walk: _Walk, node: Node, op: Pool) -> str | None:
    """Means are linear; of a maximum the change of the element that it is."""
    b = walk.ctx.b
    if op.how == "Average":
        return _linear(walk, node, op)
    if op.how != "Max" or op.storage_order:
        return None
    x, type_ = node.inputs[0], b.type(node.outputs[0])
    index = TensorType(DType.INT64, type_.shape)
    _, places = b.emit(op, [x], type_, index)
    gather = Gather((type_.size,), 1, Input(DType.INT64, 0), (View((1,)),))
    return b.emit1(gather, [walk.changes[x], places], type_)


def _softmax(walk: _Walk, node: Node, op: Softmax) -> str | None:
    """y (dx - sum of y dx); of a logarithm dx - sum of exp(y) dx."""
    b, x = walk.ctx.b, node.inputs[0]
    type_ = b.type(node.outputs[0])
    plain = replace(op, epilogue=identity_epilogue(type_.dtype))
    result = b.emit1(plain, [x], TensorType(type_.dtype, op.loops))
    change = None
    if x in walk.changes:
        moved = b.reshape(walk.changes[x], op.loops)
        share = result
        if op.log:
            share = b.map(lambda v: call("Exp", v), result)
        whole, axis = dense(op.loops).strides, 1
        swapped = View((whole[0], whole[2], whole[axis]))
        product = times(Input(type_.dtype, 0), Input(type_.dtype, 1))
        total = b.emit1(
            Reduce("Sum", (op.outer, op.inner), (op.axis,), product, (swapped, swapped),
                   identity_epilogue(type_.dtype)),
            [share, moved], TensorType(type_.dtype, (op.outer, 1, op.inner)),
        )  # fmt: skip
        if op.log:
            change = b.map(minus, moved, total)
        else:
            change = b.map(lambda y, d, s: times(y, minus(d, s)), result, moved, total)
    return walk.finished(node, 1, op.epilogue, op.loops, result, change)


def _normalized(walk: _Walk, node: Node, op: Normalize) -> tuple[str, ...] | None:
    """y = (x - centre) scale: scale (dx - mean of dx - y mean of y dx), before the epilogue."""
    b, x = walk.ctx.b, node.inputs[0]
    if op.how not in ("Variance", "MeanSquare"):
        return None
    type_ = b.type(node.outputs[0])
    outer, axis, inner = (prod(part) for part in (op.outer, op.axis, op.inner))
    rows = TensorType(type_.dtype, (outer, 1, inner))
    plain = replace(op, epilogue=identity_epilogue(type_.dtype))
    whole = TensorType(type_.dtype, (outer, axis, inner))
    result, _, scale = b.emit(plain, [x], whole, rows, rows)
    change, statistics = None, ("", "")
    if x in walk.changes:
        moved = b.reshape(walk.changes[x], whole.shape)
        strides = dense(whole.shape).strides
        view = View((strides[0], strides[2], strides[1]))

        def mean(expr: Expr, *names: str) -> str:
            total = Reduce("Sum", (outer, inner), (axis,), expr, (view,) * len(names),
                           Epilogue(over(Input(type_.dtype, 0), const(axis, type_.dtype))))
            return b.emit1(total, names, rows)

        own, other = Input(type_.dtype, 0), Input(type_.dtype, 1)
        along = mean(times(own, other), result, moved)
        away, centre = moved, ""
        if op.how == "Variance":
            centre = mean(own, moved)
            away = b.map(minus, moved, centre)
        change = b.map(lambda s, d, y, m: times(s, minus(d, times(y, m))),
                       scale, away, result, along)
        narrower = b.map(lambda s, m: call("Neg", times(s, s, m)), scale, along)
        statistics = (centre, narrower)
    shapes = [b.shape(o) for o in node.outputs[1:]]
    moved_ones = [b.reshape(c, s) if c else "" for c, s in zip(statistics, shapes, strict=False)]
    return (walk.finished(node, 1, op.epilogue, op.loops, result, change), *moved_ones)


_RULES: dict[type[Op], Callable[[_Walk, Node, Any], str | tuple[str, ...] | None]] = {
    Concat: _joined,
    Conv: _product,
    ConvFilterGradient: _product,
    ConvTranspose: _product,
    Cumulate: _cumulated,
    Gather: _linear,
    Map: _map,
    MatMul: _product,
    Normalize: _normalized,
    Pad: _padded,
    SubView: _linear,
    Pool: _pooled,
    Reduce: _reduce,
    Resample: _linear,
    Reshape: _linear,
    Scatter: _scattered,
    Softmax: _softmax,
}
"""Each returns what a node's first result changes by, '' for nothing, None where it can't."""
