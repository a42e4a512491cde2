"""The text of the C project, and the library that is built from it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from atc.backends.toolchain.compiler import OPEN_ENDED, STRIP, THREADS, Compiler, shared_library
from atc.backends.toolchain.linking import link_wasm
from atc.build.gpu import gpu_units, headers_of
from atc.build.library import BuildResult, build_library, written_down
from atc.build.objects import Unit, kernel_unit
from atc.build.output_folder import Content, network_name
from atc.build.place_in import place_in
from atc.cache import CacheStats
from atc.codegen.emit import Emission, emit
from atc.codegen.project_options import (
    GpuOptions,
    Instrumentation,
    ProjectOptions,
    WeightFiles,
)
from atc.codegen.weights import (
    in_library,
    included_weights,
    split_weights,
    weights_text,
)
from atc.diagnostics import Diagnostics
from atc.errors import OptionError
from atc.files.blob import Blob
from atc.names import module_name
from atc.options.options import Options
from atc.packaging.firmware import package_files
from atc.packaging.wheel import wheel_files
from atc.packaging.wrappers import wasm_exports, wrapper_texts
from atc.pipeline import gpu as on_gpu
from atc.pipeline.caches import build_context, cache_of
from atc.pipeline.contract import contract_of
from atc.pipeline.early import Early
from atc.pipeline.memory_budget import Planned
from atc.pipeline.planning import Plans
from atc.pipeline.request import Request
from atc.program.placement import uses_device
from atc.program.steps import Program, most_branches
from atc.starter.texts import starter_texts


@dataclass(frozen=True)
class Project(Planned):
    """All that comes before the C compiler: what was chosen, planned and written."""

    emission: Emission


ONCE = 1 << 26
"""Bytes of weights from which on the files of an output share those in the library."""


def write_project(
    plans: Plans, request: Request, model_hash: str, diagnostics: Diagnostics, *,
    once: bool = False,
) -> Project:  # fmt: skip
    """Write the C of a library; nothing is stored. `model_hash` is its file's SHA-256.

    With `once` its files may share large weights; see `can_share_weights`.
    """
    options, shown = request.options, plans.shown
    check_whole(options, shown.program, bool(plans.shape_profiles))
    diagnostics.stage("writing C")
    weights = WeightFiles(
        external=options.external_weight > 0, split=options.external_weight == 1,
        before=request.decisions.before, once_from=ONCE if once else None,
    )  # fmt: skip
    around = Instrumentation(
        options.profile, options.hooks, options.runtime_log, options.sanity_check
    )
    gpu = GpuOptions(
        options.device_id, options.gpu_pool, options.gpu_kept_free, options.gpu_copy_streams
    )
    wanted = ProjectOptions(
        name=network_name(options.output), model=options.model.name, model_hash=model_hash,
        contract=contract_of(request, shown.selection).text, weights=weights,
        instrumentation=around, gpu=gpu,
        threads=max(plans.threads, most_branches(shown.program.steps)),
        selftest=request.decisions.expected, starter=options.starter,
        step=options.step or (options.has_selftest and _has_parts(plans, options)),
        max_ram=options.max_ram, max_rom=options.max_rom,
    )  # fmt: skip
    profiles = [(p.program, p.arena) for p in plans.shape_profiles]
    emission = emit(shown.program, shown.arena, request.target, wanted, profiles)
    texts = wrapper_texts(emission.interface, options.wrappers)
    if options.starter:
        texts |= starter_texts(emission.interface, request.target)
    more = {path: text.encode() for path, text in texts.items()}
    more |= package_files(emission, request.target, options.package)
    emission = replace(emission, files={**emission.files, **more})
    return Project(shown.graph, shown.selection, shown.program, shown.arena, emission)


def can_share_weights(request: Request, compiler: Compiler) -> bool:
    """Return whether weights may lie in the shared library alone.

    Not where there is none, nor on GPUs, nor where others than C and C++ link the static library,
    nor for one of several targets.
    """
    options, target = request.options, request.target
    linked = options.package or set(options.wrappers) - {"cpp"} or request.decisions.joined
    alone = compiler.elf and target.includes_files and not target.bare and not target.device
    return alone and not linked


def check_whole(options: Options, program: Program, shape_profiles: bool) -> None:
    """Raise OptionError where --step or --io=arena is wanted of a run of several shapes.

    Also where parts are wanted of a run that is watched, or that threads share.
    """
    if program.states and shape_profiles:
        raise OptionError("--state and several --input_shape can't be combined", where="--state",
                          hint="give ranges, or compile a library each", code="E10047")  # fmt: skip
    kind = "a network of several shapes" if program.dims or shape_profiles else ""
    if options.io == "arena" and kind:
        raise OptionError(f"--io=arena and {kind} can't be combined", where="--io",
                          code="E10047")  # fmt: skip
    asked = _kept_whole(options, kind)
    if options.step and asked:
        raise OptionError(f"--step and {asked[0]} can't be combined", where="--step",
                          hint="leave one of them out", code="E10047")  # fmt: skip


def _kept_whole(options: Options, kind: str) -> list[str]:
    """Return what is wanted of a run that isn't done in parts; `kind` is the network's, or ''."""
    others = ("profile", "hooks", "runtime_log", "sanity_check")
    asked = [f"--{name}" for name in others if getattr(options, name)]
    return [*asked, *options.asks_for_threads(), *filter(None, [kind])]


def _has_parts(plans: Plans, options: Options) -> bool:
    """Return whether a run can be done in parts, in which a self-test looks for a fault."""
    program = plans.shown.program
    several = bool(program.dims or plans.shape_profiles)
    return not (several or uses_device(program) or _kept_whole(options, ""))


@dataclass(frozen=True)
class BuildPlan:
    """The sources of a library: the whole tree with the weights, and its units."""

    files: Mapping[str, Content]
    units: tuple[Unit, ...]


def build_plan(emission: Emission, request: Request, listed: frozenset[str]) -> BuildPlan:
    """Return what a project's library is built from; `listed` kernels are debugged."""
    options, debugging, name = request.options, request.debugging, emission.name
    files: dict[str, Content] = dict(emission.files)
    everywhere = debugging.flags if debugging.of_all else ()
    own: tuple[str, ...] = (f"include/{name}.h", f"src/{name}_kernels.h")
    linking = (*[STRIP] * options.strip, *[OPEN_ENDED] * (options.c_opr_lib is not None))
    linking += (THREADS,) if emission.threads > 1 else ()
    units = _kernel_units(emission, request, listed)
    if emission.on_gpu:
        own = (*own, *headers_of(request.target))
        units += gpu_units(request.target, everywhere)
    units.append(Unit(f"src/{name}.c", name, own, flags=(*everywhere, *linking)))
    more = (f"src/{name}_shape", f"src/{name}_selftest.c")
    runs = sorted(path for path in files if path.startswith(more))
    units += [Unit(path, PurePosixPath(path).stem, own, flags=everywhere) for path in runs]
    if emission.blob.size and options.external_weight == 1:
        files |= split_weights(name, emission.weights, emission.constants)
    elif emission.blob.size and not (request.target.includes_files or options.external_weight):
        text = f"{name}_weights.c"
        files[text] = weights_text(name, emission.blob, request.target).encode()
        units.append(Unit(text, f"{name}_weights", cacheable=False))
    elif emission.blob.size:
        data, text = f"{name}_weights.bin", f"{name}_weights.S"
        files[data] = emission.blob
        if options.external_weight != 2:
            target = request.target
            both = (
                included_weights(
                    name, data, alignment=target.alignment, elf=elf, order=target.byte_order
                ).encode()
                for elf in (False, True)
            )
            files[text], plain = both
            units.append(Unit(text, f"{name}_weights", (data,), cacheable=False, plain=plain))
    return BuildPlan(files, tuple(units))


