"""Kernels, their order and their memory, for every network of a library."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from atc.backends.kernel_source import Render, render_kernel
from atc.backends.target import Target
from atc.backends.toolchain.compiler import Compiler
from atc.codegen.sanity import GUARD
from atc.diagnostics import Diagnostics
from atc.dims import upper_bound
from atc.fast_run.timings import counted
from atc.ir.graph import Graph
from atc.lower.ranges import labelled
from atc.memory.arena import Arena, plan_memory
from atc.pipeline.caches import open_build_context
from atc.pipeline.held import held_bytes
from atc.pipeline.memory_budget import Planned, Swapper, plan_within
from atc.pipeline.pass_switches import CASCADES
from atc.pipeline.request import Request
from atc.pipeline.timing import Timed
from atc.program.build import ThreadCounts, build_program
from atc.program.forks import ALONE
from atc.program.steps import Program, most_branches
from atc.program.swap import SwapModel
from atc.select.select import Limits, Selection, Timings, packings, select, target_for


@dataclass(frozen=True)
class Plans:
    """The plans of a library's networks.

    `shown` is the one that is reported: the largest, or the one for all shapes of ranges.
    `shape_profiles` are those of single shapes where a library has several; `threads` share a call
    at most.
    """

    shown: Planned
    shape_profiles: tuple[Planned, ...]
    threads: int

    @property
    def all(self) -> tuple[Planned, ...]:
        """Every plan once, in the order in which the library numbers them."""
        known = any(self.shown is each for each in self.shape_profiles)
        return self.shape_profiles if known else (*self.shape_profiles, self.shown)


def plan_all(
    timed: Timed, request: Request, diagnostics: Diagnostics, compiler: Compiler | None = None,
    render: Render = render_kernel,
) -> Plans:  # fmt: skip
    """Choose kernels and plan memory for the networks of one library.

    The last of several may hold for all shapes of ranges that are no profile's. Without a compiler
    it isn't measured how many threads share a call. `render` renders kernels.
    """
    graphs = [each.graph for each in timed.networks]
    shape_profiles = len(graphs) > 1
    ranges = bool(graphs[-1].dims)
    for option in request.options.asks_for_threads() if shape_profiles or ranges else ():
        if "branches" in option:
            diagnostics.warn(f"{option}: networks of several shapes use one")
    target = request.target
    if any(target_for(graph, target) != target for graph in graphs):
        diagnostics.warn(
            f"{target.name}: the largest shapes need too much of a GPU's memory; they are computed "
            "on the host (--input_shape and --value_range limit them)"
        )
    planner = _Planner(
        request, target, timed.timings, timed.limits, ranges, shape_profiles, diagnostics, compiler,
        render,
    )
    made: dict[int, Planned] = {}
    for k in sorted(range(len(graphs)), key=lambda k: _size(graphs[k])):
        made[k] = _within(graphs[k], request, planner, diagnostics)
        if shape_profiles:  # large shapes can do with what small ones need, less so the reverse
            planner = planner.preferring(packings(made[k].selection, target))
    plans = [made[k] for k in range(len(graphs))]
    if shape_profiles and plans[-1].program.dims:
        return Plans(plans[-1], tuple(plans[:-1]), planner.threads)
    shown = max(reversed(plans), key=lambda p: p.arena.plan.size)
    return Plans(shown, tuple(plans) if shape_profiles else (), planner.threads)


def _size(graph: Graph) -> int:
    return sum(upper_bound(graph.types[value].nbytes) for value in graph.inputs)


def _within(
    graph: Graph, request: Request, planner: _Planner, diagnostics: Diagnostics
) -> Planned:
    return plan_within(
        graph, request.options, planner.plan, diagnostics.stage, request.decisions.held,
        planner.swapper(graph),
    )  # fmt: skip


@dataclass(frozen=True)
class _Planner:
    """Make the plans of a library's graphs, from all that these have in common."""

    request: Request
    target: Target
    timings: Timings
    limits: Limits
    ranges: bool
    shape_profiles: bool
    diagnostics: Diagnostics
    compiler: Compiler | None
    render: Render

    def preferring(self, packed: frozenset[str]) -> _Planner:
        """Return a planner that knows of more arrangements of constants that are there anyway."""
        limits = replace(self.limits, packed=self.limits.packed | packed)
        return replace(self, limits=limits)

    @property
    def several(self) -> bool:
        """Whether shapes vary."""
        return self.ranges or self.shape_profiles

    @property
    def observed(self) -> bool:
        """Whether values are looked at between the calls."""
        return bool(self.request.options.hooks or self.request.options.sanity_check)

    @property
    def plain(self) -> bool:
        """Whether calls stand one after the other: shapes vary, or values are looked at."""
        return self.several or self.observed

    @property
    def threads(self) -> int:
        """The most threads that share one call."""
        alone = self.observed or self.target.device or self.target.bare
        return 1 if alone else self.request.options.sharers

    def plan(self, graph: Graph) -> Planned:
        """Return a graph's plan: with branches at the same time, if memory allows that."""
        planned = self._planned(graph, forks=not self.plain)
        budget = self.request.options.memory_budget
        needed = planned.arena.plan.size + held_bytes(planned.program, self.request.decisions.held)
        if 0 < budget < needed and most_branches(planned.program.steps) > 1:
            return self._planned(graph, forks=False)  # branches that overlap need more memory
        return planned

    def swapper(self, graph: Graph) -> Swapper | None:
        """Return what swaps values where that is allowed, and there is a GPU."""
        target = target_for(graph, self.target)
        if not target.device or not self.request.options.gpu_swap:
            return None
        return Swapper(SwapModel(target), partial(self._memory, target=target))

    def _planned(self, graph: Graph, forks: bool) -> Planned:
        options, target = self.request.options, target_for(graph, self.target)
        workers, worth = self.request.sharing
        self.diagnostics.stage("choosing kernels")
        with labelled(graph.dims):
            selection = select(graph, target, self.timings, limits=self.limits)
        program = build_program(
            graph, selection, target, in_place=options.memory_in_place, threads=self.threads,
            cascades=not self.plain and CASCADES not in self.request.switches.off,
            packed_layouts=not self.observed, counts=self._counts(selection),
            workers=workers if forks else ALONE, worth=worth,
            io=options.io == "arena" and not self.several,
            enough=self.request.decisions.enough_memory, render=self.render,
        )  # fmt: skip
        self.diagnostics.stage("planning memory")
        return Planned(graph, selection, program, self._memory(program, target))

    def _memory(self, program: Program, target: Target) -> Arena:
        options = self.request.options
        return plan_memory(
            program, reuse=not options.disable_reuse_memory, in_place=options.memory_in_place,
            guard=GUARD if options.sanity_check and options.sanity_check.memory else 0,
            tries=options.memory_tries, alignment=target.alignment,
            io=options.io == "arena" and not self.several,
        )  # fmt: skip

    def _counts(self, selection: Selection) -> ThreadCounts:
        """Return how many threads share which calls, as far as that is known or measured."""
        if self.threads == 1 or self.compiler is None or self.target.device:
            return {}
        with open_build_context(self.request, self.compiler, self.diagnostics) as context:
            return counted(
                selection, self.request.algo_policy, self.request.options, context,
                self.request.environ, self.diagnostics,
            )  # fmt: skip
