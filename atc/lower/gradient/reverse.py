"""Lowering of ONNX Gradient: reverse-mode differentiation of the nodes between xs and y.

The nodes are lowered once more, on the values that the Gradient node is given (equal nodes are
shared later on), then `derivatives.py` walks them backwards. An operator without a derivative of
its own is differentiated through the standard's function body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir

from atc.lower.context import LoweringContext
from atc.lower.function import function_body
from atc.lower.gradient.derivatives import ABSENT, DERIVATIVES, Step, Variable, added
from atc.lower.registry import lowers
from atc.lower.training import PREVIEW

MAX_DEPTH = 8
"""Function bodies inside function bodies that are followed."""


@lowers("Gradient", domain=PREVIEW)
def gradient(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX ai.onnx.preview.training Gradient-1: dy/dx for all x of xs, y being summed."""
    xs, zs = ctx.strs("xs") or [], ctx.strs("zs") or []
    ctx.require(len(ctx.inputs) == len(xs) + len(zs), f"{len(ctx.inputs)} inputs for xs and zs")
    given = {n: Variable(v) for n, v in zip((*xs, *zs), ctx.inputs, strict=True)}
    nodes, leaves = _between(ctx, given, ctx.str("y"))
    env = {**given, **leaves}
    tape: list[Step] = []
    for node in nodes:
        _forward(ctx, node, ctx.opsets, env, tape, 0)
    return _backward(ctx, tape, env[ctx.str("y")], [given[x] for x in xs])


def _between(
    ctx: LoweringContext, given: Mapping[str, Variable], y: str
) -> tuple[list[onnx_ir.Node], dict[str, Variable]]:
    """Return the nodes by which y depends on the given values, and constants by name."""
    graph = ctx.node.graph
    made = {v.name: node for node in graph or () for v in node.outputs if v.name}
    ctx.require(y in made or y in given, f"y is '{y}', which no node of the graph computes")
    needed: set[onnx_ir.Node] = set()
    leaves: dict[str, Variable] = {}
    pending = [y]
    while pending:
        name = pending.pop()
        if name in given or name in leaves:
            continue
        if name not in made:
            leaves[name] = Variable(_constant(ctx, name))
        elif made[name] not in needed:
            needed.add(made[name])
            pending += [v.name for v in made[name].inputs if v is not None and v.name]
    return [node for node in graph or () if node in needed], leaves


def _constant(ctx: LoweringContext, name: str) -> str:
    graph = ctx.node.graph
    initializers = graph.initializers if isinstance(graph, onnx_ir.Graph) else {}
    value = initializers.get(name)
    if value is None or value.const_value is None:
        raise ctx.unsupported(f"y depends on '{name}', which is neither in xs nor in zs")
    return ctx.b.constant(np.asarray(value.const_value.numpy()), name)


def _forward(
    ctx: LoweringContext, node: onnx_ir.Node, opsets: Mapping[str, int],
    env: dict[str, Variable], tape: list[Step], depth: int,
) -> None:  # fmt: skip
    """Lower a node and note it on the tape, or the nodes of its function body instead."""
    operands = [env[v.name] if v is not None and v.name else ABSENT for v in node.inputs]
    opset = node.version or opsets[node.domain]
    body = None
    if (node.domain, node.op_type) not in DERIVATIVES and depth < MAX_DEPTH:
        types = [ctx.b.type(v.value) if v.value else None for v in operands]
        body = function_body(node, types, opset)
    if body is None:
        step = Step(ctx, node, tuple(operands), node.domain, opset).computed()
        tape.append(step)
        results = step.results
    else:
        given = [*operands, *[ABSENT] * len(body.inputs)]
        inner = {v.name or "": x for v, x in zip(body.inputs, given, strict=False)}
        for part in body:
            _forward(ctx, part, {**opsets, **body.opset_imports}, inner, tape, depth + 1)
        results = tuple(inner[v.name or ""] for v in body.outputs)
    env.update((v.name, r) for v, r in zip(node.outputs, results, strict=False) if v.name)


def _backward(
    ctx: LoweringContext, tape: Sequence[Step], y: Variable, xs: Sequence[Variable]
) -> tuple[str, ...]:
    """Return the gradient of the sum of y with respect to each x; 0 where y doesn't depend."""
    b = ctx.b
    one = np.ones(b.shape(y.value), b.type(y.value).dtype.numpy)
    gradients = {y: b.constant(one)}
    active = {*xs}
    for step in tape:
        active.update(() if active.isdisjoint(step.operands) else step.results)
    for step in reversed([s for s in tape if not active.isdisjoint(s.operands)]):
        incoming = tuple(gradients.get(r, "") for r in step.results)
        if not any(incoming):
            continue
        rule = DERIVATIVES.get((step.domain, step.node.op_type))
        if rule is None:
            raise ctx.unsupported(f"the gradient of {step.node.op_type} is not covered")
        for x, part in zip(step.operands, rule(step.receiving(incoming)), strict=False):
            if x in active and part:
                gradients[x] = added(ctx, gradients[x], part) if x in gradients else part
    zeros = {x: np.zeros(b.shape(x.value), b.type(x.value).dtype.numpy) for x in xs}
    return tuple(gradients.get(x) or b.constant(zeros[x]) for x in xs)
