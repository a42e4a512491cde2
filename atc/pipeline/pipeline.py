"""One compilation from model file to output folder: the pipeline, stage by stage."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import onnx_ir

from atc.adapt import adapt
from atc.adapt.outputs import find_outputs
from atc.backends.compiler import OPEN_ENDED, STRIP, THREADS
from atc.backends.kernel import Workload
from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.backends.toolchain import Compiler
from atc.build.compilers import compiler_of
from atc.build.library import (
    BuildResult,
    Shop,
    Unit,
    build_library,
    kernel_unit,
    library_flags,
    work_folder,
    written_down,
)
from atc.build.output_folder import Content, check_folder, network_name, write_dump, write_tree
from atc.cache import TEMPLATES, Cache, CacheStats
from atc.codegen.emit import Emission, emit
from atc.codegen.sanity import GUARD
from atc.codegen.weights import included_weights, split_weights
from atc.diagnostics import Listener, remembering
from atc.errors import one_line
from atc.fast_run.timings import counted, measured, measuring, replayed, timed_graphs, times_root
from atc.importers import load_model
from atc.ir.graph import Graph
from atc.ir.text import dump
from atc.lower.external import bind_operators
from atc.lower.ranges import check_range
from atc.lower.trace import Visit
from atc.lower.value_bounds import declare_ranges
from atc.memory.arena import Arena, plan_memory
from atc.options.files import file_digest
from atc.options.options import Options
from atc.options.shape_profiles import gears_of, general_of
from atc.passes import run_passes
from atc.passes.layout import LayoutReport
from atc.pipeline.caches import file_store, operator_cache
from atc.pipeline.computing_path import lowered
from atc.pipeline.debug_build import (
    Build,
    Debugging,
    kernel_files,
    listed_kernels,
    operator_types,
    read_debugging,
    write_kernel_meta,
)
from atc.pipeline.graph_file import stored_graph
from atc.pipeline.memory_budget import Planned, plan_within
from atc.pipeline.pass_switches import TURNS
from atc.pipeline.report import report_json, source_nodes
from atc.pipeline.request import (
    adaptation_of,
    contract_of,
    limits_of,
    policy_of,
    sharing_of,
    switches_of,
)
from atc.program.build import Program, ThreadCounts, build_program
from atc.program.forks import ALONE
from atc.program.steps import most_branches
from atc.runtime.custom_ops import ExternalLibrary
from atc.select.compress_weights import with_half_weights
from atc.select.layout_costs import Weighing
from atc.select.select import Limits, Selection, Timings, packings, select
from atc.templates import keeping_templates

__all__ = [
    "Compilation", "Compile", "Listener", "Project", "compile_one", "optimised_graph", "read_model",
    "times_root", "write_project",
]  # fmt: skip


@dataclass(frozen=True)
class Compilation:
    """The result of one compilation and everything the report tells of it."""

    folder: Path
    name: str
    """The prefix of everything in C."""
    options: Options
    target: Target
    compiler: Compiler
    graph: Graph
    selection: Selection
    program: Program
    arena: Arena
    emission: Emission
    build: BuildResult
    cache: CacheStats
    warnings: tuple[str, ...]
    source: Sequence[Mapping[str, object]] = ()
    """The model's own nodes, as the report tells them."""
    layouts: tuple[LayoutReport, ...] = ()
    """What was weighed when the layouts were chosen, graph by graph."""

    @property
    def library(self) -> Path:
        """The shared library."""
        return self.folder / f"lib{self.name}.so"

    @property
    def report(self) -> dict[str, Any]:
        """What was chosen for each node and where memory goes, as in `<name>.report.json`."""
        report: dict[str, Any] = json.loads(report_json(self))
        return report


Compile = Callable[[Options, Mapping[str, str], Listener], Compilation]
"""Compiles as options say in an environment, and tells a listener; see `compile_one`."""


def compile_one(options: Options, environ: Mapping[str, str], heard: Listener) -> Compilation:
    """Compile a model for one target with the kernels that the options allow.

    Raises AtcError; the output folder is then as it was before.
    """
    debugging = read_debugging(options)
    with keeping_templates(file_store(options, debugging, environ, TEMPLATES)):
        return _compiled(options, debugging, environ, heard)


