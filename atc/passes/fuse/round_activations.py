"""Round to 16 bits once: an activation's result, not its steps and what it is taken of.

x * sigmoid(x) of a model in float16 is a rounding for each node in the standard's words and one
function in a kernel, which computes it in float. So is what a product or a convolution adds to its
result, a bias and a residual. Each rounding left out is two conversions less, and an error less.
What is left out is decided here, on graphs, so that all targets agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import sqrt

from atc.ir.expr import Call, Const, Expr, Input, cast, const, rewritten, unrounded, walk
from atc.ir.graph import Array, DType, Graph, Node, reads
from atc.ir.ops import Map, Reduce
from atc.passes.layout.store_exact import rounded_once_each

FLOAT = DType.FLOAT
BOUNDED = frozenset({"Sigmoid", "Tanh", "Erf"})
"""Activations between -1 and 1 that change no faster than what they are taken of."""
ORDERINGS = frozenset({"Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
STEPS = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "Neg", "Abs", "Where", "Softplus"})
"""What activations are composed of beside those, and comparisons."""


def round_activations(graph: Graph, outer: Mapping[str, Array]) -> Graph:
    """Leave out the roundings within the activations of a graph."""
    narrowed = _narrowed(graph)
    nodes = tuple(_once(node, narrowed.get(node.outputs[0])) for node in graph.nodes)
    for half in (DType.FLOAT16, DType.BFLOAT16):
        nodes = tuple(rounded_once_each(replace(graph, nodes=nodes), frozenset(), half))
    same = all(new is old for new, old in zip(nodes, graph.nodes, strict=True))
    return graph if same else replace(graph, nodes=nodes)


def _narrowed(graph: Graph) -> Mapping[str, DType]:
    """Return the type of 16 bits that a value's readers all round it to, where they do."""
    types: dict[str, set[DType | None]] = {name: {None} for name in graph.ends}
    for node in graph.nodes:
        match node.op:
            case Map(expr=Call(dtype=half, fn="Cast", args=(Input(),))) if half.is_half:
                narrowed: DType | None = half
            case _:
                narrowed = None
        for name in reads(node):
            types.setdefault(name, set()).add(narrowed)
    single = {name: next(iter(found)) for name, found in types.items() if len(found) == 1}
    return {name: half for name, half in single.items() if half is not None}


def _once(node: Node, narrowed: DType | None) -> Node:
    """Return a node that rounds its activations once, if only when its result is narrowed."""
    op = node.op
    if isinstance(op, Map | Reduce):  # what a Reduce sums isn't its result
        behind = narrowed if isinstance(op, Map) else None
        op = replace(op, expr=_rounded_at_end(op.expr, behind))
    epilogue = getattr(op, "epilogue", None)
    if epilogue is not None:
        expr = _rounded_at_end(epilogue.expr, narrowed, in_epilogue=True)
        op = replace(op, epilogue=replace(epilogue, expr=expr))  # type: ignore[type-var]
    return node if op == node.op else replace(node, op=op)


def _rounded_at_end(expr: Expr, narrowed: DType | None, in_epilogue: bool = False) -> Expr:
    """Return an expression that is rounded once, `narrowed` behind it if that is a type."""
    whole = cast(expr, narrowed) if narrowed and expr.dtype is FLOAT else expr
    once = rounded_once(_with_addends(whole) if in_epilogue else whole)
    return once.args[0] if whole is not expr and isinstance(once, Call) else once


def _with_addends(expr: Expr) -> Expr:
    """Return an epilogue that adds to the result, and to such a sum, as it is, where it rounds."""

    def rule(e: Expr) -> Expr:
        match e:
            case Call(fn="Cast", args=(Call(fn="Add", args=args),)):
                inner = (_within(x, e.dtype) for x in args)
                terms = tuple(
                    x if y is None or not _is_sum(y) else y
                    for x, y in zip(args, inner, strict=True)
                )
                return e if terms == args else cast(Call(FLOAT, "Add", terms), e.dtype)
            case _:
                return e

    return rewritten(expr, rule)


def _is_sum(e: Expr) -> bool:
    """Return whether an expression is an epilogue's result as it is, or a sum with that."""
    match e:
        case Input(index=0):
            return e.dtype is FLOAT
        case Call(fn="Add", args=args):
            return any(map(_is_sum, args))
        case _:
            return False


