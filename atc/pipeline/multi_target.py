"""A library for several targets, `--target=x86-64-avx512,x86-64-avx2,c99`.

Each target's code is a compilation and a project of its own, in `targets/`. The library hands its
calls on to the first of them that the processor has the instructions of (`multi_target.c.j2`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from atc.backends.target import Target
from atc.backends.toolchain.compiler import STRIP, THREADS, shared_library
from atc.backends.toolchain.compiling import Job, compile_many
from atc.backends.toolchain.linking import archive_static, extract_archive, link_shared
from atc.build.library import library_flags, work_folder
from atc.build.output_folder import MANIFEST, Content, network_name, write_tree
from atc.codegen.emit import Emission, project_texts
from atc.codegen.gpu_values import Gpu
from atc.codegen.template_values import TemplateValues
from atc.diagnostics import Diagnostics
from atc.errors import OptionError
from atc.names import LIMIT
from atc.options.options import Options
from atc.pipeline.held import held_bytes
from atc.pipeline.pipeline import Compilation, Compile
from atc.pipeline.request import Request
from atc.pipeline.writing import wheel_of
from atc.templates import render

_ALONE = (
    "profile",
    "hooks",
    "runtime_log",
    "sanity_check",
    "external_weight",
    "c_opr_lib",
    "fast_run_algo_policy",
    "selftest",
    "step",
    "starter",
    "wrappers",
    "package",
)
"""Options of libraries for one target."""

_STATE = 256
"""Bytes of a context's state without threads and dynamic shapes; if they are too few, the C
compiler says so."""


@dataclass(frozen=True)
class Part:
    """The network of one target as the templates write it; `weights` are bytes."""

    index: int
    name: str
    target: str
    folder: str
    threads: int
    weights: int
    arena_size: int
    gpu: Gpu | None
    """What templates know of a GPU; None where the processor computes all."""
    alignment: int

    @property
    def upper(self) -> str:
        """The prefix of its macros."""
        return self.name.upper()


def multi_target(inner: Compile) -> Compile:
    """Wrap a compilation: for several targets, one for each and a library that chooses.

    The result is the compilation for the first of them, as the folder's.
    """

    def compile(request: Request, diagnostics: Diagnostics) -> Compilation:
        if len(request.targets) == 1:
            return inner(request, diagnostics)
        return _compile_all(inner, request, diagnostics)

    return compile


def _compile_all(inner: Compile, request: Request, diagnostics: Diagnostics) -> Compilation:
    options = request.options
    if options.io == "arena":
        raise OptionError("--io=arena and several targets can't be combined", where="--io",
                          hint="compile for one target", code="E10047")  # fmt: skip
    for name in _ALONE:
        if getattr(options, name, None):
            raise OptionError(
                f"--{name} and several targets can't be combined", where=f"--{name}",
                hint="compile for one target", code="E10047",
            )  # fmt: skip
    name = network_name(options.output)
    with work_folder(options.build_dir) as cwd:
        done = []
        for target in request.targets:
            diagnostics.stage(f"for {target.name}")
            done.append(inner(_of_one(request, target, cwd, name), diagnostics))
            size = done[-1].arena.plan.size
            size += held_bytes(done[-1].program, request.decisions.held)
            if 0 < options.memory_budget < size and _beside_swaps(request, target):
                diagnostics.warn(
                    f"the part for {target.name} needs {size} bytes, more than "
                    f"{options.asked('memory_budget')}: without a GPU nothing is swapped"
                )
        parts = tuple(_part(k, each) for k, each in enumerate(done))
        diagnostics.stage("joining the targets")
        texts = _texts(name, done[0].emission, parts)
        texts |= {f"{name}.report.json": _report(name, done)}
        files = {path: text.encode() for path, text in texts.items()}
        inside = {
            f"{part.folder}/{path}": file
            for part, each in zip(parts, done, strict=True) for path, file in _kept(each)
        }  # fmt: skip
        made: dict[str, Content | Path] = {**files, **inside}
        made |= _build(cwd, files, name, done, options, diagnostics)
        if options.wheel:
            made |= wheel_of(name, made, done[0].compiler)
        write_tree(made, options.output)
    return replace(done[0], folder=options.output, name=name, request=request)


def _of_one(request: Request, target: Target, cwd: Path, name: str) -> Request:
    """Return the request for one target's network."""
    suffix = target.name.replace("-", "_")
    own = f"{name[: LIMIT - len(suffix) - 1]}_{suffix}"
    dump = request.options.dump
    alone = replace(request, decisions=replace(request.decisions, joined=True))
    made = alone.for_target(target).with_options(
        output=cwd / "targets" / own, wheel=False, dump=None if dump is None else dump / target.name
    )
    if not _beside_swaps(request, target):
        return made
    enough = max(request.options.memory_budget, request.options.recompute_until)
    return made.with_options(gpu_swap=False, memory_budget=0, recompute_until=enough)


