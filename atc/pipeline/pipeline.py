"""One compilation from model file to output folder: the pipeline, stage by stage."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from atc.backends.flops import operations
from atc.backends.kernel import Workload
from atc.backends.kernel_source import render_kernel
from atc.backends.toolchain.compiler import Compiler, shared_library
from atc.build.compilers import compiler_of
from atc.build.library import work_folder
from atc.build.output_folder import Content, check_folder, network_name, write_tree
from atc.cache import TEMPLATES
from atc.diagnostics import Diagnostics, remembering
from atc.errors import CompilerCrash
from atc.files.mapped import reading
from atc.ir.text import dump
from atc.options.files import file_digest
from atc.options.options import Options
from atc.packaging.firmware import check_packages
from atc.packaging.wheel import check_wheel
from atc.packaging.wrappers import check_wrappers
from atc.pipeline.caches import file_store
from atc.pipeline.debug_build import (
    Build,
    Schedule,
    kernel_files,
    listed_kernels,
    operator_types,
    write_kernel_meta,
)
from atc.pipeline.early import begin_early
from atc.pipeline.lowering import read_model
from atc.pipeline.planning import Plans, plan_all
from atc.pipeline.report import Reported, report_json, source_nodes
from atc.pipeline.request import Request
from atc.pipeline.size_contract import check_sizes, sizes_of, wants_sizes
from atc.pipeline.timing import Timed, exported, optimise_by_times
from atc.pipeline.writing import (
    Built,
    Project,
    build_plan,
    build_project,
    can_share_weights,
    write_project,
)
from atc.program.steps import Program, calls
from atc.runtime.shown import html_table
from atc.starter.boards import boards_of
from atc.starter.sizes import planned_sizes
from atc.templates import keeping_templates


class Report(dict[str, Any]):
    """A report as `<name>.report.json` has it, which a notebook shows as a table of kernels."""

    def _repr_html_(self) -> str:
        rows = [
            (n["name"], n["op"], n["kernel"], n["precision"], " ".join(n["results"]))
            for n in self["nodes"]
        ]
        headings = ("node", "op", "kernel", "precision", "results")
        return html_table(f"{self['name']} for {self['target']}", headings, rows)


@dataclass(frozen=True, kw_only=True)
class Compilation(Reported):
    """The result of one compilation: all that its report tells, and where it lies."""

    folder: Path
    compiler: Compiler
    warnings: tuple[str, ...]
    passing: tuple[str, ...] = ()
    """Those of this build alone, such as that a store is away: the next one may not have them."""

    @property
    def options(self) -> Options:
        """The options that it was compiled with."""
        return self.request.options

    @property
    def library(self) -> Path:
        """The shared library; where the target loads none, the static one."""
        if self.target.bare:
            return self.folder / f"lib{self.name}.a"
        return self.folder / shared_library(self.compiler, self.name)

    def __repr__(self) -> str:
        """Return a line for whoever calls `atc.compile` in a shell of Python."""
        return f"<{self.name} for {self.target.name} in {self.folder}>"

    @property
    def if_warm(self) -> Compilation:
        """The same compilation where the cache has all its objects."""
        stats, build, new = self.cache, self.build, self.cache.misses
        return replace(
            self,
            cache=replace(stats, mode="enable", hits=stats.hits + new, misses=0, damaged=0),
            build=replace(build, compiled=build.compiled - new, cached=build.cached + new),
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what became of the model, and its memory over time."""
        kernels = len(self.emission.kernels)
        rows = [
            ("model", self.options.model.name), ("folder", self.folder),
            ("target", self.target.name), ("compiler", self.compiler.version),
            ("calls", f"{sum(1 for _ in calls(self.program.steps))} of {kernels} kernels"),
            ("arena", f"{self.arena.plan.size:,} bytes"),
            ("weights", f"{self.emission.blob.size:,} bytes"),
            *(("warning", text) for text in self.warnings),
        ]  # fmt: skip
        return f"{html_table(self.name, (), rows)}\n{self.arena._repr_html_()}"

    @property
    def report(self) -> Report:
        """The kernel of each node and the use of memory, as in `<name>.report.json`."""
        report = Report(json.loads(report_json(self)))
        return report


