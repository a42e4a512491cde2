"""Lowering of `Backward`, the derivative of one operator: what AOTAutograd's graphs are made of."""

from __future__ import annotations

import onnx_ir

from atc.lower.context import LoweringContext
from atc.lower.gradient.derivatives import ABSENT, DERIVATIVES, OPSET, Variable
from atc.lower.gradient.reverse import walked_back
from atc.lower.gradient.tape import EXPANSIONS, Tape
from atc.lower.registry import lowers
from atc.lower.training import OWN


@lowers("Backward", domain=OWN)
def backward(ctx: LoweringContext) -> tuple[str, ...]:
    """Return the gradients of an operator's operands from that of its first result.

    The gradient is the first input, the operands follow. `operator` is the operator's name, all
    other attributes are its own.
    """
    name, (g, *inputs) = ctx.str("operator"), ctx.inputs
    ctx.require(("", name) in DERIVATIVES or ("", name) in EXPANSIONS, f"the operator '{name}'")
    own = [onnx_ir.Attr(a.name, a.type, a.value) for k, a in ctx.node.attributes.items()
           if k != "operator"]  # fmt: skip
    operands = {f"x{k}": Variable(v) if v else ABSENT for k, v in enumerate(inputs)}
    node = onnx_ir.Node(
        "", name, [onnx_ir.Value(name=k) if v is not ABSENT else None for k, v in operands.items()],
        own, outputs=[onnx_ir.Value(name="y")], version=OPSET, name=ctx.name,
    )  # fmt: skip
    env = dict(operands)
    tape = Tape(ctx, {"": OPSET})
    tape.forward(node, env)
    given, result = ctx.b.type(g), ctx.b.type(env["y"].value)
    ctx.require(given == result, f"a gradient of {given} for {result}")
    ctx.require(ctx.output_count <= len(operands), f"{ctx.output_count} outputs")
    return walked_back(ctx, tape.steps, env["y"], g, [*operands.values()][: ctx.output_count])
