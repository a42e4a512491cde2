"""Derivatives of ONNX operators: from the gradients of a node's outputs to those of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import pi, prod, sqrt
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir

from atc.ir.expr import Expr, call, cast
from atc.ir.graph import DType
from atc.ir.view import View
from atc.lower.builder import Builder
from atc.lower.context import LoweringContext
from atc.lower.elementwise import compute, like
from atc.lower.reduce import reduce_axes
from atc.lower.registry import LOWERINGS
from atc.lower.training import PREVIEW

OPSET = 21
"""The version of the operators that derivatives are made of."""


@dataclass(frozen=True, eq=False)
class Variable:
    """The variable of a gradient: one result of one node. Several may be the same value."""

    value: str
    elements: tuple[Variable, ...] | None = None
    """Its tensors, if it is a sequence."""


ABSENT = Variable("")
"""The operand that isn't there."""


@dataclass(frozen=True)
class Step:
    """A node on the way to y, and the gradients of its results.

    `ctx` is the Gradient node's. A gradient is '' where y doesn't depend on the result.
    """

    ctx: LoweringContext
    node: onnx_ir.Node
    operands: tuple[Variable, ...]
    domain: str
    opset: int
    results: tuple[Variable, ...] = ()
    gradients: tuple[str, ...] = ()
    active: frozenset[Variable] = frozenset()
    """The variables whose gradients are wanted."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The operands by value name."""
        return tuple(v.value for v in self.operands)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The results by value name."""
        return tuple(v.value for v in self.results)

    @property
    def g(self) -> str:
        """The first result's gradient; zeros where there is none."""
        return self.gradient(0)

    @property
    def y(self) -> str:
        """The first result."""
        return self.outputs[0]

    @property
    def at(self) -> LoweringContext:
        """The node itself, with its attributes, on the values of this step."""
        return replace(self.ctx, node=self.node, inputs=self.inputs, opset=self.opset)

    def gradient(self, k: int) -> str:
        """Return the gradient of result `k`, zeros where y doesn't depend on it."""
        type_ = self.ctx.b.type(self.outputs[k])
        return self.gradients[k] or zeros(self.ctx.b, type_.shape, type_.dtype)

    def shape(self, i: int) -> tuple[int, ...]:
        """Return the shape of operand `i`."""
        return self.ctx.b.shape(self.inputs[i])

    def is_real(self, i: int) -> bool:
        """Return whether operand `i` is there and can have a gradient."""
        given = i < len(self.inputs) and self.inputs[i]
        return bool(given) and self.ctx.b.type(self.inputs[i]).dtype.is_float

    def receiving(self, gradients: Sequence[str], active: Collection[Variable]) -> Step:
        """Return the step with the gradients of its results, and the variables that want them."""
        return replace(self, gradients=tuple(gradients), active=frozenset(active))

    def computed(self) -> Step:
        """Return the step with its results, for which the node is lowered on the operands."""
        if self.domain == PREVIEW and self.node.op_type == "Gradient":  # it reads its graph
            found = LOWERINGS[PREVIEW, "Gradient"](self.at)
            return replace(self, results=tuple(map(Variable, found)))
        outputs = emit_node(self, self.node.op_type, self.inputs, self.node.attributes,
                            self.domain, self.opset, len(self.node.outputs))  # fmt: skip
        return replace(self, results=tuple(map(Variable, outputs)))

    def op(
        self, op_type: str, *inputs: str, attributes: Mapping[str, Any] | None = None
    ) -> str:  # fmt: skip
        """Lower a node of the standard's on values; returns its result."""
        made = {k: onnx_ir.convenience.convert_attribute(k, v) for k, v in
                (attributes or {}).items()}  # fmt: skip
        return emit_node(self, op_type, inputs, made, "", OPSET, 1)[0]

    def ints(self, values: Sequence[int]) -> str:
        """Return a constant list of integers, as shapes, axes and the like are given."""
        return self.ctx.b.constant(np.asarray(values, np.int64))


