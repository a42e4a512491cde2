"""The domains of a model's operators: one name for the standard's, one opset for each."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping

import onnx_ir

from atc.errors import ModelError

STANDARD = "ai.onnx"
"""The other name of the standard's domain, which is '' for short: nodes have the short one."""
STOPS_GRADIENT = ("atc.training", "StopGradient")
"""Written on an Identity (key and value of its metadata) through which no gradient goes."""
PARAMETERS = "atc.parameters"
"""Where a model's metadata has the names of weights that are no settings of layers, a line each."""


def resolve_domains(model: onnx_ir.Model, file: str) -> None:
    """Replace the standard's domain by its short name, in the model and in its functions.

    Raises ModelError if its two names have different opsets, or if a node's domain is not
    imported.
    """
    _resolve(model.opset_imports, model.graph.all_nodes(), file)
    for key, function in [*model.functions.items()]:
        place = f"{file}, function '{function.name}'"
        _resolve(function.opset_imports, function.all_nodes(), place)
        if function.domain == STANDARD:
            function.domain = ""
            model.functions[function.identifier()] = model.functions.pop(key)


def _resolve(
    imports: MutableMapping[str, int], nodes: Iterable[onnx_ir.Node], place: str
) -> None:
    version = imports.pop(STANDARD, None)
    if version is not None and imports.setdefault("", version) != version:
        raise ModelError(
            f"imports opset {imports['']} of the standard's domain, and {version} as '{STANDARD}'",
            where=place,
        )
    for node in nodes:
        if node.domain not in imports:
            name = node.name or (node.outputs[0].name if node.outputs else "")
            raise ModelError(
                f"no opset of the domain {node.domain or STANDARD} is imported",
                where=f"{place}, node '{name}' ({node.op_type})",
                hint="add the domain to opset_import",
            )
