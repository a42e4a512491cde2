"""Lowering of `Backward`, the derivative of one operator: what AOTAutograd's graphs are made of."""

from __future__ import annotations

import onnx_ir

from atc.lower.context import LoweringContext
from atc.lower.gradient.derivatives import ABSENT, DERIVATIVES, OPSET, Step, Variable
from atc.lower.registry import lowers
from atc.lower.training import OWN


@lowers("Backward", domain=OWN)
def backward(ctx: LoweringContext) -> tuple[str, ...]:
    """Return the gradients of an operator's operands from that of its first result.

    The gradient is the first input, the operands follow. `operator` is the operator's name, all
    other attributes are its own.
    """
    name, (g, *inputs) = ctx.str("operator"), ctx.inputs
    ctx.require(("", name) in DERIVATIVES, f"the operator '{name}'")
    own = [onnx_ir.Attr(a.name, a.type, a.value) for k, a in ctx.node.attributes.items()
           if k != "operator"]  # fmt: skip
    node = onnx_ir.Node("", name, [], own, num_outputs=1, version=OPSET, name=ctx.name)
    operands = tuple(Variable(v) if v else ABSENT for v in inputs)
    step = Step(ctx, node, operands, "", OPSET).computed()
    given, result = ctx.b.type(g), ctx.b.type(step.y)
    ctx.require(given == result, f"a gradient of {given} for {result}")
    found = DERIVATIVES["", name](step.receiving((g,), operands))
    ctx.require(ctx.output_count <= len(found), f"{ctx.output_count} outputs")
    return tuple(found)
