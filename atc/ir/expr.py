"""Scalar expressions: what a fused elementwise loop computes for one index.

An expression is an immutable tree over `Input(k)`; equal subtrees are computed once when rendered.
Calls are hash-consed (Ershov 1958): equal ones are one object, so that comparing and hashing take
the same time for any size, and what is known of an expression is worked out once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from threading import Lock
from types import MappingProxyType
from typing import ClassVar
from weakref import WeakValueDictionary

from atc.dims import Dim, is_dynamic, plain
from atc.ir.graph import DType

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


class _Known:
    """Facts worked out once of a call, from what is known of its arguments."""

    operands: tuple[Input, ...]
    """Those that it reads, in the order in which they first occur."""
    inputs: tuple[int, ...]
    """Their indices, ascending."""
    functions: frozenset[str]
    """Those that it calls."""
    varies: bool
    """Whether there is an extent in it that is known when the network runs."""


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Call(_Known, Expr):
    """A function of UNARY, BINARY or TERNARY applied to expressions."""

    fn: str
    args: tuple[Expr, ...]

    _alive: ClassVar[WeakValueDictionary[tuple[DType, str, tuple[Expr, ...]], Call]] = (
        WeakValueDictionary()
    )
    _one_at_a_time: ClassVar[Lock] = Lock()

    def __new__(cls, dtype: DType, fn: str, args: tuple[Expr, ...]) -> Call:
        """Return the call of this function with these arguments, the same one every time."""
        with cls._one_at_a_time:
            found = cls._alive.get((dtype, fn, args))
            if found is None:
                found = super().__new__(cls)
                operands = tuple(dict.fromkeys(i for a in args for i in operands_of(a)))
                vars(found).update(
                    dtype=dtype, fn=fn, args=args, operands=operands,
                    inputs=tuple(sorted(i.index for i in operands)),
                    functions=frozenset((fn,)).union(*map(functions_of, args)),
                    varies=any(map(is_dynamic, args)),
                )  # fmt: skip
                cls._alive[dtype, fn, args] = found
            return found

    def __init__(self, dtype: DType, fn: str, args: tuple[Expr, ...]) -> None:
        """Leave all as it was made."""

    def __reduce__(self) -> tuple[type[Call], tuple[DType, str, tuple[Expr, ...]]]:
        return Call, (self.dtype, self.fn, self.args)

    def __repr__(self) -> str:
        return text(self)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @cached_property
    def cost(self) -> int:
        """In additions, each subexpression counted once."""
        inner = {a for a in self.args if isinstance(a, Call)}
        if len(inner) == 1 and "cost" in vars(one := inner.pop()):
            return _own_cost(self) + one.cost
        return sum(_own_cost(e) for e in walk(self) if isinstance(e, Call))


def const(value: float | int | bool, dtype: DType) -> Expr:
    """Return a literal of this type, or a run-time extent as a value of it."""
    if isinstance(value, Dim):
        return Extent(dtype, value)
    if dtype.is_float:
        return Const(dtype, repr(float(value)))
    return Const(dtype, repr(bool(value) if dtype is DType.BOOL else int(value)))


def call(fn: str, *args: Expr) -> Expr:
    """Apply a function; the result has the type of the last operand, BOOL for comparisons."""
    return Call(type_of_call(fn, args), fn, args)


def type_of_call(fn: str, args: Sequence[Expr]) -> DType:
    """Return the type that a function's result has unless it is a cast."""
    if fn == "Lookup":
        return args[0].dtype
    return DType.BOOL if fn in COMPARISONS else args[-1].dtype


def cast(x: Expr, dtype: DType, *, saturate: bool = False) -> Expr:
    """Convert to another type (C rules; `saturate` clamps to the type's range)."""
    if x.dtype is dtype:
        return x
    if isinstance(x, Const) and x.dtype.is_half and dtype is DType.FLOAT:
        return const(x.value, dtype)
    if saturate and dtype.is_float:
        return Call(dtype, "Cast", (_clamped(x, dtype),))
    return Call(dtype, "CastSaturate" if saturate else "Cast", (x,))


