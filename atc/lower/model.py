"""Lowers an ONNX model to the compiler's graph: walks the nodes, folds, dispatches to families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir

from atc.errors import AtcError, ModelError, UnsupportedError, one_line
from atc.ir import Array, DType, Graph, TensorType, prune
from atc.lower.builder import Builder
from atc.lower.fold import can_fold, evaluate
from atc.lower.function import function_body
from atc.lower.registry import LOWERINGS
from atc.lower.site import Site


def lower_model(
    model: onnx_ir.Model,
    file: str,
    outputs: Sequence[str] = (),
    never_fold: bool = False,
) -> Graph:
    """Lower a model whose inputs have static shapes.

    `outputs` overrides the model's outputs by value name. Graph inputs and outputs keep the model's
    names. Raises ModelError or UnsupportedError naming file and node.
    """
    graph = model.graph
    walker = _Walker(file, dict(graph.opset_imports) or {"": 1}, never_fold)
    builder = Builder()
    inputs = []
    initializers = set(graph.initializers)
    for value in graph.inputs:
        if value.name in initializers:
            continue
        inputs.append(_declare_input(value, builder, walker))
    walker.bind_initializers(graph, builder)
    walker.nodes(graph, builder)
    wanted = [*outputs] or [v.name or "" for v in graph.outputs]
    names = [walker.find(name) for name in wanted]
    if not names:
        raise ModelError("the model has no outputs", where=file)
    return _with_output_names(builder.graph(graph.name or "net", inputs, names), wanted)


def _declare_input(value: onnx_ir.Value, builder: Builder, walker: _Walker) -> str:
    name = value.name or ""
    if value.shape is None or value.dtype is None:
        raise UnsupportedError(
            f"input '{name}' has no shape or type", where=walker.file,
            hint=f'pin it: --input_shape="{name}:..."',
        )  # fmt: skip
    dims = ", ".join(str(d) for d in value.shape)
    for dim in value.shape:
        if not isinstance(dim, int):
            raise UnsupportedError(
                f"input '{name}' has the dynamic dimension '{dim}' in [{dims}]",
                where=walker.file, hint=f'pin it: --input_shape="{name}:..."',
            )  # fmt: skip
    try:
        dtype = DType.from_onnx(value.dtype.value)
    except KeyError:
        raise UnsupportedError(
            f"input '{name}' has the type {value.dtype.name}, which is not covered",
            where=walker.file,
        ) from None
    walker.bind(builder, value, builder.declare(name, TensorType(dtype, _ints(value.shape))))
    return name


def _ints(shape: onnx_ir.Shape) -> tuple[int, ...]:
    return tuple(d for d in shape if isinstance(d, int))


def _with_output_names(graph: Graph, wanted: Sequence[str]) -> Graph:
    """Rename the outputs to the model's names and drop what nothing needs."""
    from atc.lower.builder import rename

    names: dict[str, str] = {}
    for current, name in zip(graph.outputs, wanted, strict=True):
        names[current] = f"{name}#output" if name in graph.inputs else name
    for current, name in list(names.items()):
        if name in graph.types:  # by chance another value's name: they change places
            names.setdefault(name, current)
    return prune(rename(graph, names))


