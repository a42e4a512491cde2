"""Chains of nodes that computed what a node reads, for `--record_computing_path`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir

from atc.adapt.states import states_of
from atc.errors import AtcError, chain_text, one_line
from atc.ir.graph import Graph
from atc.lower import lower_model
from atc.lower.context import node_name
from atc.lower.growth import Growth
from atc.lower.trace import NodeDiagnostic
from atc.options.options import Options
from atc.pipeline.precision import Policy


def lowered(
    model: onnx_ir.Model, options: Options, policy: Policy,
    report: Callable[[NodeDiagnostic], None] | None = None,
    growths: Mapping[str, Growth] | None = None,
) -> Graph:  # fmt: skip
    """Lower a model; an error that names one of its nodes has that node's chain, if asked."""
    precision = policy.precision(dict(states_of(model)))
    try:
        return lower_model(
            model, options.model.name, report=report, precision=precision, growths=growths
        )
    except AtcError as error:
        if options.record_computing_path:
            named = (n for n in model.graph if f"'{one_line(node_name(n))}'" in error.where)
            path = next(map(computing_path, named), "")
            error.message += f"; computed by {path}" if path else ""
        raise


def computing_path(node: onnx_ir.Node) -> str:
    """Return the chain of nodes to a node for each value it reads, along the first operands."""
    chains = [_chain(v) for v in node.inputs if v is not None and not v.is_initializer()]
    return "; ".join(chain_text(chain) for chain in chains if chain)


def _chain(value: onnx_ir.Value) -> list[str]:
    """Return the input that a value comes from and the nodes between, in order."""
    names: list[str] = []
    seen: set[int] = set()
    while (node := value.producer()) is not None and id(node) not in seen:
        seen.add(id(node))
        names.append(node_name(node))
        read = [v for v in node.inputs if v is not None and not v.is_initializer()]
        if not read:
            return names[::-1]
        value = read[0]
    return [value.name or "", *names[::-1]]
