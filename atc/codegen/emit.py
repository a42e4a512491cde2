"""Renders a program and its memory plan to the files of the deployable; touches no disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from atc import __version__
from atc.backends.kernel import Candidate, shown_params
from atc.backends.kernel_source import FAILURES, KernelSource
from atc.backends.render.own_math import HEADER as OWN_MATH
from atc.backends.render.simplify import simplified
from atc.backends.target import Target
from atc.backends.toolchain.nvcc import FLAGS
from atc.codegen.gpu import make_gpu
from atc.codegen.hooks import observed
from atc.codegen.interface import Port
from atc.codegen.prefault import PAGE, prefault_ranges
from atc.codegen.profile import profiled_calls
from atc.codegen.project_options import ProjectOptions
from atc.codegen.runtime_source import runtime_source
from atc.codegen.sanity import checked
from atc.codegen.schedule import Plan, Schedule, make_schedule
from atc.codegen.selftest import formula, node_sums
from atc.codegen.shape_tables import make_dynamic, make_shape_profiles
from atc.codegen.sources import gpu_files, kernel_tree
from atc.codegen.template_values import TemplateValues
from atc.files.blob import Blob
from atc.files.byte_order import in_byte_order
from atc.files.mapped import reading
from atc.ir.graph import Array
from atc.ir.ops.external import External
from atc.ir.text import node_text
from atc.memory.arena import Arena
from atc.names import c_string, comment, network_identifier
from atc.program.placement import uses_device
from atc.program.states import memory_of, state_type
from atc.program.steps import Program, calls, has_bounded_loops
from atc.templates import render, verbatim

_LONGEST = 1000
"""Characters of a sequence's name that are kept: no C string gets longer than C99 allows."""


@dataclass(frozen=True)
class Emission:
    """The files of the generated project by path, and what the build and the report need."""

    files: Mapping[str, bytes]
    name: str
    kernels: tuple[KernelSource, ...]
    blob: Blob
    """The weights."""
    interface: TemplateValues = field(repr=False)
    """What the templates of the public interface were given."""
    offsets: Mapping[str, int] = field(default_factory=dict)
    """Where each constant begins in the weights."""
    constants: Mapping[int, str] = field(default_factory=dict)
    """What begins where in the weights, of the constants of all plans."""
    threads: int = 1
    """The most partitions, of a call or of the network, that may run at the same time."""
    on_gpu: bool = False
    """Whether a GPU runs any of its kernels."""

    @cached_property
    def weights(self) -> bytes:
        """The weights as a whole: a copy."""
        return b"".join(self.blob.parts)


@dataclass(frozen=True)
class _Library:
    """The programs of a library, and where their constants lie in its weights."""

    main: Plan
    """The only program, that of all shapes that have none of their own, or else one of these."""
    fixed: tuple[Plan, ...]
    """Those of listed shapes."""
    open: bool
    """Whether the main program is none of these."""
    blob: Blob

    @property
    def plans(self) -> tuple[Plan, ...]:
        """All that are run."""
        return (*self.fixed, *[self.main] * self.open)

    @property
    def programs(self) -> list[Program]:
        """Their programs."""
        return [plan.program for plan in self.plans]

    @cached_property
    def kernels(self) -> tuple[KernelSource, ...]:
        """The kernels of all."""
        return tuple(dict.fromkeys(c.source for p in self.programs for c in calls(p.steps)))

    @property
    def has_arena(self) -> bool:
        """Whether any program has values between its calls."""
        arenas = [plan.arena for plan in self.plans]
        return any(a.offsets or a.scratch or a.io for a in arenas)

    @property
    def arena_size(self) -> int:
        """The bytes that the largest needs."""
        return max(plan.arena.plan.size for plan in self.plans)


def emit(
    program: Program,
    arena: Arena,
    target: Target,
    options: ProjectOptions,
    shape_profiles: Sequence[tuple[Program, Arena]] = (),
) -> Emission:
    """Return the generated project.

    The weights themselves, which the project's build needs as `<name>_weights.bin` (and `.S`),
    are left to the caller.

    With `shape_profiles` the library runs several programs of one model for other shapes; they
    share kernels and weights. `program` is one of them, or what runs all other shapes of its
    ranges.
    """
    options = replace(options, name=network_identifier(options.name))
    library = _planned(program, arena, target, options.weights.before, shape_profiles)
    fixed = [make_schedule(plan, options.name) for plan in library.fixed]
    values = _template_values(library, fixed, target, options)
    runs = _runs(values, fixed)
    values = replace(values, sources=[*runs, *values.sources])
    texts = {**_library_texts(values, library.kernels, target), **runs}
    texts |= {} if options.library_alone else project_texts(values)
    if any(isinstance(c.node.op, External) for p in library.programs for c in calls(p.steps)):
        texts["include/atc_external.h"] = verbatim("project/atc_external.h")
    return Emission(
        {path: text.encode() for path, text in texts.items()}, values.name, library.kernels,
        library.blob, values, library.main.weights,
        {at: n for p in library.plans[::-1] for n, at in [*p.weights.items()][::-1]},
        values.threads, values.gpu is not None,
    )  # fmt: skip


