"""Graphs whose layouts, and kernels that will be chosen, by times: replayed, known or measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir

from atc.backends.kernel import Workload
from atc.backends.machine import Machine
from atc.backends.toolchain.compiler import Compiler
from atc.diagnostics import Diagnostics
from atc.fast_run.export import FOLDER
from atc.fast_run.task import workloads
from atc.fast_run.timings import export_files, measured, replayed
from atc.pipeline.caches import open_build_context
from atc.pipeline.lowering import Optimised, optimise_all
from atc.pipeline.request import Request
from atc.select.layout_costs import LayoutCosts, near_optimal
from atc.select.select import Limits, Timings


@dataclass(frozen=True)
class Timed:
    """The graphs of a library, the times that kernels are chosen by, and the limits they keep."""

    networks: tuple[Optimised, ...]
    timings: Timings
    limits: Limits
    wanted: tuple[Workload, ...] = ()
    """The workloads whose times would decide."""
    warm: bool = False
    """Whether they find their weights in a core's own caches."""


def optimise_by_times(
    models: Sequence[onnx_ir.Model], request: Request, compiler: Compiler, diagnostics: Diagnostics
) -> Timed:
    """Lower the models of one library and run the passes, by times where there are any.

    Where times are known or measured, layouts are chosen by them: once the estimates have said
    which forms are worth a look.
    """
    limits = request.limits(models[0])
    layout_costs = LayoutCosts(request.target, limits)
    networks = optimise_all(models, request, layout_costs, diagnostics)
    reports = [report for each in networks for report in each.layouts]
    forms = near_optimal(reports, conversions=request.decisions.measured_layouts)
    warm = _stays_near(networks, request.target.machine)
    timings = _layout_times(forms, request, limits, compiler, diagnostics, warm)
    if timings:
        networks = optimise_all(
            models, request, replace(layout_costs, timings=timings), diagnostics
        )
    todo = [w for each in networks for w in workloads(each.graph, {})]
    return Timed(
        networks, _kernel_times(todo, timings, request, limits, compiler, diagnostics, warm),
        limits, (*forms, *todo), warm,
    )  # fmt: skip


def exported(
    timed: Timed, request: Request, compiler: Compiler, diagnostics: Diagnostics
) -> dict[str, bytes]:
    """Return the project that measures elsewhere what isn't known, where that is asked for."""
    if not request.options.exports:
        return {}
    with open_build_context(request, compiler, diagnostics) as context:
        files = export_files(
            timed.wanted, request.options, timed.limits, context, request.environ, diagnostics,
            timed.warm,
        )  # fmt: skip
    if not files:
        diagnostics.warn("--fast_run=export writes no project: nothing has two kernels to measure")
    return {f"{FOLDER}/{path}": data for path, data in files.items()}


def _layout_times(
    forms: Sequence[Workload],
    request: Request,
    limits: Limits,
    compiler: Compiler,
    diagnostics: Diagnostics,
    warm: bool,
) -> Timings:
    """Return the times of the forms that measuring might prefer to the estimates' choice.

    Where layouts are to be measured in any case, the time of an only candidate is of interest,
    too, and no policy is written.
    """
    options, always = request.options, request.decisions.measured_layouts
    known = replayed(
        forms, request.algo_policy, options, request.target, limits, diagnostics, all_chosen=False,
    )  # fmt: skip
    if not always and not options.knows_times:
        return known
    own = replace(options, fast_run=True, fast_run_algo_policy=None) if always else options
    with open_build_context(request, compiler, diagnostics) as context:
        return measured(
            forms, known, own, limits, context, request.environ, diagnostics, alone=always,
            warm=warm,
        )  # fmt: skip


def _kernel_times(
    todo: Sequence[Workload], known: Timings, request: Request, limits: Limits,
    compiler: Compiler, diagnostics: Diagnostics, warm: bool,
) -> Timings:  # fmt: skip
    """Return the times of the kernels that may be chosen, those that are known among them."""
    options = request.options
    found = {**known, **replayed(
        todo, request.algo_policy, options, request.target, limits, diagnostics
    )}
    if not options.knows_times:
        return found
    with open_build_context(request, compiler, diagnostics) as context:
        return measured(
            todo, found, options, limits, context, request.environ, diagnostics, warm=warm
        )


def _stays_near(networks: Sequence[Optimised], machine: Machine) -> bool:
    """Return whether a core's second cache keeps all constants of the networks beside the rest."""
    constants = (array for each in networks for array in each.graph.constants.values())
    return sum(array.nbytes for array in constants) <= machine.l2.size * 3 // 4
