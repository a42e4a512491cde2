"""Scalar expressions: what a fused elementwise loop computes for one index.

An expression is an immutable tree over `Input(k)`; equal subtrees are computed once when rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from atc.dims import Dim, as_int, plain
from atc.ir import DType

COMPARISONS = frozenset(
    {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Not"}
    | {"IsNaN", "IsInf"}
)
"""Functions whose result is BOOL whatever the operand type."""

UNARY = frozenset(
    [
        "Abs",
        "Neg",
        "Sign",
        "Floor",
        "Ceil",
        "Round",
        "Trunc",
        "Sqrt",
        "Reciprocal",
        "Exp",
        "Expm1",
        "Log",
        "Log1p",
        "Sin",
        "Cos",
        "Tan",
        "Asin",
        "Acos",
        "Atan",
        "Sinh",
        "Cosh",
        "Tanh",
        "Asinh",
        "Acosh",
        "Atanh",
        "Erf",
        "Sigmoid",
        "Softplus",
        "Not",
        "IsNaN",
        "IsInf",
        "BitwiseNot",
        "Cast",
        "CastSaturate",
        "Bitcast",
    ]
)
BINARY = frozenset(
    [
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "Max",
        "Min",
        "Mod",
        "FMod",
        "Equal",
        "Less",
        "LessOrEqual",
        "Greater",
        "GreaterOrEqual",
        "And",
        "Or",
        "Xor",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "ShiftLeft",
        "ShiftRight",
        "Lookup",
    ]
)
"""`Lookup(Input(k), place)` is the element `place` behind the one that operand k's view shows."""
TERNARY = frozenset({"Where"})

LARGEST = {DType.FLOAT8E4M3FN: 448.0, DType.FLOAT8E4M3FNUZ: 240.0, DType.FLOAT8E5M2: 57344.0,
           DType.FLOAT8E5M2FNUZ: 57344.0, DType.FLOAT4E2M1: 6.0}  # fmt: skip
"""The largest finite numbers of real types to which casts may saturate."""


@dataclass(frozen=True)
class Expr:
    """Base of all expressions; `dtype` is the type of the value."""

    dtype: DType


@dataclass(frozen=True)
class Input(Expr):
    """Operand `index` of the op, read through its view."""

    index: int


@dataclass(frozen=True)
class Const(Expr):
    """A literal. Its text is `repr` of the value, so NaN and -0.0 are distinct and hashable."""

    text: str

    @property
    def value(self) -> float | int | bool:
        """The number."""
        if self.dtype.is_float:
            return float(self.text)
        return self.text == "True" if self.dtype is DType.BOOL else int(self.text)


@dataclass(frozen=True)
class Extent(Expr):
    """An integer known when the network runs: a `Dim`."""

    extent: int


@dataclass(frozen=True)
class Call(Expr):
    """A function of UNARY, BINARY or TERNARY applied to expressions."""

    fn: str
    args: tuple[Expr, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.dtype, self.fn, self.args))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _cost(self) -> int:
        return sum(_own_cost(e) for e in walk(self) if isinstance(e, Call))

    @cached_property
    def _inputs(self) -> tuple[int, ...]:
        return tuple(sorted({e.index for e in walk(self) if isinstance(e, Input)}))


def const(value: float | int | bool, dtype: DType) -> Expr:
    """Return a literal of this type, or a run-time extent as a value of it."""
    if isinstance(value, Dim):
        return Extent(dtype, as_int(value))
    if dtype.is_float:
        return Const(dtype, repr(float(value)))
    return Const(dtype, repr(bool(value) if dtype is DType.BOOL else int(value)))


def call(fn: str, *args: Expr) -> Expr:
    """Apply a function; the result has the type of the last operand, BOOL for comparisons."""
    if fn == "Lookup":
        return Call(args[0].dtype, fn, args)
    dtype = DType.BOOL if fn in COMPARISONS else args[-1].dtype
    return Call(dtype, fn, args)


def cast(x: Expr, dtype: DType, *, saturate: bool = False) -> Expr:
    """Convert to another type (C rules; `saturate` clamps to the type's range)."""
    if x.dtype is dtype:
        return x
    if saturate and dtype.is_float:
        return Call(dtype, "Cast", (_clamped(x, dtype),))
    return Call(dtype, "CastSaturate" if saturate else "Cast", (x,))


def _clamped(x: Expr, dtype: DType) -> Expr:
    """Return x between the least and the greatest finite number of a real type; NaN stays."""
    if not x.dtype.is_float or x.dtype.is_small:
        x = cast(x, DType.FLOAT)
    most = LARGEST[dtype]
    return call("Min", call("Max", x, const(-most, x.dtype)), const(most, x.dtype))


def bitcast(x: Expr, dtype: DType) -> Expr:
    """Return the value of another type of the same size that has the same bits."""
    return x if x.dtype is dtype else Call(dtype, "Bitcast", (x,))


def substitute(expr: Expr, replace: Callable[[int], Expr]) -> Expr:
    """Return `expr` with every Input replaced by `replace(index)`."""
    memo: dict[Expr, Expr] = {}

    def visit(e: Expr) -> Expr:
        if e not in memo:
            match e:
                case Input():
                    memo[e] = replace(e.index)
                case Call():
                    memo[e] = Call(e.dtype, e.fn, tuple(visit(a) for a in e.args))
                case _:
                    memo[e] = e
        return memo[e]

    return visit(expr)


def renumber(expr: Expr, indices: Sequence[int] | Mapping[int, int]) -> Expr:
    """Return `expr` with Input(k) renamed to Input(indices[k])."""
    types = {e.index: e.dtype for e in walk(expr) if isinstance(e, Input)}
    return substitute(expr, lambda k: Input(types[k], indices[k]))


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield the distinct subexpressions, operands before their users."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(expr, False)]
    while stack:
        e, ready = stack.pop()
        if ready:
            yield e
        elif e not in seen:
            seen.add(e)
            stack.append((e, True))
            if isinstance(e, Call):
                stack.extend((a, False) for a in reversed(e.args))


def inputs_of(expr: Expr) -> tuple[int, ...]:
    """Return the operand indices that the expression reads, ascending."""
    match expr:
        case Call():
            return expr._inputs
        case Input():
            return (expr.index,)
        case _:
            return ()


def cost(expr: Expr) -> int:
    """Return a rough cost in additions: a transcendental function counts 10."""
    return expr._cost if isinstance(expr, Call) else 0


_CHEAP = (BINARY | TERNARY | {"Cast", "CastSaturate", "Bitcast"}) - {"Pow"} | {
    "Abs", "Neg", "Floor", "Ceil", "Not", "Sign"
}  # fmt: skip


def _own_cost(c: Call) -> int:
    return 10 if c.fn not in _CHEAP else 4 if c.fn == "Div" else 1


def text(expr: Expr) -> str:
    """Return a readable form: `Max(Add(x0, x1), 0.0)`."""
    match expr:
        case Input():
            return f"x{expr.index}"
        case Const():
            return expr.text
        case Extent():
            return plain(expr.extent)
        case Call():
            typed = expr.fn in ("Cast", "CastSaturate", "Bitcast")
            name = f"{expr.fn}<{expr.dtype.label}>" if typed else expr.fn
            return f"{name}({', '.join(text(a) for a in expr.args)})"
        case _:
            raise TypeError(expr)