def _planned(
    program: Program, arena: Arena, target: Target, before: Blob,
    shape_profiles: Sequence[tuple[Program, Arena]],
) -> _Library:  # fmt: skip
    """Lay out the weights of all programs; see `emit`."""
    alone = all(p is not program for p, _ in shape_profiles)
    planned = [*shape_profiles, *[(program, arena)] * alone]
    places, blob = _layout_weights([p for p, _ in planned], target, before)
    plans = [Plan(*each, at) for each, at in zip(planned, places, strict=True)]
    main = next(plan for plan in plans if plan.program is program)
    return _Library(main, tuple(plans[: len(shape_profiles)]), alone, blob)


def _template_values(
    library: _Library, fixed: Sequence[Schedule], target: Target, options: ProjectOptions
) -> TemplateValues:
    """Return what the templates are given; `fixed` are the schedules of listed shapes."""
    name, around, kernels = options.name, options.instrumentation, library.kernels
    main, programs = library.main, library.programs
    program, arena = main.program, main.arena
    schedule = make_schedule(main, name, around)
    ports = (*schedule.inputs, *schedule.outputs)
    if not library.open:
        ports = _widest(ports, programs)
    gpu = None
    if any(map(uses_device, programs)):
        streams = options.gpu.copy_streams
        gpu = make_gpu(library.plans, kernels, name, target.device, around, streams)
        schedule = gpu.schedule
    has_arena = gpu.hybrid if gpu else library.has_arena
    profiles = None
    if library.fixed:
        profiles = make_shape_profiles(library.fixed, name, hosted=gpu is None or gpu.hybrid)
    ranges = make_dynamic(program, arena, schedule.uses) if library.open else None
    sources = [k.path for k in kernels if not k.launch]
    sources += [f"src/{f}" for f in (gpu_files(target) if gpu else ()) if f.endswith(".c")]
    # Empty values need an address too, hence never a size of 0 with values.
    least = target.alignment if has_arena or (gpu and (ranges or profiles)) else 0
    blob, external, once_from = library.blob, options.weights.external, options.weights.once_from
    once = not external and once_from is not None and blob.size >= once_from
    selftest, checks = options.selftest, around.checks
    return TemplateValues(
        name=name, model=comment(options.model), target=target.name, bare=target.bare,
        order=target.byte_order, build_info=c_string(_build_info(target, options)),
        cflags=target.cflags, checks=target.cpu_checks, tiles=any(k.tiles for k in kernels),
        as_text=not target.includes_files,
        own_math=any(OWN_MATH in k.headers for k in kernels), deterministic=target.deterministic,
        sources=sources, kernels=_users(programs, kernels), net=schedule,
        inputs=ports[: len(schedule.inputs)], outputs=ports[len(schedule.inputs) :],
        composites=_composites(program), failures=_failures(kernels), shape_profiles=profiles,
        ranges=ranges, states=_states(program, arena), io=_io_places(program, arena),
        bounded_loops=any(map(has_bounded_loops, programs)),
        arena_size=max(library.arena_size, least) if has_arena else least,
        alignment=target.alignment,
        touches_arena=has_arena and not target.bare and gpu is None
        and library.arena_size >= 2 * PAGE,
        touched=() if target.bare else prefault_ranges(library.plans),
        weights_size=blob.size, weights_hash=blob.checksum if external or selftest else 0,
        weights_in=f"lib{name}.so" if once else "",
        external=external and blob.size > 0,
        split=external and options.weights.split and blob.size > 0,
        threads=options.threads if any(s.tasks for s in (schedule, *fixed)) else 1,
        step=options.step,
        profile=profiled_calls(program) if around.timed else (),
        hooks=observed(program) if around.observed else None, log=around.logged,
        sanity=checked(program, arena, checks) if checks else None,
        selftest=selftest.outputs if selftest else (),
        nodes=node_sums(program, arena, selftest) if selftest and options.step else (),
        formulas=[formula(p) for p in schedule.inputs] if selftest else [],
        starter=options.starter, max_ram=options.max_ram, max_rom=options.max_rom, gpu=gpu,
        device_id=options.gpu.device_id, gpu_pool=options.gpu.pool,
        gpu_kept_free=options.gpu.kept_free,
    )  # fmt: skip