def _compiled(
    options: Options, debugging: Debugging, env: Mapping[str, str], listen: Listener
) -> Compilation:
    warnings: list[str] = []
    heard = remembering(listen, warnings)
    for text in options.warnings():
        heard.warn(text)
    target = get_target(options.target, options.target_option)
    _check_folders(options, debugging)
    compiler = compiler_of(options, env, heard.process)
    gears, general = gears_of(options), general_of(options)
    every = (*gears, *([general] if general else [])) or (options,)
    models = [read_model(each, heard) for each in every]
    model = models[0]
    operators = operator_types(model)
    for text in debugging.warnings(operators):
        heard.warn(text)
    limits = limits_of(options, model)
    flags, workers = _flags(options, compiler, target), options.jobs or os.cpu_count() or 1

    def shop(cache: Cache) -> Shop:
        return Shop(target, compiler, flags, cache, workers, heard.process)

    def timed(todo: Sequence[Workload], known: Timings, chosen: bool) -> Timings:
        found = {**known, **replayed(todo, options, target, limits, heard, chosen)}
        if not (own := measuring(options, chosen)).measures and own.op_bank_path is None:
            return found
        with operator_cache(options, target, debugging, env, heard.warn) as cache:
            return measured(todo, found, own, limits, shop(cache), env, heard)

    def optimised(weighing: Weighing) -> list[Graph]:
        width = target.vector_bytes // 4
        return [optimised_graph(m, options, heard, width, weighing=weighing) for m in models]

    graphs, timings, layouts = timed_graphs(optimised, Weighing(target, limits), timed, options)

    def shares(selection: Selection) -> ThreadCounts:
        with operator_cache(options, target, debugging, env, heard.warn) as cache:
            return counted(selection, options, shop(cache), env, heard)

    project = write_project(graphs[0], timings, options, target, limits, heard, graphs[1:], shares)
    emission = project.emission
    heard.stage("compiling C")
    listed = listed_kernels(project.program, debugging.config, operators)
    recipe = _recipe(options, emission, target, compiler, debugging, listed)
    with work_folder(options.build_dir, options.keep_build) as cwd:
        log = written_down(heard.process, cwd) if options.keep_build else heard.process
        with operator_cache(options, target, debugging, env, heard.warn) as cache:
            made, build = build_library(
                cwd, recipe.files, recipe.units, emission.name,
                Shop(target, compiler, recipe.flags, cache, workers, log),
                lambda done, total: heard.progress("compiling C", done, total),
                repeatable=options.keep_build,
            )  # fmt: skip
        if options.keep_build:
            heard.stage(f"the build is kept in {cwd}")
        done = Compilation(
            options.output, emission.name, options, target, compiler, project.graph,
            project.selection, project.program, project.arena, emission, build, cache.stats,
            tuple(warnings), source_nodes(model), layouts,
        )  # fmt: skip
        heard.stage("writing the output folder")
        _keep_kernels(done, debugging, recipe.flags, listed)
        large = _large_files(made, cwd, recipe.files, options.keep_build)
        write_tree({**recipe.files, **large, **_texts(done)}, options.output)
    return done


def read_model(options: Options, heard: Listener) -> onnx_ir.Model:
    """Read the model file and make its inputs and outputs what the options say."""
    heard.stage("reading the model")
    model = load_model(options.model, options.framework, options.input_shape, options.weight)
    if options.c_opr_lib is not None:
        library = ExternalLibrary(options.c_opr_lib, options.c_opr_init_interface)
        bind_operators(model, library.operators)
    for text in model.metadata_props.get("atc.warnings", "").splitlines():
        heard.warn(one_line(text))
    for text in adapt(model, adaptation_of(options), find_outputs(model, options.out_nodes)):
        heard.warn(text)
    declare_ranges(model, options.value_range)
    return model


