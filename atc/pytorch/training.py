"""Marks that PyTorch's exporter to ONNX drops and training needs: where gradients stop, for what.

Exported to ONNX a module computes the same, but `detach` and `no_grad` are gone, rows of an
embedding that are padding look like all others, buffers and frozen parameters like weights, and
layers of statistics are as at inference. All of these are put back into the ONNX model.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir
import torch

from atc.errors import UnsupportedError
from atc.importers.domains import PARAMETERS

_DOMAIN = "atc.training"
_SCOPES = "pkg.torch.onnx.name_scopes"
"""What the exporter notes of a node: the paths of the modules around it, and its own name."""
_ATEN = torch.ops.aten
_NORMS = (_ATEN._native_batch_norm_legit_functional.default, _ATEN.batch_norm.default)


def captured(module: torch.nn.Module, inputs: Sequence[Any]) -> torch.export.ExportedProgram:
    """Return a module's operations, with `detach` around what is computed under `no_grad`.

    Raises UnsupportedError for what would be trained as something else.
    """
    _refuse_hooks(module)
    with torch.enable_grad(), _without_functions():
        program = torch.export.export(module, tuple(inputs), strict=False)
    graph = program.graph
    for node in [*graph.nodes]:
        if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled and not node.args[0]:
            for part in [*node.users]:
                _detach(graph, part)
        _refuse(node)
    return program


def _refuse_hooks(module: torch.nn.Module) -> None:
    hooks = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
    for name, part in (*module.named_modules(), *module.named_parameters()):
        if any(getattr(part, each, None) for each in hooks):
            raise _untrainable("a hook that changes gradients", name or type(part).__name__)


@contextmanager
def _without_functions() -> Iterator[None]:
    """Refuse operations whose derivatives are a Python function, which isn't exported."""
    own = torch.autograd.Function.__dict__["apply"]

    def apply(function: type, *operands: Any, **more: Any) -> Any:
        if not function.__module__.startswith("torch."):
            raise _untrainable("a derivative in Python", function.__name__)
        return own.__func__(function, *operands, **more)

    torch.autograd.Function.apply = classmethod(apply)
    try:
        yield
    finally:
        torch.autograd.Function.apply = own


def _untrainable(what: str, where: str) -> UnsupportedError:
    return UnsupportedError(f"can't be trained: {what}", where=where)


def _detach(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    with graph.inserting_after(node):
        made = graph.call_function(_ATEN.detach.default, (node,))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)


def _refuse(node: torch.fx.Node) -> None:
    what = ""
    if node.target is _ATEN.instance_norm.default and node.args[3] is not None and node.args[5]:
        what = "an instance norm that keeps running statistics; use track_running_stats=False"
    if node.target is _ATEN.embedding.default and any(node.args[3:4]):
        what = "an embedding that scales gradients by frequency"
    if what:
        raise _untrainable(what, node.name)


def complete(program: torch.onnx.ONNXProgram, module: torch.nn.Module) -> None:
    """Put back into an exported model what training needs."""
    assert program.exported_program is not None
    graph = program.model.graph
    program.model.opset_imports.setdefault(_DOMAIN, 1)
    made = {value.name: node for node in graph for value in node.outputs}
    kept: set[str] = set()
    for node in program.exported_program.graph.nodes:
        result = made.get(node.name)
        if result is None:
            continue
        if node.target is _ATEN.detach.default:
            result.op_type, result.domain = "StopGradient", _DOMAIN
        elif node.target is _ATEN.embedding.default and len(node.args) > 2 and node.args[2] >= 0:
            _hold_padding(graph, result, node.args[2])
        elif is_training_norm(node):
            kept.update(_let_train(result))
    trained = {n for n, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    for name in {*graph.initializers} - trained - kept:
        _make_constant(graph, name)
    program.model.metadata_props[PARAMETERS] = "\n".join(
        sorted(trained.intersection(graph.initializers))
    )
    _name_by_modules(graph)


def _name_by_modules(graph: onnx_ir.Graph) -> None:
    """Put the path of the module that computes a node before the node's name."""
    for node in graph:
        scopes: Sequence[str] = literal_eval(node.metadata_props.get(_SCOPES, "[]"))
        if any(scopes[:-1]):
            node.name = f"{scopes[-2]}/{node.name}"


def is_training_norm(node: torch.fx.Node) -> bool:
    """Return whether a result is the first of a batch norm in training, with statistics to keep."""
    args = node.args
    if node.target not in _NORMS:  # those of several results have nodes that take each
        if not args or not isinstance(args[0], torch.fx.Node) or args[1:] != (0,):
            return False
        args = args[0].args if args[0].target in _NORMS else ()
    return bool(args[5:]) and args[3] is not None and bool(args[5])


def _let_train(node: onnx_ir.Node) -> Iterator[str]:
    """Let a BatchNormalization use the batch's statistics; yields the names of its own."""
    y = node.outputs[0]
    node.resize_outputs(3)
    for value, name in zip(node.outputs[1:], ("mean", "var"), strict=True):
        value.name = f"{y.name}.{name}"
    node.attributes.add(onnx_ir.AttrInt64("training_mode", 1))
    for statistic in node.inputs[3:]:
        assert statistic is not None
        assert statistic.name
        yield statistic.name


def _hold_padding(graph: onnx_ir.Graph, gather: onnx_ir.Node, padding: int) -> None:
    """Let no gradient go to the row that is padding."""
    rows, y = gather.inputs[1], gather.outputs[0]
    name, made = y.name, onnx_ir.node

    def then(op: str, *operands: onnx_ir.Value | None, domain: str = "") -> onnx_ir.Value:
        new = made(op, operands, domain=domain, name=f"{gather.name}.{op}")
        new.outputs[0].name = f"{name}.{op}"
        nodes.append(new)
        return new.outputs[0]

    def constant(kind: str, value: Any) -> onnx_ir.Value:
        tensor = onnx_ir.tensor(value, name=f"{name}.{kind}")
        new = made("Constant", (), {"value": tensor}, name=f"{gather.name}.{kind}")
        new.outputs[0].name = f"{name}.{kind}"
        nodes.append(new)
        return new.outputs[0]

    assert rows is not None
    nodes: list[onnx_ir.Node] = []
    number = then("CastLike", constant("padding", np.array(padding, np.int64)), rows)
    mask = then("Unsqueeze", then("Equal", rows, number), constant("axis", np.array([-1])))
    stopped = then("StopGradient", y, domain=_DOMAIN)
    chosen = then("Where", mask, stopped, y)
    users = [use for use in y.uses() if use.node not in nodes]
    graph.insert_after(gather, nodes)
    for user, place in users:
        user.replace_input_with(place, chosen)
    graph.outputs[:] = [chosen if value is y else value for value in graph.outputs]
    y.name, chosen.name = f"{name}.row", name
    chosen.shape, chosen.type = y.shape, y.type


def _make_constant(graph: onnx_ir.Graph, name: str) -> None:
    """Make a constant of an initializer that isn't to be trained."""
    value = graph.initializers[name]
    node = onnx_ir.node("Constant", (), {"value": value.const_value}, name=f"{name}.constant")
    graph.insert_before(graph[0], node)
    made = node.outputs[0]
    value.replace_all_uses_with(made, replace_graph_outputs=True)
    del graph.initializers[name]
    made.name, made.shape, made.type = name, value.shape, value.type