def emit_node(
    step: Step, op_type: str, inputs: Sequence[str], attributes: Mapping[str, onnx_ir.Attr],
    domain: str, opset: int, outputs: int,
) -> tuple[str, ...]:  # fmt: skip
    """Lower a node of an operator on values; returns its results."""
    ctx, b = step.ctx, step.ctx.b
    values = [onnx_ir.Value(name=b.fresh("gradient")) if i else None for i in inputs]
    for value, name in zip(values, inputs, strict=True):
        if value is not None:
            ctx.bind(b, value, name)
    results = [onnx_ir.Value(name=b.fresh("gradient")) for _ in range(outputs)]
    copied = [onnx_ir.Attr(a.name, a.type, a.value) for a in attributes.values()]
    node = onnx_ir.Node(domain, op_type, values, copied, outputs=results, version=opset,
                        name=ctx.name)  # fmt: skip
    graph = onnx_ir.Graph([v for v in values if v is not None], results, nodes=[node])
    return ctx.lower_subgraph(graph, b)


Rule = Callable[[Step], Sequence[str]]
"""Returns the gradient of each operand, '' for one that has none."""

_TABLE: dict[tuple[str, str], Rule] = {}

DERIVATIVES: Mapping[tuple[str, str], Rule] = MappingProxyType(_TABLE)
"""All rules, by domain and operator."""