def rounded_once(expr: Expr) -> Expr:
    """Return an expression whose activations are rounded to 16 bits once, at their ends."""
    return rewritten(expr, _once_at_end)


def _once_at_end(e: Expr) -> Expr:
    match e:
        case Call(fn="Cast", args=(Call(dtype=DType.FLOAT) as floats,)) if e.dtype.is_half:
            operand = _operand_of(floats, e.dtype)
            return e if operand is None else cast(_unrounded(floats, operand), e.dtype)
        case _:
            return e


def _within(e: Expr, half: DType | None = None) -> Expr | None:
    """Return the float that an expression rounds to 16 bits and widens again; None if it isn't."""
    x, rounded = unrounded(e)
    fits = rounded is not None and half in (None, rounded)
    return x if fits and x.dtype is FLOAT else None


def _operand_of(whole: Expr, half: DType) -> Expr | None:
    """Return what an expression is an activation of, unrounded; None if it is none.

    All paths to inputs lead through it. Those to it may pass only what keeps an activation's
    errors and results within those of its operand.
    """
    place = {e: k for k, e in enumerate(walk(whole))}
    open_, bends = {whole}, False
    while True:
        e = max(open_, key=place.__getitem__)
        inner = _within(e, half)
        found = inner is None and len(open_) == 1 and bends and e is not whole
        if found and not _clamps(e):
            return e if _growth(whole, e) <= 1 else None
        if inner is None and not _is_step(e):
            return None
        bends = bends or _bends(e)
        operands = (inner,) if inner is not None else e.args if isinstance(e, Call) else ()
        open_ = (open_ - {e}) | {a for a in operands if not isinstance(a, Const)}
        if not open_:
            return None


def _is_step(e: Expr) -> bool:
    match e:
        case Call(fn="Div", args=(_, b)):
            return isinstance(b, Const)
        case Call(fn=fn):
            return e.dtype is FLOAT and fn in STEPS | BOUNDED or fn in ORDERINGS
        case _:
            return False


def _bends(e: Expr) -> bool:
    """Return whether a step is what makes an activation of sums and products."""
    match e:
        case Call(fn=fn):
            return _clamps(e) or fn in BOUNDED or fn in ("Where", "Softplus")
        case _:
            return False


def _clamps(e: Expr) -> bool:
    """Return whether a step limits its operand by a constant: a Clip is two such steps."""
    match e:
        case Call(fn="Max" | "Min", args=args):
            return any(isinstance(a, Const) for a in args)
        case _:
            return False


def _growth(whole: Expr, operand: Expr) -> int:
    """Return the power of the operand that an expression grows with at most."""
    powers: dict[Expr, int] = {operand: 1}

    def power(e: Expr) -> int:
        if e not in powers:
            powers[e] = _power(e, power)
        return powers[e]

    return power(whole)


def _power(e: Expr, power: Callable[[Expr], int]) -> int:
    inner = _within(e)
    match e:
        case _ if inner is not None:
            return power(inner)
        case Call(fn="Mul", args=(a, b)):
            return power(a) + power(b)
        case Call(fn="Max" | "Min" as fn, args=args) if any(isinstance(a, Const) for a in args):
            other = next(a for a in args if not isinstance(a, Const))
            clamped = isinstance(other, Call) and {fn, other.fn} == {"Max", "Min"} and _bends(other)
            return 0 if clamped else power(other)
        case Call(fn=fn) if fn in BOUNDED or fn in ORDERINGS:
            return 0
        case Call(args=args):
            return max(power(a) for a in args)
        case _:
            return 0


def _unrounded(whole: Expr, operand: Expr) -> Expr:
    """Return an expression without the roundings between its result and an operand."""

    def rule(e: Expr) -> Expr:
        inner = _within(e)
        return _exact(e) if inner is None else inner

    return rewritten(whole, rule, {operand: operand})


def _exact(e: Expr) -> Expr:
    """Return an error function of x / sqrt(2) for one whose constant had to fit 16 bits."""
    match e:
        case Call(fn="Erf", args=(Call(fn="Div" | "Mul" as fn, args=(a, b)),)):
            scale = {"Div": (1.4140625, sqrt(2)), "Mul": (0.70703125, sqrt(0.5))}[fn]
            held, wanted = (const(each, FLOAT) for each in scale)
            args = tuple(wanted if x == held else x for x in (a, b))
            return Call(e.dtype, "Erf", (Call(FLOAT, fn, args),))
        case _:
            return e
