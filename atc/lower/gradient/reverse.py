"""Lowering of ONNX Gradient: reverse-mode differentiation of the nodes between xs and y.

The nodes are lowered once more, on the values that the Gradient node is given (equal nodes are
shared later on), then `derivatives.py` walks them backwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir

from atc.errors import one_line
from atc.ir.expr import Input
from atc.ir.ops import Map
from atc.ir.view import dense
from atc.lower.builder import Builder
from atc.lower.context import LoweringContext
from atc.lower.gradient.derivatives import DERIVATIVES, Step, Variable, derives, zeros
from atc.lower.gradient.tangents import directional
from atc.lower.gradient.tape import Tape, dependencies
from atc.lower.gradient.totals import Total
from atc.lower.gradient.without import STOPS, WITHOUT
from atc.lower.registry import lowers
from atc.lower.training import OWN, PREVIEW


@lowers("Gradient", domain=PREVIEW)
def gradient(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX ai.onnx.preview.training Gradient-1: dy/dx for all x of xs, y being summed."""
    xs, zs = ctx.strs("xs") or [], ctx.strs("zs") or []
    ctx.require(len(ctx.inputs) == len(xs) + len(zs), f"{len(ctx.inputs)} inputs for xs and zs")
    return _gradients(ctx, range(len(xs)))


def _gradients(ctx: LoweringContext, wanted: Iterable[int]) -> tuple[str, ...]:
    """Return the gradients of the sum of y with respect to operands of a Gradient node."""
    names = [*(ctx.strs("xs") or []), *(ctx.strs("zs") or [])]
    given = {n: Variable(v) for n, v in zip(names, ctx.inputs, strict=True)}
    nodes, leaves = _between(ctx, given, ctx.str("y"))
    env = {**given, **leaves}
    tape = Tape(ctx, ctx.opsets)
    tape.run(nodes, env)
    y = env[ctx.str("y")]
    one = np.ones(ctx.b.shape(y.value), ctx.b.type(y.value).dtype.numpy)
    return walked_back(
        ctx, tape.steps, y, ctx.b.constant(one), [given[names[k]] for k in wanted]
    )


@derives("Gradient", domain=PREVIEW)
def second(step: Step) -> list[str]:
    """Return what the slopes by all operands change by where xs move along the gradients.

    The matrix of second derivatives is symmetric, so that its products with a vector are changes in
    the direction of that vector.
    """
    b, count = step.ctx.b, len(step.gradients)
    held = [n for n in _nodes_of(step) if (n.domain, n.op_type) == (OWN, "StopGradient")]
    if held:  # the nodes of the IR don't say where gradients stop
        raise step.ctx.unsupported(f"the second derivative through {_named(held[0])}")
    begin = len(b.nodes)
    copies = tuple(_copy(b, name) for name in step.inputs)  # no two of them are one value
    wanted = [k for k, x in enumerate(step.operands) if x in step.active and step.is_real(k)]
    slopes = _gradients(replace(step.at, inputs=copies), wanted)
    seeds = {c: g for c, g in zip(copies[:count], step.gradients, strict=True) if g}
    changes = directional(step.ctx, b.nodes[begin:], seeds, slopes)
    found = dict(zip(wanted, slopes, strict=True))
    return [changes.get(found[k], "") if k in found else "" for k in range(len(copies))]


def _nodes_of(step: Step) -> list[onnx_ir.Node]:
    """Return the nodes that a Gradient node differentiates."""
    names = [*(step.at.strs("xs") or []), *(step.at.strs("zs") or [])]
    return dependencies(step.node.graph or (), names, step.at.str("y"))[0]


def _copy(b: Builder, name: str) -> str:
    """Return a value's equal that isn't the same value."""
    type_ = b.type(name)
    loops = (type_.size,)
    return b.emit1(Map(loops, Input(type_.dtype, 0), (dense(loops),)), [name], type_)


def _between(
    ctx: LoweringContext, given: Mapping[str, Variable], y: str
) -> tuple[list[onnx_ir.Node], dict[str, Variable]]:
    """Return the nodes by which y depends on the given values, and constants by name."""
    graph = ctx.node.graph
    needed, leaves = dependencies(graph or (), given, y)
    found = {v.name for node in needed for v in node.outputs}
    ctx.require(y in found or y in given, f"y is '{y}', which no node of the graph computes")
    return needed, {name: Variable(_constant(ctx, name)) for name in leaves}


def _constant(ctx: LoweringContext, name: str) -> str:
    graph = ctx.node.graph
    initializers = graph.initializers if isinstance(graph, onnx_ir.Graph) else {}
    value = initializers.get(name)
    if value is None or value.const_value is None:
        raise ctx.unsupported(f"y depends on '{name}', which is neither in xs nor in zs")
    return ctx.b.constant(np.asarray(value.const_value.numpy()), name)


def walked_back(
    ctx: LoweringContext, tape: Sequence[Step], y: Variable, g: str, xs: Sequence[Variable]
) -> tuple[str, ...]:
    """Return the gradient with respect to each x from that of y; 0 where y doesn't depend."""
    b = ctx.b
    gradients = {y: Total(ctx, g)}
    active = {*xs}
    for step in tape:
        stops = (step.domain, step.node.op_type) in STOPS
        active.update(() if stops or active.isdisjoint(step.operands) else step.results)
    for step in reversed([s for s in tape if not active.isdisjoint(s.operands)]):
        incoming = tuple(gradients[r].value() if r in gradients else "" for r in step.results)
        if not any(incoming):
            continue
        rule = DERIVATIVES.get((step.domain, step.node.op_type))
        if rule is None:
            why = WITHOUT.get((step.domain, step.node.op_type), "")
            raise step.at.unsupported(f"the gradient of {step.node.op_type} is not covered"
                                      f"{why and ': '}{why}")  # fmt: skip
        for x, part in zip(step.operands, rule(step.receiving(incoming, active)), strict=False):
            if x in active and part:
                gradients.setdefault(x, Total(ctx)).add(part)
    return tuple(
        gradients[x].value() if x in gradients
        else zeros(b, b.shape(x.value), b.type(x.value).dtype) for x in xs
    )  # fmt: skip


def _named(node: onnx_ir.Node) -> str:
    return f"{node.op_type} ({one_line(node.name, 60)})" if node.name else node.op_type
