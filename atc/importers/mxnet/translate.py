"""Walks a symbol: variables become inputs or constants, nodes are translated in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from atc.errors import ModelError, OptionError, UnsupportedError
from atc.importers.mxnet import attributes
from atc.importers.mxnet.builder import Builder, safe_name
from atc.importers.mxnet.node_context import RULES, NodeContext, Rule
from atc.importers.mxnet.params import TYPE_FLAGS, Array
from atc.importers.mxnet.symbol import Entry, Symbol, SymbolNode
from atc.importers.mxnet.tensor import Tensor

PARAMETER_MARKS = ("__init__", "__lr_mult__", "__wd_mult__")
"""Annotations that Gluon writes on parameters, never on inputs."""

CASTS = frozenset({"Cast", "cast", "amp_cast", "Embedding", "take", "_contrib_quantize_v2"})
"""Operators whose first input's type says nothing about their output's."""


@dataclass(frozen=True)
class Sources:
    """The tensors that the variables of a symbol stand for."""

    params: Mapping[str, Array]
    shapes: Mapping[str, tuple[int, ...]]
    weights_file: str


def translate(symbol: Symbol, sources: Sources, file: str) -> ir.Model:
    """Translate a whole symbol; `file` names it in errors."""
    needed = needed_nodes(symbol, file)
    _check_shapes(symbol, sources, file)
    builder = Builder(file)
    values: dict[int, tuple[Tensor, ...]] = {}
    inputs: list[Tensor] = []
    named: dict[str, Tensor] = {}  # two variables of one name are one
    for index in symbol.arguments:
        if index not in needed:
            continue
        name = symbol.nodes[index].name
        array = sources.params.get(name) if name not in sources.shapes else None
        if name not in named and array is not None:
            named[name] = builder.parameter(array, safe_name(name))
        elif name not in named:
            named[name] = _input(builder, symbol, index, sources)
            inputs.append(named[name])
        values[index] = (named[name],)
    with np.errstate(all="ignore"):  # a constant may overflow as it would in C
        _translate_nodes(builder, symbol, needed, values)
    outputs = [_output(builder, symbol, e, values) for e in symbol.heads]
    model = builder.model(safe_name(file.rpartition("/")[2]), inputs, outputs)
    _name_outputs(model.graph, symbol, builder)
    return model


def needed_nodes(symbol: Symbol, file: str, known: Collection[int] = ()) -> set[int]:
    """Return the nodes that the heads need when labels and `known` nodes' inputs are left out."""
    needed = {e.node for e in symbol.heads}
    for index in range(len(symbol.nodes) - 1, -1, -1):
        node = symbol.nodes[index]
        if index in needed and index not in known and not node.is_variable:
            rule = _rule(node, file)
            needed.update(e.node for e in node.inputs[: rule.reads])
    return needed


def _rule(node: SymbolNode, file: str) -> Rule:
    rule = RULES.get(node.op)
    if rule is None:
        raise UnsupportedError(
            f"the MXNet operator {node.op[:80]} is not known", where=f"{file}, node '{node.name}'"
        )
    return rule


def _translate_nodes(
    builder: Builder,
    symbol: Symbol,
    needed: set[int],
    values: dict[int, tuple[Tensor, ...]],
) -> None:
    """Translate the needed nodes that have no value yet, in order, into `values`."""

    def inline(
        inner: Symbol, operands: Sequence[Tensor], known: Mapping[int, Tensor]
    ) -> tuple[Tensor, ...]:
        return _inline(builder, inner, operands, known)

    for index, node in enumerate(symbol.nodes):
        if index not in needed or index in values:
            continue
        rule = _rule(node, builder.file)
        with builder.origin(safe_name(node.name), node.op):
            inputs = tuple(_pick(builder, values, e) for e in node.inputs[: rule.reads])
            start = len(builder.nodes)
            result = rule.translate(NodeContext(node, inputs, builder, inline))
            values[index] = (result,) if isinstance(result, Tensor) else tuple(result)
        _name_nodes(builder, builder.nodes[start:], safe_name(node.name), values[index])


def _pick(builder: Builder, values: Mapping[int, tuple[Tensor, ...]], entry: Entry) -> Tensor:
    outputs = values.get(entry.node, ())
    if entry.output >= len(outputs):
        raise builder.error(f"it reads output {entry.output} of a node that has {len(outputs)}")
    return outputs[entry.output]


def _output(
    builder: Builder, symbol: Symbol, entry: Entry, values: Mapping[int, tuple[Tensor, ...]]
) -> Tensor:
    with builder.origin(safe_name(symbol.nodes[entry.node].name), "output"):
        return _pick(builder, values, entry)