@dataclass
class _Walker:
    """State of one lowering: which builder value each ONNX value is."""

    file: str
    opsets: Mapping[str, int]
    never_fold: bool = False
    names: dict[str, str] = field(default_factory=dict)
    env: dict[int, str] = field(default_factory=dict)
    depth: int = 0

    def bind(self, builder: Builder, value: onnx_ir.Value, name: str) -> None:
        self.env[id(value)] = name
        if value.name:
            self.names[value.name] = name

    def find(self, name: str) -> str:
        if name not in self.names:
            raise ModelError(
                f"output '{name}' is not a value of the model", where=self.file, code="E10016"
            )
        return self.names[name]

    def bind_initializers(self, graph: onnx_ir.Graph, builder: Builder) -> None:
        for name, value in graph.initializers.items():
            if value.const_value is None:
                raise ModelError(f"initializer '{name}' has no data", where=self.file)
            self.bind(builder, value, builder.constant(self._array(value.const_value, name), name))

    def _array(self, tensor: onnx_ir.TensorProtocol, name: str) -> Array:
        try:
            array = tensor.numpy()
            DType.from_numpy(array.dtype)
        except KeyError:
            raise UnsupportedError(
                f"tensor '{name}' has the type {tensor.dtype.name}, which is not covered",
                where=self.file,
            ) from None
        except (ValueError, OSError, TypeError) as error:
            raise ModelError(f"tensor '{name}' is damaged: {error}", where=self.file) from error
        return np.asarray(array)

    def nodes(self, graph: onnx_ir.Graph | onnx_ir.Function, builder: Builder) -> None:
        for node in graph:
            inputs = tuple(self._operand(node, v) for v in node.inputs)
            opset = node.version or self.opsets.get(node.domain, 1)
            outputs = self._lower(node, inputs, opset, builder)
            for value, name in zip(node.outputs, outputs, strict=False):
                if value.name:
                    self.bind(builder, value, name)

    def _operand(self, node: onnx_ir.Node, value: onnx_ir.Value | None) -> str:
        if value is None or not value.name:
            return ""
        if id(value) not in self.env:
            raise ModelError(
                f"reads '{value.name}', which nothing computes before it",
                where=f"{self.file}, node '{node.name}' ({node.op_type})",
            )
        return self.env[id(value)]

    def subgraph(self, graph: onnx_ir.Graph, builder: Builder) -> tuple[str, ...]:
        self.bind_initializers(graph, builder)
        self.nodes(graph, builder)
        return tuple(self._operand_of_output(graph, v) for v in graph.outputs)

    def _operand_of_output(self, graph: onnx_ir.Graph, value: onnx_ir.Value) -> str:
        if id(value) not in self.env:
            raise ModelError(f"subgraph output '{value.name}' is not computed", where=self.file)
        return self.env[id(value)]

    def _lower(
        self, node: onnx_ir.Node, inputs: tuple[str, ...], opset: int, builder: Builder
    ) -> tuple[str, ...]:
        domain = "" if node.domain == "ai.onnx" else node.domain
        site = Site(node, inputs, opset, builder, self.file, self.subgraph, self.bind)
        arrays = [builder.value(i) if i else None for i in inputs]
        constant = all(a is not None or not i for a, i in zip(arrays, inputs, strict=True))
        if constant and not self.never_fold and can_fold(node, arrays):
            folded = evaluate(node, arrays, opset)
            if folded is not None:
                return tuple(builder.constant(a, site.name) for a in folded)
        with builder.origin(site.name):
            return self._dispatch(site, domain)

    def _dispatch(self, site: Site, domain: str) -> tuple[str, ...]:
        lowering = LOWERINGS.get((domain, site.node.op_type))
        try:
            if lowering is not None:
                result = lowering(site)
                return (result,) if isinstance(result, str) else result
            return self._expand(site, domain)
        except AtcError as error:
            if not error.where:
                error.where = site.label
            raise
        except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError) as error:
            shapes = ", ".join(str(site.b.type(i)) if i else "-" for i in site.inputs)
            raise ModelError(
                f"inputs ({shapes}) don't fit the operator: {one_line(str(error), 200)}",
                where=site.label,
            ) from error

    def _expand(self, site: Site, domain: str) -> tuple[str, ...]:
        """Lower an operator through the function body that the standard gives it."""
        operands = tuple(site.b.type(i) if i else None for i in site.inputs)
        body = function_body(site.node, operands, domain, site.opset)
        if body is None or self.depth > 16:
            where = f"of domain '{domain}' " if domain else ""
            raise UnsupportedError(
                f"operator {site.node.op_type} {where}(opset {site.opset}) is not covered",
                where=site.label,
            )
        opsets = {**self.opsets, **body.opset_imports}  # a body may leave out the standard's own
        inner = _Walker(self.file, opsets, self.never_fold, depth=self.depth + 1)
        for value, name in zip(body.inputs, (*site.inputs, *[""] * len(body.inputs)), strict=False):
            if name:
                inner.bind(site.b, value, name)
            else:
                value.name = ""
        inner.nodes(body, site.b)
        return tuple(inner.env.get(id(v), "") for v in body.outputs)
