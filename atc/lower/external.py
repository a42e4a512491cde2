"""Nodes that a library of the user's computes: marked in the model, then lowered to one call."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import onnx_ir

from atc.errors import ModelError, one_line
from atc.ir.graph import TensorType
from atc.ir.ops.external import External
from atc.lower.context import LoweringContext
from atc.lower.registry import LOWERINGS, lowers

DOMAIN, OP_TYPE = "atc.external", "External"
_SYMBOL, _INFER = "atc.external.symbol", "atc.external.infer"
"""Keys of a marked node's meta values: the C function, and what makes the results' types."""
_LONGEST = 2000
"""Characters of the attributes: a C string of them, escaped, is one that C99 compilers take."""

Infer = Callable[[str, Sequence[TensorType | None], int], list[TensorType]]


class Operator(Protocol):
    """An operator of a library: its type in models, the C function, the types of its results."""

    @property
    def type(self) -> str:
        """`domain::Type`, or `Type`."""

    @property
    def symbol(self) -> str:
        """The function's name."""

    @property
    def infer(self) -> Infer:
        """Returns the types of a number of outputs; raises ValueError."""


def bind_operators(model: onnx_ir.Model, operators: Iterable[Operator]) -> int:
    """Let functions of a library compute the model's nodes of its operators; returns how many.

    `Type` stands for nodes of any domain that this compiler doesn't know, `domain::Type` for those
    of that domain in any case.
    """
    known = {op.type: op for op in operators}
    count = 0
    for node in list(model.graph.all_nodes()):
        op = known.get(f"{node.domain}::{node.op_type}")
        if op is None and (node.domain, node.op_type) not in LOWERINGS:
            op = known.get(node.op_type)
        if op is not None:
            _bind(node, op)
            count += 1
    if count:
        model.graph.opset_imports.setdefault(DOMAIN, 1)
    return count


def _bind(node: onnx_ir.Node, op: Operator) -> None:
    text, infer = _attributes(node), op.infer
    node.name = node.name or node.op_type
    node.meta[_SYMBOL] = op.symbol
    node.meta[_INFER] = lambda inputs, count: (text, infer(text, inputs, count))
    node.domain, node.op_type = DOMAIN, OP_TYPE


def _attributes(node: onnx_ir.Node) -> str:
    """Return a node's attributes as JSON; tensors as nested lists."""
    values: dict[str, object] = {}
    for name, attribute in sorted(node.attributes.items()):
        value = attribute.value
        if isinstance(value, onnx_ir.TensorProtocol):
            value = value.numpy().tolist()
        values[name] = list(value) if isinstance(value, tuple) else value
    try:
        text = json.dumps(values, ensure_ascii=True)
    except (TypeError, ValueError):
        text = ""
    if not text or len(text) > _LONGEST:
        raise ModelError(
            "the node's attributes can't be passed to an external operator",
            where=f"node '{one_line(node.name or node.op_type, 100)}'",
        )
    return text


@lowers(OP_TYPE, domain=DOMAIN)
def external(ctx: LoweringContext) -> tuple[str, ...]:
    """One call of the function."""
    if _SYMBOL not in ctx.node.meta:
        raise ModelError("no library computes this node", where=ctx.label, hint="give --c_opr_lib")
    types = [ctx.b.type(i) if i else None for i in ctx.inputs]
    text, results = ctx.node.meta[_INFER](types, ctx.output_count)
    return ctx.b.emit(External(ctx.node.meta[_SYMBOL], text), ctx.inputs, *results)