def optimised_graph(
    model: onnx_ir.Model,
    options: Options,
    heard: Listener,
    width: int = 1,
    visit: Callable[[Visit], None] | None = None,
    weighing: Weighing | None = None,
) -> Graph:
    """Lower what `read_model` gave and run the passes for vectors of `width` floats, with dumps.

    With `visit`, nodes that can't be lowered are only told. `weighing` chooses layouts, if given.
    """
    heard.stage("lowering")
    stored = stored_graph(model, get_target(options.target).name)
    if stored is not None:
        return stored
    policy, switches = policy_of(options), switches_of(options)
    for text in (*policy.warnings(model), *switches.warnings()):
        heard.warn(one_line(text))
    file = options.model.name
    graph = lowered(model, options, policy, visit)
    for text in graph.warnings:
        heard.warn(one_line(text))
    if graph.dims and visit is None:
        again = lambda: lowered(model, options, policy)  # noqa: E731
        check_range(model, graph, again, file)
    dumped: list[str] = []

    def observe(name: str, current: Graph) -> None:
        heard.graph(name, current)
        if options.dump is not None:
            dumped.append(f"{len(dumped):02}-{name}.txt")
            write_dump(options.dump / dumped[-1], dump(current))

    lanes = 1 if options.kernels == "portable" else width
    weighing = weighing or Weighing(get_target(options.target), limits_of(options, model))
    layouts = weighing.layouts(options.layout_transform)
    graph = run_passes(graph, observe, switches.off, {}, lanes, layouts, weighing.storing())
    return with_half_weights(graph, weighing.target, weighing.limits, observe)


@dataclass(frozen=True)
class Project(Planned):
    """All that comes before the C compiler: what was chosen, planned and written."""

    emission: Emission


def write_project(
    graph: Graph,
    timings: Timings,
    options: Options,
    target: Target,
    limits: Limits,
    heard: Listener,
    more: Sequence[Graph] = (),
    shares: Callable[[Selection], ThreadCounts] = lambda selection: {},
) -> Project:
    """Choose kernels, plan memory and write the C; nothing is stored.

    With `more` graphs, they are gears of one library; what is told of it is told of the largest.
    The last of them may hold for all shapes of ranges that are no gear's. `shares` counts threads.
    """
    watched = bool(options.hooks or options.sanity_check)
    several = bool(more or graph.dims)
    threads = 1 if watched or several else options.sharers
    workers, worth = sharing_of(options)
    for option in options.asks_for_threads() if several else ():
        heard.warn(f"{option}: networks of several shapes use one")

    packed: set[str] = set()

    def plan(graph: Graph, forks: bool = not (watched or several)) -> Planned:
        heard.stage("choosing kernels")
        own = replace(limits, packed=frozenset(packed))
        selection = select(graph, target, timings, limits=own)
        packed.update(packings(selection, target) if more else ())
        program = build_program(
            graph, selection, target, in_place=options.memory_in_place, threads=threads,
            in_bands=not (watched or several or TURNS in switches_of(options).off),
            in_planes=not (watched or several),
            counts=shares(selection) if threads > 1 else {},
            workers=workers if forks else ALONE, worth=worth,
        )  # fmt: skip
        heard.stage("planning memory")
        arena = plan_memory(
            program, reuse=not options.disable_reuse_memory, in_place=options.memory_in_place,
            guard=GUARD if options.sanity_check and options.sanity_check.memory else 0,
            tries=options.memory_tries,
        )  # fmt: skip
        planned = Planned(graph, selection, program, arena)
        if 0 < options.memory_budget < arena.plan.size and most_branches(program.steps) > 1:
            return plan(graph, forks=False)  # branches that overlap need more memory
        return planned

    with ThreadPoolExecutor(1) as pool:
        digest = pool.submit(file_digest, options.model)
        plans = [plan_within(each, options, plan, heard.stage) for each in (graph, *more)]
    planned = max(reversed(plans), key=lambda p: p.arena.plan.size)
    open_ = bool(more) and bool(plans[-1].program.dims)
    if open_:
        planned = plans[-1]
    heard.stage("writing C")
    emission = emit(
        planned.program, planned.arena, target, name=network_name(options.output),
        model=options.model.name, model_hash=digest.result(),
        options=contract_of(options, planned.selection).text,
        external_weights=options.external_weight > 0, split_weights=options.external_weight == 1,
        profile=options.profile,
        hooks=options.hooks, log=options.runtime_log, checks=options.sanity_check,
        threads=max(threads, most_branches(planned.program.steps)),
        gears=[(p.program, p.arena) for p in (plans[:-1] if open_ else plans)] if more else (),
    )  # fmt: skip
    return Project(planned.graph, planned.selection, planned.program, planned.arena, emission)