def _kernel_units(emission: Emission, request: Request, listed: frozenset[str]) -> list[Unit]:
    """Return the units of the kernels that the host's compiler takes."""
    debugging = request.debugging
    everywhere = debugging.flags if debugging.of_all else ()
    return [
        replace(
            kernel_unit(k), bypass=k.symbol in listed,
            flags=debugging.flags if k.symbol in listed else everywhere,
        )
        for k in emission.kernels
        if not k.launch or on_gpu.by_host(request.target)
    ]  # fmt: skip


@dataclass(frozen=True)
class Built:
    """A library in the folder of its build: all files of its output, and what made them."""

    files: Mapping[str, Content | Path]
    result: BuildResult
    cache: CacheStats
    flags: tuple[str, ...]
    """What every source was compiled with."""


def build_project(
    made_from: BuildPlan, emission: Emission, request: Request, compiler: Compiler, cwd: Path,
    early: Early | None, diagnostics: Diagnostics,
) -> Built:  # fmt: skip
    """Compile and link a project's library in the folder `cwd`, where `early` is at work if given.
    """
    keep = request.options.keep_build
    log = written_down(diagnostics.process, cwd) if keep else diagnostics.process
    with early.cache if early else cache_of(request, diagnostics.warn) as cache:
        context = build_context(request, compiler, cache, replace(diagnostics, process=log))
        if emission.on_gpu and not on_gpu.by_host(request.target):
            nvcc = on_gpu.nvcc_of(request.target, request.environ, log, compiler.timeout)
            cubins, unit = on_gpu.compiled_cubins(cwd, emission, nvcc, context)
            units = (*made_from.units, unit)
            made_from = BuildPlan({**made_from.files, **cubins}, units)
        made, result = build_library(
            cwd, made_from.files, made_from.units, emission.name, context,
            lambda done, total: diagnostics.progress("compiling C", done, total), repeatable=keep,
            data_in_archive=not emission.interface.weights_in, begun=early.begun if early else None,
        )  # fmt: skip
        if "js" in request.options.wrappers:
            exports = wasm_exports(emission.name, bool(emission.interface.states))
            module = link_wasm(compiler, exports, f"lib{emission.name}.a",
                               f"{emission.name}.wasm", cwd, log=log)  # fmt: skip
            made = {**made, f"js/{emission.name}.wasm": module}
    files: dict[str, Content | Path] = {**made_from.files}
    files |= _large_files(made, cwd, made_from.files, keep)
    if library := emission.interface.weights_in:
        del files[f"{emission.name}_weights.bin"]
        at = result.data_at
        if at is None:
            at = place_in(made[library], emission.blob)
        files[f"{emission.name}_weights.S"] = included_weights(
            emission.name, in_library(library), alignment=request.target.alignment,
            part=(at, emission.blob.size), order=request.target.byte_order,
        ).encode()  # fmt: skip
    if request.options.wheel:
        files |= wheel_of(emission.name, files, compiler)
    return Built(files, result, cache.stats, context.flags)


def wheel_of(
    name: str, files: Mapping[str, Content | Path], compiler: Compiler
) -> dict[str, bytes]:
    """Return the wheel of an output folder's files."""
    wanted = (f"{module_name(name)}.py", shared_library(compiler, name), f"{name}_weights.bin")
    used = wanted if f"{name}_weights.S" not in files else wanted[:2]
    return wheel_files(
        name, {path: _bytes(files[path]) for path in used if path in files}, compiler
    )


def _bytes(content: Content | Path) -> bytes:
    if isinstance(content, Blob):
        whole = io.BytesIO()
        content.write(whole)
        return whole.getvalue()
    return content if isinstance(content, bytes) else content.read_bytes()


def _large_files(
    made: Mapping[str, Path], cwd: Path, files: Mapping[str, Content], keep: bool
) -> Mapping[str, Content | Path]:
    """Return what is taken from the build's folder: the libraries and the blob they include."""
    if keep:  # no file of the output may be one with what is kept
        return {path: file.read_bytes() for path, file in made.items()}
    blobs = (path for path in files if path.endswith("_weights.bin") and (cwd / path).is_file())
    return {**made, **{path: cwd / path for path in blobs}}
