"""Renders a program and its memory plan to the files of the deployable; touches no disk."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np

from atc import __version__
from atc.backends.kernel_source import FAILURES, KernelSource
from atc.backends.render.own_math import HEADER as OWN_MATH
from atc.backends.render.simplify import simplified
from atc.backends.target import Target
from atc.backends.toolchain.nvcc import FLAGS
from atc.codegen.gpu import Plan, make_gpu
from atc.codegen.hooks import observed
from atc.codegen.interface import Port
from atc.codegen.prefault import PAGE, prefault_ranges
from atc.codegen.profile import profiled_calls
from atc.codegen.sanity import checked
from atc.codegen.schedule import make_schedule
from atc.codegen.selftest import Expected, formula, node_sums
from atc.codegen.shape_tables import make_dynamic, make_shape_profiles
from atc.codegen.sources import gpu_files, kernel_tree
from atc.codegen.template_values import TemplateValues
from atc.files.blob import NO_WEIGHTS, Blob
from atc.files.byte_order import in_byte_order
from atc.ir.graph import Array
from atc.ir.ops.external import External
from atc.ir.text import node_text
from atc.memory.arena import Arena
from atc.names import c_string, comment, network_identifier
from atc.options.values import Checks
from atc.program.placement import uses_device
from atc.program.steps import Program, calls
from atc.runtime import device as runtime_device
from atc.runtime import interface as runtime_interface
from atc.runtime import library as runtime_library
from atc.runtime import network as runtime_network
from atc.runtime import profile as runtime_profile
from atc.runtime import queue as runtime_queue
from atc.runtime import shown as runtime_shown
from atc.runtime import values as runtime_values
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
    threads: int = 1
    """The most pieces, of a call or of the network, that may run at the same time."""
    on_gpu: bool = False
    """Whether a GPU runs any of its kernels."""

    @cached_property
    def weights(self) -> bytes:
        """The weights in one piece: a copy."""
        return b"".join(self.blob.parts)


def emit(
    program: Program,
    arena: Arena,
    target: Target,
    *,
    name: str,
    model: str,
    model_hash: str,
    options: str,
    external_weights: bool = False,
    split_weights: bool = False,
    profile: bool = False,
    hooks: bool = False,
    log: bool = False,
    checks: Checks | None = None,
    threads: int = 1,
    device_id: int = 0,
    gpu_pool: str = "",
    gpu_kept_free: int = 0,
    gpu_copy_streams: int = 1,
    before: Blob = NO_WEIGHTS,
    shape_profiles: Sequence[tuple[Program, Arena]] = (),
    selftest: Expected | None = None,
    starter: bool = False,
    step: bool = False,
    max_ram: int = 0,
    max_rom: int = 0,
    once_from: int | None = None,
    library_alone: bool = False,
) -> Emission:
    """Return the generated project. `name` is the prefix of everything, `model` a file name.

    With `library_alone` it has the library's sources and nothing that a user starts from.

    With `profile` every kernel call is timed, with `hooks` an observer sees its values, with `log`
    it is logged on standard error, with `checks` they are made around it; without, nothing of that
    is in the code.

    The weights themselves, which the project's build needs as `<name>_weights.bin` (and `.S`),
    are left to the caller. `device_id` is the GPU that `init` takes, of a network for one, which
    reserves a `gpu_pool` of so many bytes (or "all"), leaves others `gpu_kept_free` percent, and
    copies inputs and outputs on up to `gpu_copy_streams` streams. A
    network without weights is never `external_weights`. With
    `split_weights` they are files in a folder `<name>_weights`, whose contents follow each other.

    With a `selftest` the library compares its outputs with those, and if a run can be done in parts
    the results of nodes, too; `starter` says that there is a program for a board beside it, `step`
    that a run can be done in parts. Its header holds `max_ram` and `max_rom` bytes, if not 0.

    From `once_from` bytes on, the weights are to lie in the shared library alone, where the other
    files find them.

    The weights begin with those that lie `before` them, of other networks of a library: what they
    hold isn't added twice.

    With `shape_profiles` the library runs several programs of one model for other shapes; they
    share kernels and weights. `program` is one of them, or what runs all other shapes of its
    ranges.
    """
    name = network_identifier(name)
    general = bool(shape_profiles) and all(p is not program for p, _ in shape_profiles)
    own = [program] if general or not shape_profiles else []
    programs = [*(p for p, _ in shape_profiles), *own]
    kernels = tuple(dict.fromkeys(c.source for p in programs for c in calls(p.steps)))
    places, blob = _layout_weights(programs, target, before)
    offsets = places[programs.index(program)]
    schedule = make_schedule(
        program, arena, offsets, name, profile, hooks, checks is not None, log
    )  # fmt: skip
    once = not external_weights and once_from is not None and blob.size >= once_from
    ports = (*schedule.inputs, *schedule.outputs)
    fixed = [make_schedule(*p, at, name) for p, at in zip(shape_profiles, places, strict=False)]
    if shape_profiles and not general:
        ports = _widest(ports, programs)
    planned = [*(a for _, a in shape_profiles), *([arena] if general or not shape_profiles else [])]
    has_arena = any(a.offsets or a.scratch or a.io for a in planned)
    gpu = None
    if any(map(uses_device, programs)):
        plans = tuple(map(Plan, programs, planned, places))
        gpu = make_gpu(
            plans, kernels, name, target.device, profile, hooks, checks is not None, log,
            gpu_copy_streams,
        )  # fmt: skip
        has_arena, schedule = gpu.hybrid, gpu.schedule
    hosted = gpu is None or gpu.hybrid
    profiles = make_shape_profiles(shape_profiles, name, hosted) if shape_profiles else None
    ranges = (
        None if shape_profiles and not general else make_dynamic(program, arena, schedule.uses)
    )
    sources = [k.path for k in kernels if not k.launch]
    sources += [f"src/{f}" for f in (gpu_files(target) if gpu else ()) if f.endswith(".c")]
    values = TemplateValues(
        name=name, model=comment(model), target=target.name, bare=target.bare,
        order=target.byte_order,
        build_info=c_string(_build_info(target, model, model_hash, options)),
        cflags=target.cflags, checks=target.cpu_checks, tiles=any(k.tiles for k in kernels),
        as_text=not target.includes_files,
        own_math=any(OWN_MATH in k.headers for k in kernels), deterministic=target.deterministic,
        sources=sources, kernels=_users(programs, kernels), net=schedule,
        inputs=ports[: len(schedule.inputs)], outputs=ports[len(schedule.inputs) :],
        composites=_composites(program), failures=_failures(kernels), shape_profiles=profiles,
        ranges=ranges, states=_states(program, arena), io=_io_places(program, arena),
        # Empty values need an address too, hence never a size of 0 with values.
        arena_size=max(max(a.plan.size for a in planned), target.alignment) if has_arena
        else target.alignment if gpu and (ranges or profiles) else 0,
        alignment=target.alignment,
        touches_arena=has_arena and not target.bare and gpu is None
        and max(a.plan.size for a in planned) >= 2 * PAGE,
        touched=() if target.bare else prefault_ranges(programs, places),
        weights_size=blob.size,
        weights_hash=blob.checksum if external_weights or selftest else 0,
        weights_in=f"lib{name}.so" if once else "",
        external=external_weights and blob.size > 0,
        split=external_weights and split_weights and blob.size > 0,
        threads=threads if any(s.tasks for s in (schedule, *fixed)) else 1, step=step,
        profile=profiled_calls(program) if profile else (),
        hooks=observed(program) if hooks else None, log=log,
        sanity=checked(program, arena, checks) if checks else None,
        selftest=selftest.outputs if selftest else (),
        nodes=node_sums(program, arena, selftest) if selftest and step else (),
        formulas=[formula(p) for p in schedule.inputs] if selftest else [],
        starter=starter, max_ram=max_ram, max_rom=max_rom, gpu=gpu, device_id=device_id,
        gpu_pool=gpu_pool, gpu_kept_free=gpu_kept_free,
    )  # fmt: skip
    runs: dict[str, str] = {}
    for k, run in enumerate(profiles.runs if profiles and gpu is None else ()):
        plan = fixed[k]
        runs[f"src/{run.file}"] = render("project/shape_profile.c.j2", {
            **values.values(), "shape_profile": run, "net": plan, "inputs": plan.inputs,
            "outputs": plan.outputs,
            "dynamic": None, "ranges": None, "arena_size": run.arena,
        })  # fmt: skip
    if selftest:
        runs[f"src/{name}_selftest.c"] = simplified(
            render("project/selftest.c.j2", values.values())
        )
    values = replace(values, sources=[*runs, *sources])
    texts = {**_library(values, kernels, target), **runs}
    texts |= {} if library_alone else project_texts(values)
    if any(isinstance(c.node.op, External) for p in programs for c in calls(p.steps)):
        texts["include/atc_external.h"] = verbatim("project/atc_external.h")
    files = {path: text.encode() for path, text in texts.items()}
    return Emission(
        files, name, kernels, blob, values, offsets, values.threads, gpu is not None
    )


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
    return [
        {
            "text": f"{comment(s.value)} {program.types[s.value]}", "offset": arena.states[s.value],
            "bytes": program.types[s.value].nbytes,
            "end": arena.states[s.value] + program.types[s.value].nbytes,
        }
        for s in program.states
    ]  # fmt: skip


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


def _build_info(target: Target, model: str, model_hash: str, options: str) -> str:
    file = comment(model).replace(";", "_").replace("=", "_")
    return (
        f"atc={__version__}; target={target.name}; model={file}; model_sha256={model_hash}; "
        f"{options}"
    ).removesuffix("; ")


def _failures(kernels: Iterable[KernelSource]) -> list[tuple[str, int, str]]:
    """Return name, number and meaning of the statuses that these kernels may end a run with."""
    given = {name for kernel in kernels for name in kernel.fallible}
    return [(name, *FAILURES[name]) for name in FAILURES if name in given]


def _library(
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
        runtime = _runtime_source(bool(values.profile))
        text = render("project/module.py.j2", {**known, "runtime": runtime})
        files[f"{known['module']}.py"] = text
    if values.weights_size and not values.external and not values.as_text:
        files[f"cmake/{name}_weights.c.in"] = render("project/weights.c.j2", {
            "name": name, "alignment": values.alignment, "words": "@WORDS@",
            "lines": ["@LINES@"], "order": values.order,
        })  # fmt: skip
    return files


@cache
def _runtime_source(profile: bool) -> str:
    """Return the modules of `atc.runtime` as one, less their docstrings and `from __future__`."""
    parts = [
        runtime_values, runtime_interface, runtime_library, runtime_device, runtime_queue,
        runtime_shown, runtime_network,
    ]  # fmt: skip
    parts += [runtime_profile] if profile else []
    lines = [
        inspect.getsource(module).partition("from __future__ import annotations\n")[2].splitlines()
        for module in parts
    ]
    outside, for_types = ("import ", "from "), ("if TYPE_CHECKING:", "    from ")
    imports = {x for part in lines for x in part if x.startswith(outside)}
    types = {x.strip() for part in lines for x in part if x.startswith(for_types[1])}
    own = [module.__name__ for module in parts]
    head = "\n".join([
        *_joined_imports(imports, own), "", for_types[0],
        *(f"    {line}" for line in _joined_imports(types, own)),
    ])  # fmt: skip
    bodies = ([x for x in part if not x.startswith((*outside, *for_types))] for part in lines)
    return head + "\n\n" + "\n\n\n".join("\n".join(body).strip("\n") for body in bodies)


def _joined_imports(lines: Iterable[str], own: Collection[str]) -> list[str]:
    """Return import statements, one for each module, without those of our own modules."""
    found: dict[str, set[str]] = {}
    for line in lines:
        module, _, names = line.removeprefix("from ").partition(" import ")
        found.setdefault(module, set()).update(filter(None, names.split(", ")))
    statements = [
        f"from {module} import {', '.join(sorted(names))}" if names else module
        for module, names in found.items() if module not in own
    ]  # fmt: skip
    return sorted(statements, key=lambda line: (line.startswith("from "), line))


def _layout_weights(
    programs: Sequence[Program], target: Target, before: Blob
) -> tuple[list[dict[str, int]], Blob]:
    """Return each program's constants with their offsets, and the blob in order of first use.

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
    order = dict.fromkeys(
        a for call in calls(program.steps) for a in call.arguments if a in program.constants
    )
    offsets: dict[str, int] = {}
    size = sum(map(len, parts))
    for name in order:
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


def _sample(data: Array) -> bytes:
    """Return some bytes of many, which distinguish most arrays without reading all of them."""
    return bytes(data[:: max(data.size // 1024, 1)])


def _users(programs: Sequence[Program], kernels: Sequence[KernelSource]) -> list[dict[str, object]]:
    """Return each kernel's declaration and the model's nodes that call it."""
    users: dict[str, list[str]] = {}
    labels: dict[str, str] = {}
    for call in (c for p in programs for c in calls(p.steps)):
        origin = call.node.origin[0] if call.node.origin else node_text(call.node)
        users.setdefault(call.source.symbol, []).append(comment(origin, 40))
        labels[call.source.symbol] = call.choice.candidate.label
    return [
        {
            "prototype": k.prototype, "symbol": k.symbol, "launch": k.launch,
            "label": labels[k.symbol], "users": _listed(users[k.symbol]),
        }
        for k in kernels
    ]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"