def unrounded(expr: Expr) -> tuple[Expr, DType | None]:
    """Return floats that are rounded to 16 bits, and to which type; None if they aren't."""
    match expr:
        case Call(dtype=DType.FLOAT, fn="Cast", args=(Call(fn="Cast", args=(x,)) as half,)) if (
            half.dtype.is_half
        ):
            return x, half.dtype
        case _:
            return expr, None


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
    chosen = {i: replace(i.index) for i in operands_of(expr)}
    new = {i.index: e for i, e in chosen.items() if e != i}
    memo: dict[Expr, Expr] = {}

    def visit(e: Expr) -> Expr:
        match e:
            case Input():
                return new.get(e.index, e)
            case Call() if not new.keys().isdisjoint(e.inputs):
                if e not in memo:
                    memo[e] = Call(e.dtype, e.fn, tuple(visit(a) for a in e.args))
                return memo[e]
            case _:
                return e

    return visit(expr)


def rewritten(
    expr: Expr, rule: Callable[[Expr], Expr] = lambda e: e,
    known: Mapping[Expr, Expr] = MappingProxyType({}),
) -> Expr:  # fmt: skip
    """Return `expr` with every subexpression, its operands first, replaced as `rule` has it.

    The rule is given a subexpression with the operands that it has made. What is replaced by
    something `known` it isn't given.
    """
    done = dict(known)
    for e in walk(expr):
        if e not in done:
            new = Call(e.dtype, e.fn, tuple(done[a] for a in e.args)) if isinstance(e, Call) else e
            done[e] = rule(new)
    return done[expr]


def renumber(expr: Expr, indices: Mapping[int, int]) -> Expr:
    """Return `expr` with Input(k) renamed to Input(indices[k]), where that has one for it."""
    types = {i.index: i.dtype for i in operands_of(expr)}
    return substitute(expr, lambda k: Input(types[k], indices.get(k, k)))


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
            return expr.inputs
        case Input():
            return (expr.index,)
        case _:
            return ()


def operands_of(expr: Expr) -> tuple[Input, ...]:
    """Return the operands that the expression reads, in the order in which they first occur."""
    match expr:
        case Call():
            return expr.operands
        case Input():
            return (expr,)
        case _:
            return ()


def users_of(expr: Expr) -> dict[Expr, list[Call]]:
    """Return the calls that take each subexpression, once for each argument that it is."""
    users: dict[Expr, list[Call]] = {}
    for e in walk(expr):
        if isinstance(e, Call):
            for a in e.args:
                users.setdefault(a, []).append(e)
    return users


def expressions(value: object) -> Iterator[Expr]:
    """Yield the expressions in the fields of an op, those of its epilogue among them."""
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from expressions(each)
    elif is_dataclass(value):
        for each in fields(value):
            yield from expressions(getattr(value, each.name))


def functions_of(expr: Expr) -> frozenset[str]:
    """Return the functions that the expression calls."""
    return expr.functions if isinstance(expr, Call) else frozenset()


def cost(expr: Expr) -> int:
    """Return a rough cost in additions: a transcendental function counts 10."""
    return expr.cost if isinstance(expr, Call) else 0


_CHEAP = (BINARY | TERNARY | {"Cast", "CastSaturate", "Bitcast"}) - {"Pow"} | {
    "Abs", "Neg", "Floor", "Ceil", "Not", "Sign"
}  # fmt: skip


def _own_cost(c: Call) -> int:
    return 10 if c.fn not in _CHEAP else 4 if c.fn == "Div" else 1


LONG = 1000
"""Characters from which on a subexpression is written only once."""


def text(expr: Expr) -> str:
    """Return a readable form: `Max(Add(x0, x1), 0.0)`; leaves of other types than f32 say theirs.

    What is long and read more than once has a name: `v0 = ...; Mul(v0, v0)`.
    """
    uses = Counter(a for e in walk(expr) if isinstance(e, Call) for a in e.args)
    named: list[str] = []
    done: dict[Expr, str] = {}
    for e in walk(expr):
        done[e] = _text(e, done)
        if uses[e] > 1 and len(done[e]) > LONG:
            named.append(f"v{len(named)} = {done[e]}; ")
            done[e] = f"v{len(named) - 1}"
    return "".join(named) + done[expr]


def _text(e: Expr, done: Mapping[Expr, str]) -> str:
    match e:
        case Input():
            return f"x{e.index}{_type_text(e.dtype)}"
        case Const():
            return f"{e.text}{_type_text(e.dtype)}"
        case Extent():
            return f"[{plain(e.extent)}]{_type_text(e.dtype)}"
        case Call():
            typed = e.dtype is not type_of_call(e.fn, e.args)
            name = f"{e.fn}<{e.dtype.label}>" if typed else e.fn
            return f"{name}({', '.join(done[a] for a in e.args)})"
        case _:
            raise TypeError(e)


def _type_text(dtype: DType) -> str:
    return "" if dtype is DType.FLOAT else f":{dtype.label}"