Compile = Callable[[Request, Diagnostics], Compilation]
"""Compiles what is asked for and reports to diagnostics; see `compile_one`."""
Keep = Callable[[Mapping[str, Content | Path], Compilation], None]
"""Takes note of what was written to an output folder."""


def compile_one(request: Request, outer: Diagnostics, keep: Keep | None = None) -> Compilation:
    """Compile a model for one target with the kernels that the request allows.

    Where the compiler crashes on a kernel, the next best one is taken. `keep` is told what was
    written. Raises AtcError; the output folder is then as it was before.
    """
    with keeping_templates(file_store(request, TEMPLATES)):
        while True:
            try:
                return _compiled(request, outer, keep)
            except _KernelCrash as crash:
                known = request.decisions.crashing
                if crash.kernels <= known:
                    raise crash.error from None
                request = request.decide(crashing=known | crash.kernels)


class _KernelCrash(Exception):
    """A compiler's crash on kernels that others may replace, by workload and label."""

    def __init__(self, error: CompilerCrash, kernels: frozenset[tuple[Workload, str]]) -> None:
        super().__init__(str(error))
        self.error = error
        self.kernels = kernels


def _compiled(request: Request, outer: Diagnostics, keep: Keep | None) -> Compilation:
    """Go through the stages; each takes what those before it gave."""
    options, warnings, passing = request.options, list[str](), list[str]()
    diagnostics = remembering(outer, warnings)
    building = remembering(diagnostics, passing)
    check(request, diagnostics, building)
    compiler = compiler_of(request.target, options, request.environ, diagnostics.process)
    models = [read_model(each, diagnostics) for each in request.profiles]
    operators = operator_types(models[0])
    for text in request.debugging.warnings(operators):
        diagnostics.warn(text)
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        digest = pool.submit(file_digest, options.model)
        timed = optimise_by_times(models, request, compiler, diagnostics)
        cwd = stack.enter_context(work_folder(options.build_dir, options.keep_build))
        kernels = len({*timed.wanted})
        early = stack.enter_context(begin_early(request, compiler, cwd, kernels, building))
        render = early.render if early else render_kernel
        plans = plan_all(timed, request, diagnostics, compiler, render)
        project = write_project(
            plans, request, digest.result(), diagnostics,
            once=can_share_weights(request, compiler),
        )  # fmt: skip
        recomputed = partial(_recomputed, timed, request, compiler, project)
        planned = planned_sizes(project.emission.interface, request.target)
        check_sizes(planned, project.arena, request, recomputed)
        programs = [each.program for each in plans.all]
        listed = listed_kernels(programs, request.debugging.config, operators)
        made_from = build_plan(project.emission, request, listed)
        diagnostics.stage("compiling C")
        try:
            built = build_project(
                made_from, project.emission, request, compiler, cwd, early, building
            )
        except CompilerCrash as error:
            raise _KernelCrash(error, _kernels_at(error.where, plans)) from None
        if options.keep_build:
            diagnostics.stage(f"the build is kept in {cwd}")
        sizes = None
        if wants_sizes(request):
            diagnostics.stage("measuring sizes")
            sizes = sizes_of(
                made_from, project.emission, request, compiler, built.flags, cwd, building
            )
            if sizes is not None:
                check_sizes(sizes, project.arena, request, recomputed)
        more = exported(timed, request, compiler, diagnostics)
        done = Compilation(
            **vars(project), folder=options.output, name=project.emission.name, request=request,
            target=request.target, compiler=compiler, build=built.result, cache=built.cache,
            warnings=tuple(warnings), passing=tuple(passing), source=source_nodes(models[0]),
            sizes=sizes,
            layouts=tuple(report for each in timed.networks for report in each.layouts),
        )  # fmt: skip
        diagnostics.stage("writing the output folder")
        _keep_kernels(done, programs, built, listed)
        tree = {**built.files, **_texts(done), **more}
        write_tree(tree, options.output)
        if keep is not None:
            warm = done.if_warm
            keep({**tree, **_texts(warm)}, warm)
    return done


