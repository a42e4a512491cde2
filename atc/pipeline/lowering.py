"""From the model file to optimised graphs: the stages that know no kernels but their costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import onnx_ir

from atc.adapt import adapt
from atc.adapt.outputs import find_outputs
from atc.build.output_folder import write_dump
from atc.convert import load_model
from atc.diagnostics import Diagnostics
from atc.errors import one_line
from atc.files.mapped import model_files, reading
from atc.importers.onnx import tensors_of
from atc.ir.graph import Array, Graph
from atc.ir.text import dump
from atc.lower.external import bind_operators
from atc.lower.ranges import check_range, labelled
from atc.lower.trace import NodeDiagnostic
from atc.lower.value_bounds import declare_ranges
from atc.passes import run_passes
from atc.passes.layout import LayoutReport
from atc.passes.layout.held_memory import Rows
from atc.passes.layout.store_bf16 import Storing
from atc.pipeline.computing_path import lowered
from atc.pipeline.graph_file import stored_graph
from atc.pipeline.request import Request
from atc.pipeline.states import with_states
from atc.program.cascade import find_cascades
from atc.runtime.custom_ops import ExternalLibrary
from atc.select.compress_weights import compress_weights
from atc.select.layout_costs import LayoutCosts
from atc.select.select import select


def read_model(request: Request, diagnostics: Diagnostics) -> onnx_ir.Model:
    """Read the model file and make its inputs and outputs what the options say."""
    options = request.options
    diagnostics.stage("reading the model")
    model = load_model(
        options.model, options.framework, options.input_shape, options.weight, mapped=True
    )
    if options.c_opr_lib is not None:
        library = ExternalLibrary(options.c_opr_lib, options.c_opr_init_interface)
        bind_operators(model, library.operators)
    for text in model.metadata_props.get("atc.warnings", "").splitlines():
        diagnostics.warn(one_line(text))
    for text in adapt(model, request.adaptation, find_outputs(model, options.out_nodes)):
        diagnostics.warn(text)
    declare_ranges(model, options.value_range)
    return model


@dataclass(frozen=True)
class Optimised:
    """A graph after its passes, and what was weighed when its layouts were chosen."""

    graph: Graph
    layouts: tuple[LayoutReport, ...] = ()


def optimise_all(
    models: Sequence[onnx_ir.Model],
    request: Request,
    layout_costs: LayoutCosts,
    diagnostics: Diagnostics,
) -> tuple[Optimised, ...]:
    """Lower the models of one library and run the passes."""
    return tuple(optimise(model, request, diagnostics, layout_costs) for model in models)


def optimise(
    model: onnx_ir.Model, request: Request, diagnostics: Diagnostics,
    layout_costs: LayoutCosts | None = None, report: Callable[[NodeDiagnostic], None] | None = None,
) -> Optimised:  # fmt: skip
    """Lower what `read_model` gave and run the passes, with dumps.

    With `report`, nodes that can't be lowered are only reported. `layout_costs` chooses layouts, by
    estimates if it isn't given.
    """
    diagnostics.stage("lowering")
    stored = stored_graph(model, request.target.name)
    if stored is not None:
        return Optimised(stored)
    graph = _lowered(model, request, diagnostics, report)
    if report is None:
        graph = with_states(graph, model, partial(lowered, model, request.options, request.policy))
    dumped: list[str] = []
    files = model_files(t.numpy() for t in tensors_of(model) if isinstance(t, onnx_ir.Tensor))

    def observe(name: str, current: Graph) -> None:
        for file in files:
            file.check()
        diagnostics.graph(name, current)
        if request.options.dump is not None:
            dumped.append(f"{len(dumped):02}-{name}.txt")
            write_dump(request.options.dump / dumped[-1], dump(current, reading))

    layout_costs = layout_costs or LayoutCosts(request.target, request.limits(model))
    reports: list[LayoutReport] = []
    layouts = layout_costs.layouts(
        request.options.layout_transform, reports.append, request.decisions.measured_layouts
    )
    with labelled(graph.dims):
        graph = run_passes(
            graph, observe, request.switches.off, {}, request.width, layouts,
            _storing(layout_costs), bool(request.target.device),
        )  # fmt: skip
    graph = compress_weights(graph, layout_costs.target, layout_costs.limits, observe)
    return Optimised(graph, tuple(reports))


def _storing(costs: LayoutCosts) -> Storing:
    """Return how passes are to choose the values that are stored in 16 bits."""

    def cascaded(graph: Graph, outer: Mapping[str, Array]) -> Mapping[str, Rows]:
        """Return the values of a graph of which cascades hold rows, with the bytes of these."""
        if any(node.op.subgraphs() for node in graph.nodes):
            return {}
        selection = select(graph, costs.target, costs.timings, outer, costs.limits)
        return {
            stage.node.outputs[0]: (rows.dtype, rows.nbytes)
            for cascade in find_cascades(graph, selection, costs.target, 1)
            for stage, rows in zip(cascade.stages, cascade.buffer_types(), strict=False)
        }

    return replace(costs.storing(), cascaded=cascaded)


def _lowered(
    model: onnx_ir.Model,
    request: Request,
    diagnostics: Diagnostics,
    report: Callable[[NodeDiagnostic], None] | None,
) -> Graph:
    """Lower a model, compare a graph of ranges with those of single shapes, and warn."""
    options, policy = request.options, request.policy
    unknown = (*policy.warnings(model), *request.unknown_precise(model))
    for text in (*unknown, *request.switches.warnings()):
        diagnostics.warn(one_line(text))
    graph = lowered(model, options, policy, report)
    for text in graph.warnings:
        diagnostics.warn(one_line(text))
    if graph.dims and report is None:
        check_range(model, graph, lambda: lowered(model, options, policy), options.model.name)
    return graph