def _inline(
    builder: Builder, symbol: Symbol, operands: Sequence[Tensor], known: Mapping[int, Tensor]
) -> tuple[Tensor, ...]:
    """Translate a subgraph; its variables, in order, are `operands`."""
    if len(symbol.arguments) != len(operands):
        raise builder.error(
            f"its subgraph has {len(symbol.arguments)} variables for {len(operands)} inputs"
        )
    values: dict[int, tuple[Tensor, ...]] = {}
    values |= {i: (t,) for i, t in zip(symbol.arguments, operands, strict=True)}
    values |= {i: (t,) for i, t in known.items()}
    _translate_nodes(builder, symbol, needed_nodes(symbol, builder.file, known), values)
    return tuple(_output(builder, symbol, e, values) for e in symbol.heads)


# ---- variables ---------------------------------------------------------------------------------


def _check_shapes(symbol: Symbol, sources: Sources, file: str) -> None:
    names = {symbol.nodes[i].name for i in symbol.arguments}
    for name, shape in sources.shapes.items():
        if name not in names:
            known = ", ".join(sorted(n for n in names if n not in sources.params)[:8])
            raise OptionError(f"the model has no input '{name}'", where=file,
                              hint=f"its inputs are {known}")  # fmt: skip
        if any(d < 1 for d in shape):
            raise OptionError(f"input '{name}' has the shape {list(shape)}", where=file,
                              hint="all dimensions must be positive")  # fmt: skip


def _input(builder: Builder, symbol: Symbol, index: int, sources: Sources) -> Tensor:
    node = symbol.nodes[index]
    shape = sources.shapes.get(node.name)
    if shape is None:
        if _is_parameter(symbol, index):
            raise ModelError(
                f"the weight '{node.name}' is missing", where=sources.weights_file, code="E10008",
                hint="--weight=FILE names the .params file that belongs to the symbol",
            )  # fmt: skip
        shape = _annotated_shape(node)
    if shape is None:
        raise ModelError(
            f"the shape of input '{node.name}' is not known", where=builder.file,
            hint=f"--input_shape='{node.name}:1,3,224,224' gives it",
        )  # fmt: skip
    return builder.input(safe_name(node.name), _input_type(symbol, index, sources), shape)


def _is_parameter(symbol: Symbol, index: int) -> bool:
    """Return whether a variable looks like a parameter.

    Gluon marks it, or it is read as a weight.
    """
    if any(mark in symbol.nodes[index].attrs for mark in PARAMETER_MARKS):
        return True
    for node in symbol.nodes[index:]:
        rule = RULES.get(node.op)
        for position in rule.weights if rule else ():
            if position < len(node.inputs) and node.inputs[position].node == index:
                return True
    return False


def _annotated_shape(node: SymbolNode) -> tuple[int, ...] | None:
    """Return the shape that the symbol itself gives; 0 in it stands for unknown."""
    try:
        shape = attributes.parse_ints(node.attrs.get("__shape__", "()"))
    except (ValueError, OverflowError):
        return None
    known = tuple(d for d in shape if d is not None and d > 0)
    return known if known and len(known) == len(shape) else None


def _input_type(symbol: Symbol, index: int, sources: Sources) -> np.dtype[Any]:
    """Return an input's type: the annotated one, else that of the first weight it meets.

    MXNet infers types both ways, so that a network with float16 weights takes float16 data.
    """
    try:
        annotated = TYPE_FLAGS.get(int(symbol.nodes[index].attrs.get("__dtype__", "-1")))
    except ValueError:
        annotated = None
    if annotated is not None:
        return annotated
    reached = {index}
    for position in range(index + 1, len(symbol.nodes)):
        node = symbol.nodes[position]
        if not node.inputs or node.inputs[0].node not in reached or node.op in CASTS:
            continue
        found = _weight_type(symbol, node, sources)
        if found is not None:
            return found
        reached.add(position)
    return np.dtype(np.float32)


def _weight_type(symbol: Symbol, node: SymbolNode, sources: Sources) -> np.dtype[Any] | None:
    rule = RULES.get(node.op)
    for position in rule.weights if rule else ():
        if position < len(node.inputs):
            array = sources.params.get(symbol.nodes[node.inputs[position].node].name)
            if array is not None and array.dtype.kind not in "iub":
                return array.dtype
    return None


# ---- names -------------------------------------------------------------------------------------


def _name_nodes(
    builder: Builder, nodes: Sequence[ir.Node], name: str, results: Sequence[Tensor]
) -> None:
    """Give the ONNX node that makes the first result the MXNet node's own name."""
    for node in nodes:
        if results and any(v is results[0].value for v in node.outputs):
            node.name = builder.unique(name)
            for value in node.outputs:
                value.name = builder.unique(f"{name}_output")


def _name_outputs(graph: ir.Graph, symbol: Symbol, builder: Builder) -> None:
    """Name the graph's outputs as MXNet lists them: <node>_output, with a number if several."""
    heads = Counter(e.node for e in symbol.heads)
    for entry, value in zip(symbol.heads, graph.outputs, strict=True):
        name = f"{safe_name(symbol.nodes[entry.node].name)}_output"
        if heads[entry.node] > 1:
            name += str(entry.output)
        if value.name != name:
            value.name = builder.unique(name)
