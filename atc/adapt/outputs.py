"""The outputs that `--out_nodes` names, found in the model."""

from __future__ import annotations

import re
from collections.abc import Sequence

import onnx_ir

from atc.errors import OptionError


def find_outputs(model: onnx_ir.Model, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the values that `wanted` means: value names, or `node:output`.

    A value whose name ends in `:0` is found by that name first. Raises OptionError: E10016 for
    what isn't in the model, E10013 for an output that the node doesn't have, E10001 for a mixture.
    """
    graph = model.graph
    nodes = {node.name: node for node in graph if node.name}
    values = {v.name for v in (*graph.inputs, *graph.initializers.values())}
    values |= {v.name for node in graph for v in node.outputs}
    named = [name for name in wanted if name in values]
    if len(named) == len(wanted):
        return tuple(wanted)
    placed = [_value_of(nodes, name) for name in wanted if name not in values]
    if named:
        raise OptionError(
            f"'{named[0]}' names a value, another one a node", where="--out_nodes",
            hint="give all as values or all as node:0",
        )  # fmt: skip
    return tuple(placed)


def _value_of(nodes: dict[str, onnx_ir.Node], text: str) -> str:
    found = re.fullmatch(r"(.+):([0-9]{1,6})", text, re.DOTALL)
    name, number = (found[1], int(found[2])) if found else (text, 0)
    if not found or name not in nodes:
        raise OptionError(
            f"'{name}' is neither a value nor a node of the model", where="--out_nodes",
            hint="give a value's name, or a node's with an output number, as in conv1:0",
            code="E10016",
        )  # fmt: skip
    outputs = nodes[name].outputs
    if number >= len(outputs) or not outputs[number].name:
        raise OptionError(
            f"node '{name}' has no output {number}", where="--out_nodes", code="E10013",
            hint=f"its outputs are 0 to {len(outputs) - 1}",
        )  # fmt: skip
    return outputs[number].name or ""
