"""Lowers an ONNX model to the compiler's graph: walks the nodes, folds, dispatches to families."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import onnx_ir

from atc.dims import NARROWER
from atc.errors import AtcError, InternalError, ModelError, UnsupportedError, one_line
from atc.ir.graph import Graph, TensorType
from atc.lower.builder import MAX_ELEMENTS, Builder
from atc.lower.composites import input_composites, output_tensors, refuse_composite
from atc.lower.context import LoweringContext, node_label
from atc.lower.control import BranchesDiffer
from atc.lower.declared import (
    DeclaredTypeError,
    check_declared,
    inner_shape_warning,
    shape_warning,
)
from atc.lower.extents import evaluate_extents
from atc.lower.fold import can_fold, evaluate
from atc.lower.function import function_body, is_covered, not_covered
from atc.lower.gradient.tape import expanded, written_out
from atc.lower.growth import Caches, Growth
from atc.lower.initializers import array_of
from atc.lower.inputs import Axes, add_symbols, input_type
from atc.lower.precision import Precision
from atc.lower.quantization_parameters import remember_quantization, remember_transposed
from atc.lower.ranges import label_extents
from atc.lower.registry import LOWERINGS
from atc.lower.rename import with_model_names
from atc.lower.schema import type_error
from atc.lower.trace import Report, Trace, UnknownOperand, result_types
from atc.lower.value_bounds import RunTimeOperand, as_declared, point_at_sources


def lower_model(
    model: onnx_ir.Model,
    file: str,
    outputs: Sequence[str] = (),
    never_fold: bool = False,
    report: Report | None = None,
    precision: Precision | None = None,
    growths: Mapping[str, Growth] | None = None,
) -> Graph:
    """Lower a model whose inputs have static shapes, or ranges of them.

    `outputs` overrides the model's outputs by value name, `precision` the types that tensors are
    kept in; those inputs of which there are `growths` lie in buffers, which the graph's inputs and
    outputs are then. Graph inputs and outputs keep the model's names. Raises ModelError or
    UnsupportedError naming file and node; with `report` a node's error is only reported, and its
    results become inputs of the graph.
    """
    graph = model.graph
    trace = None if report is None else Trace(report)
    walker = _Walker(file, dict(graph.opset_imports), never_fold, trace, precision)
    builder = Builder()
    builder.caches = Caches(growths or {})
    inputs = []
    given = [v for v in graph.inputs if v.name not in graph.initializers]
    for value in given:
        add_symbols(value, builder, walker.axes)
    for value in given:
        inputs.append(_declare_input(value, builder, walker))
    walker.bind_initializers(graph, builder)
    wanted = [*outputs] or [v.name or "" for v in graph.outputs]
    walker.nodes(graph, builder, [v for n in graph for v in n.outputs if v.name in wanted])
    warning = inner_shape_warning(graph, partial(walker.type_of, builder), file)
    builder.warnings += [warning] if warning else []
    if trace is not None:
        inputs += trace.missing
        wanted = [name for name in wanted if not walker.is_unknown(name)]
    names = [builder.caches.output(n, walker.output(graph, builder, n)) for n in wanted]
    if not names and not (trace and trace.unknown):
        raise ModelError("the model has no outputs", where=file)
    outputs_ = output_tensors(builder, wanted, names)
    lowered = builder.graph(graph.name or "net", inputs, outputs_.values)
    composites = (*input_composites(model, inputs), *outputs_.composites)
    named = with_model_names(lowered, outputs_.names, walker.model_names(graph))
    return replace(named, composites=composites)


def _declare_input(value: onnx_ir.Value, builder: Builder, walker: _Walker) -> str:
    name = value.name or ""
    refuse_composite(value, walker.file)
    declared = input_type(value, walker.axes, walker.file)
    precision = walker.precision or Precision()
    try:
        walker.bind(builder, value, precision.declare(builder, value, declared))
    except UnsupportedError as error:
        error.where = error.where or f"{walker.file}, input '{name}'"
        raise
    return name


MOST_TAILS = 4
"""How deep branches that take what follows them may lie in each other: there are 2^4 copies."""

Tail = Callable[[tuple[str, ...], Builder], tuple[str, ...]]
"""Lowers what follows a branch, in its builder; takes and returns the names of results."""

LowerSubgraph = Callable[[onnx_ir.Graph, Builder], tuple[str, ...]]


@dataclass
class _Walker:
    """State of one lowering: which builder value each ONNX value is."""

    file: str
    opsets: Mapping[str, int]
    never_fold: bool = False
    trace: Trace | None = None
    precision: Precision | None = None
    names: dict[str, str] = field(default_factory=dict)
    env: dict[int, str] = field(default_factory=dict)
    depth: int = 0
    axes: Axes = field(default_factory=dict)
    """The run-time extents of the inputs' axes."""
    written_out: frozenset[onnx_ir.Node] = frozenset()
    """Nodes that gradients walk through step by step."""
    tails: int = 0
    """How many branches around take what follows them."""

    def bind(self, builder: Builder, value: onnx_ir.Value, name: str, where: str = "") -> None:
        """Say which builder value a value is; `where` it is computed, if a node does."""
        if self.precision is None or not self.precision.widens(value):
            check_declared(value, _tensor_type(builder, name), where or self.file)
        self._name(builder, value, name)

    def _name(self, builder: Builder, value: onnx_ir.Value, name: str) -> None:
        name = as_declared(builder, value, name)
        if self.precision is not None:
            name = self.precision.given(builder, name)
        self.env[id(value)] = name
        if value.name:
            self.names[value.name] = name

    def type_of(self, builder: Builder, value: onnx_ir.Value) -> TensorType | None:
        """Return the type of the tensor that a value is; None where it is none, or isn't known."""
        return _tensor_type(builder, self.env.get(id(value), ""))

    def model_names(self, graph: onnx_ir.Graph) -> dict[str, str]:
        """Return the model's first name of every value that a node of the graph computes."""
        names: dict[str, str] = {}
        for value in (v for node in graph for v in node.outputs):
            if value.name and id(value) in self.env:
                names.setdefault(self.env[id(value)], value.name)
        return names

    def is_unknown(self, name: str) -> bool:
        """Return whether an output's type is unknown because it depends on a refused node."""
        if self.trace is None or name in self.names:
            return False
        return name in self.trace.unknown_names

    def find(self, name: str) -> str:
        if name not in self.names:
            raise ModelError(
                f"output '{name}' is not a value of the model", where=self.file, code="E10016"
            )
        return self.names[name]

    def output(self, graph: onnx_ir.Graph, builder: Builder, name: str) -> str:
        found = self.find(name)
        declared = next((v for v in graph.outputs if v.name == name), None)
        if declared is None:
            return found
        if self.precision is not None:
            found = self.precision.declared(builder, declared, found)
        type_ = _tensor_type(builder, found)
        warning = "" if type_ is None else shape_warning(declared, type_, self.file)
        builder.warnings += [warning] if warning else []
        return found

    def bind_initializers(self, graph: onnx_ir.Graph, builder: Builder) -> None:
        for name, value in graph.initializers.items():
            if value.const_value is None:
                raise ModelError(f"initializer '{name}' has no data", where=self.file)
            array = array_of(value.const_value, name, self.file)
            self.bind(builder, value, builder.constant(array, name))

    def nodes(
        self, graph: onnx_ir.Graph | onnx_ir.Function, builder: Builder,
        results: Sequence[onnx_ir.Value],
    ) -> None:  # fmt: skip
        """Lower the nodes of a graph, of whose values only `results` are read elsewhere."""
        self.written_out |= written_out(graph)
        self._run(tuple(graph), builder, results)

    def _run(
        self, nodes: Sequence[onnx_ir.Node], builder: Builder, results: Sequence[onnx_ir.Value]
    ) -> None:
        for k, node in enumerate(nodes):
            try:
                outputs = self._node(node, builder)
                self._bind_all(node, outputs, builder)
            except BranchesDiffer as error:
                if self.tails == MOST_TAILS:
                    raise
                self._run_in_branches(nodes[k:], builder, results, error)
                return
            except AtcError as error:
                label_extents(error, builder.symbols)
                if isinstance(error, RunTimeOperand):
                    point_at_sources(error, builder, self.names)
                if self.trace is None:
                    raise
                self._visit_subgraphs(node, builder)
                names = self._placeholders(node, builder)
                for value, name in zip(node.outputs, names, strict=True):
                    if name:
                        self._name(builder, value, name)
                self.trace.report(node, error)
            else:
                if self.trace is not None:
                    self.trace.report(node, None)

    def _run_in_branches(
        self, nodes: Sequence[onnx_ir.Node], builder: Builder, results: Sequence[onnx_ir.Value],
        error: BranchesDiffer,
    ) -> None:  # fmt: skip
        """Lower an If, the first of the nodes, with all others in either branch."""
        node, *rest = nodes
        made_here = {id(v) for n in nodes for v in n.outputs}
        results = [v for v in results if id(v) in made_here]

        def tail(made: tuple[str, ...], inner: Builder) -> tuple[str, ...]:
            if self.precision is not None:
                made = self.precision.results(node, (), made, inner)
            self._bind_all(node, made, inner)
            self._run(rest, inner, results)
            return tuple(self.env[id(v)] for v in results)

        self.tails += 1
        try:
            outputs = self._node(node, builder, tail)
        except BranchesDiffer:
            raise UnsupportedError(error.message, where=error.where, hint=error.hint) from error
        finally:
            self.tails -= 1
        for value, name in zip(results, outputs, strict=True):
            self._name(builder, value, name)

    def _bind_all(self, node: onnx_ir.Node, outputs: Sequence[str], builder: Builder) -> None:
        """Say which values a node's results are."""
        for value, name in zip(node.outputs, outputs, strict=False):
            if value.name and name:
                self.bind(builder, value, name, node_label(self.file, node))

    def _node(
        self, node: onnx_ir.Node, builder: Builder, tail: Tail | None = None
    ) -> tuple[str, ...]:
        """Return a node's results, or what the `tail` makes of those of its branches."""
        inputs = tuple(self._operand(node, v) for v in node.inputs)
        if self.precision is None or tail is not None:
            return self._lower(node, inputs, self._opset(node), builder, tail)
        kept = self.precision.operands(node, inputs, builder)
        outputs = self._lower(node, kept, self._opset(node), builder)
        return self.precision.results(node, kept, outputs, builder)

    def _opset(self, node: onnx_ir.Node) -> int:
        opset = node.version or self.opsets.get(node.domain)
        if opset is None:
            where = node_label(self.file, node)
            raise InternalError(f"no opset of the domain '{node.domain}'", where=where)
        return opset

    def _visit_subgraphs(self, node: onnx_ir.Node, builder: Builder) -> None:
        """Look at the nodes in those graphs of a refused node that its lowering didn't come to."""
        assert self.trace is not None
        for attribute in node.attributes.values():
            graph = attribute.value
            if isinstance(graph, onnx_ir.Graph) and id(graph) not in self.trace.entered:
                self.trace.unknown.update(id(v) for v in graph.inputs)
                with suppress(AtcError):
                    self.subgraph(graph, Builder(builder))

    def _placeholders(self, node: onnx_ir.Node, builder: Builder) -> tuple[str, ...]:
        """Return placeholders of a refused node's results, '' where the type is unknown."""
        assert self.trace is not None
        names = [self.env.get(id(v), "") if v is not None else "" for v in node.inputs]
        operands = [_tensor_type(builder, name) for name in names]
        root = builder
        while root.parent is not None:
            root = root.parent
        types = result_types(node, operands, self._opset(node))
        for value, type_ in zip(node.outputs, types, strict=True):
            if type_ is None or type_.size > MAX_ELEMENTS:
                self.trace.unknown.add(id(value))
                self.trace.unknown_names.add(value.name or "")
        return tuple(
            "" if id(v) in self.trace.unknown or t is None else self.trace.placeholder(root, t)
            for v, t in zip(node.outputs, types, strict=True)
        )

    def _operand(self, node: onnx_ir.Node, value: onnx_ir.Value | None) -> str:
        if value is None or not value.name:
            return ""
        if id(value) in self.env:
            return self.env[id(value)]
        where = node_label(self.file, node)
        if self.trace is not None and id(value) in self.trace.unknown:
            if not is_covered(node, self._opset(node)):
                raise not_covered(node, self._opset(node), where)
            raise UnknownOperand(
                f"reads '{value.name}', which a node that can't be compiled computes", where=where
            )
        raise ModelError(f"reads '{value.name}', which nothing computes before it", where=where)

    def subgraph(self, graph: onnx_ir.Graph, builder: Builder) -> tuple[str, ...]:
        if self.trace is not None:
            self.trace.entered.add(id(graph))
        self.bind_initializers(graph, builder)
        self.nodes(graph, builder, graph.outputs)
        return tuple(self._operand_of_output(graph, v) for v in graph.outputs)

    def _try_lower(
        self, lower: LowerSubgraph, builder: Builder, graph: onnx_ir.Graph
    ) -> tuple[Builder, tuple[str, ...]] | ModelError:
        """Lower a branch of a graph; return the error of one that breaks the operators' rules."""
        trace, self.trace = self.trace, None
        inner = Builder(builder)
        try:
            made = lower(graph, inner)
        except DeclaredTypeError:
            raise  # whatever the shapes are
        except ModelError as error:
            return error
        except AtcError:
            if trace is None:
                raise
        finally:
            self.trace = trace
        if trace is None:
            return inner, made
        inner = Builder(builder)  # a second time, for whom it is reported to
        return inner, lower(graph, inner)

    def _operand_of_output(self, graph: onnx_ir.Graph, value: onnx_ir.Value) -> str:
        if self.trace is not None and id(value) in self.trace.unknown:
            raise UnknownOperand(f"subgraph output '{value.name}' is not known", where=self.file)
        if id(value) not in self.env:
            raise ModelError(f"subgraph output '{value.name}' is not computed", where=self.file)
        return self.env[id(value)]

    def _lower(
        self, node: onnx_ir.Node, inputs: tuple[str, ...], opset: int, builder: Builder,
        tail: Tail | None = None,
    ) -> tuple[str, ...]:  # fmt: skip
        def lower(graph: onnx_ir.Graph, inner: Builder) -> tuple[str, ...]:
            made = self.subgraph(graph, inner)
            return made if tail is None else tail(made, inner)

        ctx = LoweringContext(
            node, inputs, opset, self.opsets, builder, self.file, lower,
            partial(self._try_lower, lower, builder), self.bind, lambda v: self.env.get(id(v), ""),
        )
        self._check_types(ctx)
        arrays = [builder.value(i) if i else None for i in inputs]
        constant = all(a is not None or not i for a, i in zip(arrays, inputs, strict=True))
        if constant and node.outputs and not self.never_fold and can_fold(node, arrays):
            folded = evaluate(node, arrays, opset)
            if folded is not None:
                names = tuple(builder.constant(a, ctx.name) for a in folded)
                if node.op_type == "DequantizeLinear":
                    remember_quantization(ctx, names[0])
                elif node.op_type == "Transpose":
                    remember_transposed(ctx, names[0])
                return names
        if not node.domain:
            extents = evaluate_extents(node, inputs, opset, builder)
            if extents is not None:
                return extents
        if self.depth:  # part of a function body: the node's name is the user's node's
            return self._dispatch(ctx)
        with builder.origin(ctx.name):
            return self._dispatch(ctx)

    def _dispatch(self, ctx: LoweringContext) -> tuple[str, ...]:
        lowering = LOWERINGS.get((ctx.node.domain, ctx.node.op_type))
        try:
            if ctx.node in self.written_out:
                return expanded(ctx, self.names)
            if lowering is not None:
                result = lowering(ctx)
                return (result,) if isinstance(result, str) else result
            return self._expand(ctx)
        except InternalError as error:  # an op's own rules: no lowering checks all of them
            shapes = ", ".join(_shown(ctx.b, i) for i in ctx.inputs)
            raise ModelError(
                f"inputs ({shapes}) don't fit the operator: {error.message}", where=ctx.label
            ) from error
        except AtcError as error:
            if not error.where:
                error.where = ctx.label
            raise
        except MemoryError as error:
            raise UnsupportedError("needs more memory than there is", where=ctx.label) from error
        except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError) as error:
            if isinstance(error, TypeError) and "Dim" in str(error):
                raise UnsupportedError(
                    f"{ctx.node.op_type} is not covered where shapes are ranges or depend on "
                    "values", where=ctx.label, hint=NARROWER,
                ) from error  # fmt: skip
            shapes = ", ".join(_shown(ctx.b, i) for i in ctx.inputs)
            raise ModelError(
                f"inputs ({shapes}) don't fit the operator: {one_line(str(error), 200)}",
                where=ctx.label,
            ) from error

    def _check_types(self, ctx: LoweringContext) -> None:
        types = [_tensor_type(ctx.b, name) for name in ctx.inputs]
        dtypes = [None if t is None else t.dtype for t in types]
        wrong = type_error(ctx.node.op_type, ctx.node.domain, ctx.opset, dtypes)
        ctx.require(not wrong, wrong)

    def _expand(self, ctx: LoweringContext) -> tuple[str, ...]:
        """Lower an operator through the function body that the standard gives it."""
        operands = tuple(ctx.b.type(i) if i else None for i in ctx.inputs)
        body = function_body(ctx.node, operands, ctx.opset)
        if body is None or self.depth > 16:
            raise not_covered(ctx.node, ctx.opset, ctx.label)
        opsets = {**self.opsets, **body.opset_imports}  # a body may leave out the standard's own
        inner = _Walker(self.file, opsets, self.never_fold, depth=self.depth + 1)
        for value, name in zip(body.inputs, (*ctx.inputs, *[""] * len(body.inputs)), strict=False):
            if name:
                inner.bind(ctx.b, value, name)
            else:
                value.name = ""
        inner.nodes(body, ctx.b, body.outputs)
        return tuple(inner.env.get(id(v), "") for v in body.outputs)


def _tensor_type(builder: Builder, name: str) -> TensorType | None:
    try:
        return builder.type(name) if name else None
    except AtcError:
        return None


def _shown(b: Builder, name: str) -> str:
    if not name:
        return "-"
    return "sequence" if b.parts(name) is not None else str(b.type(name))
