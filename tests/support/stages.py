"""The pipeline's stages up to the C text, for tests that look at what options come to."""

from __future__ import annotations

from atc.diagnostics import Diagnostics
from atc.ir.graph import Graph
from atc.options.options import Options
from atc.pipeline.lowering import optimise, read_model
from atc.pipeline.planning import Plans, plan_all
from atc.pipeline.request import Decisions, Request, resolve_request
from atc.pipeline.timing import Timed
from atc.pipeline.writing import Project, write_project


def graph_of(
    options: Options, diagnostics: Diagnostics | None = None, decisions: Decisions | None = None
) -> Graph:
    """Return the graph after all passes."""
    request = resolve_request(options, decisions=decisions)
    diagnostics = diagnostics or Diagnostics()
    return optimise(read_model(request, diagnostics), request, diagnostics).graph


def project_of(
    options: Options, diagnostics: Diagnostics | None = None, decisions: Decisions | None = None
) -> Project:
    """Do all of a compilation but the C compiler's part; kernels are chosen by estimates."""
    request = resolve_request(options, decisions=decisions)
    diagnostics = diagnostics or Diagnostics()
    return write_project(plans_of(request, diagnostics), request, "", diagnostics)


def plans_of(request: Request, diagnostics: Diagnostics) -> Plans:
    """Return kernels, their order and their memory; kernels are chosen by estimates."""
    models = [read_model(each, diagnostics) for each in request.profiles]
    networks = tuple(optimise(model, request, diagnostics) for model in models)
    return plan_all(Timed(networks, {}, request.limits(models[0])), request, diagnostics)