def _beside_swaps(request: Request, target: Target) -> bool:
    """Return whether a target is the host of a GPU whose values may be swapped to its memory.

    The budget is the GPU's then: what is beyond it goes to the host's memory, where all is here.
    """
    return request.options.gpu_swap and not target.device and any(
        each.device for each in request.targets
    )


def _part(index: int, done: Compilation) -> Part:
    own = done.emission.interface
    return Part(
        index, done.name, done.target.name, f"targets/{done.name}", done.emission.threads,
        done.emission.blob.size, own.arena_size, own.gpu, done.target.alignment,
    )  # fmt: skip


def _texts(name: str, first: Emission, parts: Sequence[Part]) -> dict[str, str]:
    """Return the project around the parts'."""
    threads = max(part.threads for part in parts)
    values = replace(
        first.interface, name=name, target=", ".join(part.target for part in parts),
        gpu=next((p.gpu for p in parts if p.gpu), None), cflags=(), checks=(), tiles=False,
        sources=(), weights_size=0, weights_in="", threads=threads, parts=parts,
        arena_size=max(part.arena_size for part in parts),
        alignment=max(part.alignment for part in parts),
        chosen_state=_state_size(first.interface, threads), build_info=_build_info(first, parts),
    )  # fmt: skip
    return {
        f"include/{name}.h": render("project/net.h.j2", values.values()),
        f"src/{name}.c": render("project/multi_target.c.j2", values.values()),
        **project_texts(values),
    }


def _state_size(values: TemplateValues, threads: int) -> int:
    """Return bytes that hold the context of any part."""
    numbers = len(values.states)
    if ranges := values.ranges:
        numbers += len(ranges.sizes) + ranges.count + len(ranges.lengths)
    return _STATE + 2 * 8 * numbers + (1024 * threads if threads > 1 else 0)


def _build_info(first: Emission, parts: Sequence[Part]) -> str:
    """Return the first part's text as a C string, with all targets."""
    return first.interface.build_info.replace(
        f"target={parts[0].target};", f"target={','.join(part.target for part in parts)};", 1
    )


def _report(name: str, done: Sequence[Compilation]) -> str:
    """Return the first target's report under the folder's name, and where all targets' are."""
    paths = {each.target.name: f"targets/{each.name}/{each.name}.report.json" for each in done}
    return json.dumps({**done[0].report, "name": name, "targets": paths}, indent=1) + "\n"


def _kept(done: Compilation) -> Iterator[tuple[str, Path]]:
    """Yield the files of a target's project, less what only a library of its own needs."""
    libraries = {shared_library(done.compiler, done.name), f"lib{done.name}.a"}
    left_out = {*libraries, MANIFEST, "README.md"}
    for file in sorted(done.folder.rglob("*")):
        path = file.relative_to(done.folder).as_posix()
        if file.is_file() and path not in left_out and not path.endswith(".py"):
            yield path, file


def _build(
    cwd: Path, files: Mapping[str, bytes], name: str, done: Sequence[Compilation],
    options: Options, diagnostics: Diagnostics,
) -> dict[str, Path]:  # fmt: skip
    """Compile what chooses and join it with the parts' libraries; return both libraries."""
    compiler, target = done[0].compiler, replace(done[0].target, cflags=())
    source = f"src/{name}.c"
    for path in (source, f"include/{name}.h"):
        (cwd / path).parent.mkdir(exist_ok=True)
        (cwd / path).write_bytes(files[path])
    flags = (*library_flags(compiler, target), *options.compiler_flags)
    flags += (THREADS,) if any(each.emission.threads > 1 for each in done) else ()
    compile_many([Job(compiler, flags, source, cwd)], 1, log=diagnostics.process)
    archives = [f"targets/{each.name}/lib{each.name}.a" for each in done]
    linking = (*flags, *[STRIP] * options.strip)
    shared, static, own = shared_library(compiler, name), f"lib{name}.a", f"{source}.o"
    link_shared(compiler, linking, [own, *archives], shared, cwd, log=diagnostics.process)
    members = [
        member for archive in archives
        for member in extract_archive(compiler, archive, cwd, log=diagnostics.process)
    ]  # fmt: skip
    archive_static(compiler, [own], static, cwd, members, log=diagnostics.process)
    return {shared: cwd / shared, static: cwd / static}
