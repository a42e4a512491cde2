"""Last touches to a translated graph: biases join their product, dead nodes go."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm")


def tidy(model: ir.Model, optional_inputs: Collection[str]) -> None:
    """Absorb biases, remove what no output needs, and the optional inputs that nothing reads."""
    for node in list(model.graph):
        if node.op_type in _PRODUCTS and len(node.inputs) == 2:
            _absorb_bias(model.graph, node)
    RemoveUnusedNodesPass()(model)
    for value in list(model.graph.inputs):
        if value.name in optional_inputs and not value.uses() and not value.is_graph_output():
            model.graph.inputs.remove(value)


def _absorb_bias(graph: ir.Graph, node: ir.Node) -> None:
    """Make a constant that is added per channel an input of the product.

    MegEngine writes every bias as an addition, of shape (1, C, 1, 1) or, after Gemm, (C).
    """
    product = node.outputs[0]
    users = [usage.node for usage in product.uses()]
    if len(users) != 1 or users[0].op_type != "Add" or product.is_graph_output():
        return
    addition = users[0]
    operands = [v for v in addition.inputs if v is not product]
    bias = operands[0] if len(operands) == 1 else None
    if bias is None or bias.const_value is None or not _per_channel(node, product, bias):
        return
    total = addition.outputs[0]
    ir.convenience.replace_all_uses_with(total, product, replace_graph_outputs=True)
    graph.remove(addition, safe=True)
    product.name = total.name
    node.resize_inputs(3)
    node.replace_input_with(2, _flat(graph, bias))


def _flat(graph: ir.Graph, bias: ir.Value) -> ir.Value:
    """Return a bias as a vector; under its own name where nothing else uses it."""
    if bias.shape is not None and len(bias.shape) == 1:
        return bias
    assert bias.const_value is not None
    assert bias.name is not None
    array = bias.const_value.numpy().reshape(-1)
    name = bias.name
    if bias.uses():
        name = f"{name}/flat"
    else:
        graph.initializers.pop(name)
    if name in graph.initializers:
        return graph.initializers[name]
    shape = ir.Shape([array.size])
    tensor = ir.Tensor(array, name=name)
    flat = ir.Value(name=name, shape=shape, type=bias.type, const_value=tensor)
    graph.register_initializer(flat)
    return flat


def _per_channel(node: ir.Node, product: ir.Value, bias: ir.Value) -> bool:
    """Say whether a constant has one number per channel of a product, along its axis."""
    if product.shape is None or bias.shape is None or product.dtype != bias.dtype:
        return False
    shape, channels = tuple(bias.shape), product.shape[1]
    if node.op_type == "Gemm":
        return shape in ((channels,), (1, channels))
    spatial = len(product.shape) - 2
    return shape in ((1, channels, *[1] * spatial), (channels, *[1] * spatial))