def _runs(values: TemplateValues, fixed: Sequence[Schedule]) -> dict[str, str]:
    """Return the sources of what runs listed shapes on the host, and of the self-test."""
    texts: dict[str, str] = {}
    known, profiles = values.values(), values.shape_profiles
    for k, run in enumerate(profiles.runs if profiles and values.gpu is None else ()):
        texts[f"src/{run.file}"] = render("project/shape_profile.c.j2", {
            **known, "shape_profile": run, "net": fixed[k], "inputs": fixed[k].inputs,
            "outputs": fixed[k].outputs, "dynamic": None, "ranges": None, "arena_size": run.arena,
        })  # fmt: skip
    if values.selftest:
        text = simplified(render("project/selftest.c.j2", known))
        texts[f"src/{values.name}_selftest.c"] = text
    return texts


def _widest(ports: Sequence[Port], programs: Sequence[Program]) -> tuple[Port, ...]:
    """Return the ports with the largest extents of all programs."""
    sides = [[p.types[v].shape for v in (*p.inputs, *p.outputs)] for p in programs]
    widest = []
    for port, shapes in zip(ports, zip(*sides, strict=True), strict=True):
        columns = [*zip(*shapes, strict=True)]
        shape = tuple(map(max, columns))
        ends = tuple((min(c), max(c)) for c in columns)
        type_ = replace(port.type, shape=shape)
        widest.append(replace(port, type=type_, ends=ends))
    return tuple(widest)


def _io_places(program: Program, arena: Arena) -> dict[str, list[int]]:
    """Return where in the arena there is room for the inputs and for the outputs; {}: none."""
    if not arena.io:
        return {}
    sides = {"input": program.inputs, "output": program.output_bases}
    return {side: [arena.io[v] for v in values] for side, values in sides.items()}


def _states(program: Program, arena: Arena) -> list[dict[str, object]]:
    """Return where in the arena each state lies, as the templates write it."""
    found = []
    for state in program.states:
        memory, begin = memory_of(program, state), arena.states[state.value]
        found.append({
            "text": f"{comment(state.value)} {state_type(program, state)}", "offset": begin,
            "bytes": memory.kept, "end": begin + memory.size, "memory": memory,
        })  # fmt: skip
    return found


def _composites(program: Program) -> list[dict[str, object]]:
    """Return the model's sequences and optionals as the templates write them."""
    return [
        {
            "name": c_string(b.name[:_LONGEST]), "output": int(b.side == "output"),
            "present": 2 if b.is_map else int(b.count >= 0), "first": b.first,
            "count": max(b.count, 0),
        }
        for b in program.composites
    ]  # fmt: skip


def _build_info(target: Target, options: ProjectOptions) -> str:
    file = comment(options.model).replace(";", "_").replace("=", "_")
    return (
        f"atc={__version__}; target={target.name}; model={file}; "
        f"model_sha256={options.model_hash}; {options.contract}"
    ).removesuffix("; ")


def _failures(kernels: Iterable[KernelSource]) -> list[tuple[str, int, str]]:
    """Return name, number and meaning of the statuses that these kernels may end a run with."""
    given = {name for kernel in kernels for name in kernel.fallible}
    return [(name, *FAILURES[name]) for name in FAILURES if name in given]


def _library_texts(
    values: TemplateValues, kernels: Sequence[KernelSource], target: Target
) -> dict[str, str]:
    """Return what the library is made of, less the weights."""
    name, known = values.name, values.values()
    own = {"src/gpu_own.h": render("cuda/project/gpu_own.h.j2", known)} if values.gpu else {}
    return {
        f"include/{name}.h": render("project/net.h.j2", known),
        f"src/{name}.c": simplified(render("project/net.c.j2", known)),
        f"src/{name}_kernels.h": render("project/kernels.h.j2", known),
        **own,
        **kernel_tree(kernels, target),
    }