def _check_folders(options: Options, debugging: Debugging) -> None:
    network_name(options.output)
    check_folder(options.output, "--output")
    if options.dump is not None:
        check_folder(options.dump, "--dump")
    if debugging.files:
        check_folder(options.debug_dir or Path(), "--debug_dir")


@dataclass(frozen=True)
class _Recipe:
    """What the library is built from: the whole tree with the weights, its units, the flags."""

    files: Mapping[str, Content]
    units: tuple[Unit, ...]
    flags: tuple[str, ...]


def _recipe(
    options: Options, emission: Emission, target: Target, compiler: Compiler, debugging: Debugging,
    listed: frozenset[str],
) -> _Recipe:  # fmt: skip
    name = emission.name
    files: dict[str, Content] = dict(emission.files)
    everywhere = debugging.flags if debugging.of_all else ()
    units = [
        replace(
            kernel_unit(k), bypass=k.symbol in listed,
            flags=debugging.flags if k.symbol in listed else everywhere,
        )
        for k in emission.kernels
    ]  # fmt: skip
    own = (f"include/{name}.h", f"src/{name}_kernels.h")
    linking = (*[STRIP] * options.strip, *[OPEN_ENDED] * (options.c_opr_lib is not None))
    linking += (THREADS,) if emission.threads > 1 else ()
    units.append(Unit(f"src/{name}.c", name, own, flags=(*everywhere, *linking)))
    runs = sorted(path for path in files if path.startswith(f"src/{name}_gear"))
    units += [Unit(path, PurePosixPath(path).stem, own, flags=everywhere) for path in runs]
    if emission.blob.size and options.external_weight == 1:
        files |= split_weights(name, emission.weights, emission.offsets)
    elif emission.blob.size:
        data, text = f"{name}_weights.bin", f"{name}_weights.S"
        files[data] = emission.blob
        if options.external_weight != 2:
            files[text] = included_weights(name, data).encode()
            units.append(Unit(text, f"{name}_weights", (data,), cacheable=False))
    return _Recipe(files, tuple(units), _flags(options, compiler, target))


def _flags(options: Options, compiler: Compiler, target: Target) -> tuple[str, ...]:
    """Return the flags of every source; the user's own come last, as the last one counts."""
    return (*library_flags(compiler, target), *options.compiler_flags)


def _large_files(
    made: Mapping[str, Path], cwd: Path, files: Mapping[str, Content], keep: bool
) -> Mapping[str, Content | Path]:
    """Return what is taken from the build's folder: the libraries and the blob they include."""
    if keep:  # no file of the output may be one with what is kept
        return {path: file.read_bytes() for path, file in made.items()}
    blobs = (path for path in files if path.endswith("_weights.bin") and (cwd / path).is_file())
    return {**made, **{path: cwd / path for path in blobs}}


def _keep_kernels(
    done: Compilation, debugging: Debugging, flags: tuple[str, ...], listed: frozenset[str]
) -> None:
    """Write the files that a debug build keeps of its kernels."""
    if not debugging.files:
        return
    path = f"src/{done.name}.c"
    build = Build(
        done.target.name, done.compiler.version, (*flags, *debugging.flags), done.build.objects,
        done.emission.files[path].decode(), path,
    )  # fmt: skip
    symbols = frozenset(k.symbol for k in done.emission.kernels) if debugging.of_all else listed
    files = kernel_files(done.program, build, debugging.files, symbols)
    write_kernel_meta(files, done.options.debug_dir or Path())


def _texts(done: Compilation) -> dict[str, bytes]:
    return {
        f"{done.name}.report.json": report_json(done).encode(),
        f"{done.name}.graph.txt": dump(done.graph).encode(),
    }