def derives(*op_types: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Register the rule of operators of a domain ('' is ai.onnx)."""

    def register(rule: Rule) -> Rule:
        _TABLE.update({(domain, op_type): rule for op_type in op_types})
        return rule

    return register


_STORED = 1 << 16
"""Zeros that are a constant; more of them are written by a call, not held by the library."""


def zeros(b: Builder, shape: Sequence[int], dtype: DType) -> str:
    """Return zeros of a shape."""
    if prod(shape) <= _STORED:
        return b.constant(np.zeros(shape, dtype.numpy))
    views = [View((0,) * len(shape))]
    return b.map(lambda c: c, b.scalar(0, dtype), shape=shape, views=views)


def added(ctx: LoweringContext, a: str, b: str) -> str:
    """Return the sum of two gradients of one value."""
    return compute(ctx, lambda p, q: call("Add", p, q), a, b)


def summed_to(ctx: LoweringContext, g: str, shape: Sequence[int]) -> str:
    """Return a gradient summed over what was broadcast of an operand of this shape."""
    full = ctx.b.shape(g)
    lead = len(full) - len(shape)
    axes = [d for d, n in enumerate(full) if d < lead or (shape[d - lead] == 1 and n != 1)]
    return ctx.b.reshape(reduce_axes(ctx, g, axes, True, "Sum") if axes else g, shape)


# ---- one operand, element by element ------------------------------------------------------------


def _one(x: Expr) -> Expr:
    return like(x, 1)


def minus(a: Expr, b: Expr) -> Expr:
    """Return a - b."""
    return call("Sub", a, b)


def times(*factors: Expr) -> Expr:
    """Return the product, multiplied from left to right."""
    product, *others = factors
    for factor in others:
        product = call("Mul", product, factor)
    return product


def over(a: Expr, b: Expr) -> Expr:
    """Return a / b."""
    return call("Div", a, b)


def is_equal(a: Expr, b: Expr) -> Expr:
    """Return 1 where a is b, else 0, of their type."""
    return cast(call("Equal", a, b), a.dtype)


def share(g: Expr, hit: Expr, hits: Expr) -> Expr:
    """Return what one of `hits` equal values gets of a gradient, where `hit` is 1."""
    return over(times(g, hit), hits)


def where_is(fn: str, x: Expr, bound: float, then: Expr, otherwise: Expr) -> Expr:
    """Return one of two values by how x compares with a number."""
    return call("Where", call(fn, x, like(x, bound)), then, otherwise)


UNARY: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "Neg": lambda x, y: like(x, -1),
    "Exp": lambda x, y: y,
    "Log": lambda x, y: over(_one(x), x),
    "Sqrt": lambda x, y: over(like(x, 0.5), y),
    "Reciprocal": lambda x, y: call("Neg", times(y, y)),
    "Abs": lambda x, y: call("Sign", x),
    "Tanh": lambda x, y: minus(_one(x), times(y, y)),
    "Sigmoid": lambda x, y: times(y, minus(_one(x), y)),
    "Softplus": lambda x, y: call("Sigmoid", x),
    "Relu": lambda x, y: where_is("Greater", y, 0, _one(x), like(x, 0)),  # the next layer keeps y
    "Erf": lambda x, y: times(like(x, 2 / sqrt(pi)), call("Exp", call("Neg", times(x, x)))),
    "Sin": lambda x, y: call("Cos", x),
    "Cos": lambda x, y: call("Neg", call("Sin", x)),
    "Tan": lambda x, y: call("Add", _one(x), times(y, y)),
    "Asin": lambda x, y: over(_one(x), call("Sqrt", minus(_one(x), times(x, x)))),
    "Acos": lambda x, y: over(like(x, -1), call("Sqrt", minus(_one(x), times(x, x)))),
    "Atan": lambda x, y: over(_one(x), call("Add", _one(x), times(x, x))),
    "Sinh": lambda x, y: call("Cosh", x),
    "Cosh": lambda x, y: call("Sinh", x),
    "Asinh": lambda x, y: over(_one(x), call("Sqrt", call("Add", times(x, x), _one(x)))),
    "Acosh": lambda x, y: over(_one(x), call("Sqrt", minus(times(x, x), _one(x)))),
    "Atanh": lambda x, y: over(_one(x), minus(_one(x), times(x, x))),
    "Identity": lambda x, y: _one(x),
    **{op: lambda x, y: like(x, 0) for op in ("Floor", "Ceil", "Round", "Sign")},
}
"""dy/dx of functions of one operand, by x and y; at a kink the limit from one side, or 0."""


@derives(*UNARY)
def unary(step: Step) -> list[str]:
    """g * dy/dx."""
    slope = UNARY[step.node.op_type]
    x = step.inputs[0]
    return [compute(step.ctx, lambda g, x, y: times(g, slope(x, y)), step.g, x, step.y)]


@derives("LeakyRelu", "Elu", "Celu", "Selu")
def rectified(step: Step) -> list[str]:
    """Rectifiers: a line above 0; below it another line, or an exponential."""
    op = step.node.op_type
    default = {"LeakyRelu": 0.01, "Selu": 1.67326319217681884765625}.get(op, 1.0)
    alpha, gamma = step.at.float("alpha", default), 1.0
    if op == "Selu":
        gamma = step.at.float("gamma", 1.05070102214813232421875)

    def slope(g: Expr, x: Expr, y: Expr) -> Expr:
        below = like(x, alpha)
        if op in ("Elu", "Selu"):
            below = call("Add", y, like(x, alpha * gamma))
        elif op == "Celu":
            below = call("Add", over(y, like(x, alpha)), _one(x))
        return times(g, where_is("Greater", x, 0, like(x, gamma), below))

    return [compute(step.ctx, slope, step.g, step.inputs[0], step.y)]


@derives("Clip")
def clip(step: Step) -> list[str]:
    """g where the operand is its own result, none for the limits."""
    inside = lambda g, x, y: call("Where", call("Equal", x, y), g, like(g, 0))  # noqa: E731
    return [compute(step.ctx, inside, step.g, step.inputs[0], step.y)]


@derives("Cast", "CastLike")
def lower_cast(step: Step) -> list[str]:
    """Return the gradient in the operand's type."""
    if not step.is_real(0):
        return [""]
    return [step.ctx.b.cast(step.g, step.ctx.b.type(step.inputs[0]).dtype)]


@derives("Dropout")
def dropout(step: Step) -> list[str]:
    """Return the gradient through what was kept, as amplified as it was."""
    ones = step.ctx.b.constant(np.ones(step.shape(0), np.float32))
    ones = step.ctx.b.cast(ones, step.ctx.b.type(step.inputs[0]).dtype)
    inputs = (ones, *step.inputs[1:])
    (factor,) = emit_node(step, "Dropout", inputs, step.node.attributes, "", step.opset, 1)
    if "seed" not in step.node.attributes and step.at.has(2):
        raise step.at.unsupported("the gradient of a Dropout without a seed")
    return [compute(step.ctx, times, step.g, factor)]


# ---- several operands, broadcast ----------------------------------------------------------------


def _log(x: Expr) -> Expr:
    return call("Log", x)


def _power_slope(g: Expr, a: Expr, b: Expr, y: Expr) -> Expr:
    """Return g b a^(b - 1), which is 0 where b is."""
    b = cast(b, a.dtype)
    slope = times(g, b, call("Pow", a, minus(b, like(b, 1))))
    return where_is("Equal", b, 0, like(a, 0), slope)


def _exponent_slope(g: Expr, a: Expr, b: Expr, y: Expr) -> Expr:
    """Return g y log(a), which is 0 where y is, and 0 by 0^0."""
    base = where_is("Equal", a, 0, where_is("Equal", b, 0, _one(a), a), a)
    return where_is("Equal", y, 0, like(y, 0), times(g, y, _log(base)))


BINARY: Mapping[str, tuple[Callable[..., Expr], Callable[..., Expr]]] = {
    "Add": (lambda g, a, b, y: g, lambda g, a, b, y: g),
    "Sub": (lambda g, a, b, y: g, lambda g, a, b, y: call("Neg", g)),
    "Mul": (lambda g, a, b, y: times(g, b), lambda g, a, b, y: times(g, a)),
    "Div": (lambda g, a, b, y: over(g, b), lambda g, a, b, y: call("Neg", over(times(g, y), b))),
    "Pow": (_power_slope, _exponent_slope),
    "PRelu": (lambda g, a, b, y: where_is("Less", a, 0, times(g, b), g),
              lambda g, a, b, y: where_is("Less", a, 0, times(g, a), like(g, 0))),
}  # fmt: skip
"""g dy/da and g dy/db of functions of two operands."""


@derives(*BINARY)
def binary(step: Step) -> list[str]:
    """Each operand's gradient, summed over what was broadcast."""
    operands = (step.g, *step.inputs[:2], step.y)
    return [
        summed_to(step.ctx, compute(step.ctx, rule, *operands), step.shape(i))
        if step.is_real(i) else ""
        for i, rule in enumerate(BINARY[step.node.op_type])
    ]  # fmt: skip


@derives("Sum", "Mean")
def n_ary(step: Step) -> list[str]:
    """Give each operand the gradient itself, or its share."""
    g, count = step.g, len(step.inputs)
    if step.node.op_type == "Mean":
        g = compute(step.ctx, lambda v: over(v, like(v, count)), g)
    return [summed_to(step.ctx, g, step.shape(i)) for i in range(count)]


@derives("Max", "Min")
def extreme(step: Step) -> list[str]:
    """Give the gradient to the operands that are the result, in equal shares."""
    ctx = step.ctx
    hits = [compute(ctx, is_equal, x, step.y) for x in step.inputs]
    total = hits[0]
    for hit in hits[1:]:
        total = added(ctx, total, hit)
    parts = [compute(ctx, share, step.g, hit, total) for hit in hits]
    return [summed_to(ctx, part, step.shape(i)) for i, part in enumerate(parts)]


@derives("Where")
def where(step: Step) -> list[str]:
    """Return the gradient of the operand that was chosen."""
    ctx = step.ctx
    chosen = compute(ctx, lambda c, g: call("Where", c, g, like(g, 0)), step.inputs[0], step.g)
    others = compute(ctx, lambda c, g: call("Where", c, like(g, 0), g), step.inputs[0], step.g)
    parts = (chosen, others)
    return ["", *(summed_to(ctx, p, step.shape(i)) for i, p in enumerate(parts, 1))]