def project_texts(values: TemplateValues) -> dict[str, str]:
    """Return what a user of the library starts from: build files, an example, a Python module."""
    name, known = values.name, values.values()
    files = {
        "CMakeLists.txt": render("project/CMakeLists.txt.j2", known),
        f"cmake/{name}Config.cmake.in": render("project/config.cmake.j2", known),
        f"cmake/{name}.pc.in": render("project/pkgconfig.pc.j2", known),
        "example/main.c": render("project/main.c.j2", known),
        "README.md": render("project/README.md.j2", known),
    }
    if values.gpu and not values.gpu.emulated and not values.parts:
        text = render("cuda/project/kernels.cmake.j2", {**known, "flags": FLAGS})
        files[f"cmake/{name}_kernels.cmake"] = text
    if not values.bare:  # what Python can load
        runtime = runtime_source(bool(values.profile))
        text = render("project/module.py.j2", {**known, "runtime": runtime})
        files[f"{known['module']}.py"] = text
    if values.weights_size and not values.external and not values.as_text:
        files[f"cmake/{name}_weights.c.in"] = render("project/weights.c.j2", {
            "name": name, "alignment": values.alignment, "words": "@WORDS@",
            "lines": ["@LINES@"], "order": values.order,
        })  # fmt: skip
    return files


def _layout_weights(
    programs: Sequence[Program], target: Target, before: Blob
) -> tuple[list[dict[str, int]], Blob]:
    """Return each program's constants with their offsets, and the blob, in the order of use.

    Equal bytes lie once, whosever they are. The blob's parts are constants, each with what fills
    it up to a multiple of the target's alignment.
    """
    seen: dict[tuple[int, bytes], list[tuple[Array, int]]] = {}
    parts: list[bytes | memoryview] = [*before.parts]
    at = 0
    for part, filling in zip(parts[::2], parts[1::2], strict=True):
        data = np.frombuffer(part, np.uint8)
        seen.setdefault((data.size, _sample(data)), []).append((data, at))
        at += len(part) + len(filling)
    return [_placed(p, seen, parts, target) for p in programs], Blob(tuple(parts))


def _placed(
    program: Program,
    seen: dict[tuple[int, bytes], list[tuple[Array, int]]],
    parts: list[bytes | memoryview],
    target: Target,
) -> dict[str, int]:
    """Add a program's constants to the parts of a blob; returns their offsets."""
    offsets: dict[str, int] = {}
    size = sum(map(len, parts))
    for name in _in_order(program):
        with reading(program.constants[name]):
            data = in_byte_order(program.constants[name], target.big_endian)
            alike = seen.setdefault((data.size, _sample(data)), [])
            found = next((at for other, at in alike if np.array_equal(other, data)), None)
        if found is None:
            found = size
            alike.append((data, found))
            padded = max(-(-data.size // target.alignment), 1) * target.alignment
            parts += [data.data, bytes(padded - data.size)]
            size += padded
        offsets[name] = found
    return offsets


def _in_order(program: Program) -> list[str]:
    """Return the largest constants of all calls in the order of use, then the others.

    So a kernel that asks for lines ahead of those it reads asks for the next kernel's first ones.
    """
    largest, others = dict[str, None](), dict[str, None]()
    for call in calls(program.steps):
        own = [a for a in call.arguments if a in program.constants]
        if own:
            largest.setdefault(max(own, key=lambda a: program.constants[a].nbytes))
            others.update(dict.fromkeys(own))
    return [*largest, *(name for name in others if name not in largest)]


def _sample(data: Array) -> bytes:
    """Return some bytes of many, which distinguish most arrays without reading all of them."""
    return bytes(data[:: max(data.size // 1024, 1)])


def _users(programs: Sequence[Program], kernels: Sequence[KernelSource]) -> list[dict[str, object]]:
    """Return each kernel's declaration and the model's nodes that call it."""
    users: dict[str, list[str]] = {}
    candidates: dict[str, list[Candidate]] = {}
    for call in (c for p in programs for c in calls(p.steps)):
        origin = call.node.origin[0] if call.node.origin else node_text(call.node)
        users.setdefault(call.source.symbol, []).append(comment(origin, 40))
        candidates.setdefault(call.source.symbol, []).append(call.choice.candidate)
    return [
        {
            "prototype": k.prototype, "symbol": k.symbol, "launch": k.launch,
            "label": _common_label(candidates[k.symbol]), "users": _listed(users[k.symbol]),
        }
        for k in kernels
    ]


def _common_label(candidates: Sequence[Candidate]) -> str:
    """Return a kernel with the parameters that all the candidates have which share it."""
    first, *others = (shown_params(c.params).items() for c in candidates)
    inner = ", ".join(f"{k}={v}" for k, v in sorted(first) if all((k, v) in o for o in others))
    name = candidates[0].kernel.name
    return f"{name}({inner})" if inner else name


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"