def check(request: Request, diagnostics: Diagnostics, building: Diagnostics) -> None:
    """Raise OptionError for what can't be combined, and warn of what has no effect.

    Nothing is read for that. `building` hears what is no longer so in a warm build.
    """
    options = request.options
    for text in options.warnings():
        diagnostics.warn(text)
    for _, label in sorted(request.decisions.crashing, key=lambda kernel: kernel[1]):
        building.warn(f"the compiler crashes on {label}: the next best kernel is taken")
    for name in ("device_id", "gpu_pool", "gpu_kept_free"):
        if getattr(options, name) and "cuda" not in options.target.lower():
            diagnostics.warn(f"--{name} has no effect: {options.target} is not a GPU")
    if options.gpu_swap and (idle := _idle_swaps(request)):
        diagnostics.warn(f"{options.asked('gpu_swap')} has no effect{idle}")
    for text in _idle_threads(request):
        diagnostics.warn(text)
    _check_folders(request)
    if options.starter:
        boards_of(request.target)
    check_packages(options.package, request.target)
    check_wrappers(options.wrappers, request.target)
    if options.wheel:
        check_wheel(request.target, options.external_weight)


def _idle_swaps(request: Request) -> str:
    """Return why nothing can be swapped; '' where it can."""
    if not request.target.device:
        return f": {request.target.name} has no memory but the host's, where swaps would go"
    limited = request.options.memory_budget or request.options.gpu_pool.isdigit()
    return "" if limited else " without --memory_budget or bytes for --gpu_pool"


def _kernels_at(path: str, plans: Plans) -> frozenset[tuple[Workload, str]]:
    """Return the kernels that a source was rendered for, by workload and label."""
    every = (c for each in plans.all for c in calls(each.program.steps))
    return frozenset((c.choice.workload, c.candidate) for c in every if c.source.path == path)


def _recomputed(
    timed: Timed, request: Request, compiler: Compiler, project: Project
) -> Iterator[str]:
    """Yield what recomputing values would spare, and cost, if that isn't allowed yet."""
    if request.options.recompute != "none":
        return
    wanted = request.with_options(recompute="all", memory_budget=0)
    other = plan_all(timed, wanted, Diagnostics(), compiler).shown
    spared = project.arena.plan.size - other.arena.plan.size
    work = [
        sum(operations(c.choice.workload) for c in calls(each.program.steps))
        for each in (project, other)
    ]
    if spared > 0:
        more = 100 * (work[1] / work[0] - 1) if work[0] else 0.0
        yield f"--recompute=all: {spared:,} bytes less, {more:.0f} % more operations"


def _idle_threads(request: Request) -> Iterator[str]:
    """Yield the threads that a target has no use for: on a GPU branches are streams."""
    target = request.target
    if target.device or target.bare:
        for option in request.options.asks_for_threads():
            if target.bare or option.startswith("--num_threads"):
                yield f"{option} has no effect: {target.name} uses one thread of the CPU"


def _check_folders(request: Request) -> None:
    options = request.options
    network_name(options.output)
    check_folder(options.output, "--output")
    if options.dump is not None:
        check_folder(options.dump, "--dump")
    if request.debugging.files:
        check_folder(options.debug_dir or Path(), "--debug_dir")


def _keep_kernels(
    done: Compilation, programs: Sequence[Program], built: Built, listed: frozenset[str]
) -> None:
    """Write the files that a debug build keeps of its kernels; `programs` are all that it has."""
    debugging = done.request.debugging
    if not debugging.files:
        return
    texts = done.emission.files
    schedules = []
    for k, program in enumerate(programs):
        own = f"src/{done.name}_shape{k}.c"
        path = own if own in texts else f"src/{done.name}.c"
        schedules.append(Schedule(program, path, texts[path].decode()))
    build = Build(
        done.target.name, done.compiler.version, (*built.flags, *debugging.flags),
        done.build.objects, schedules,
    )  # fmt: skip
    symbols = frozenset(k.symbol for k in done.emission.kernels) if debugging.of_all else listed
    files = kernel_files(build, debugging.files, symbols)
    write_kernel_meta(files, done.options.debug_dir or Path())


def _texts(done: Compilation) -> dict[str, bytes]:
    return {
        f"{done.name}.report.json": report_json(done).encode(),
        f"{done.name}.graph.txt": dump(done.graph, reading).encode(),
    }
