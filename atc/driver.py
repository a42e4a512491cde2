"""One compilation from model file to output folder: the pipeline, stage by stage."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir

from atc import __version__
from atc.backends.target import Target, get_target
from atc.backends.toolchain import Compiler, Log, compile_flags, find_compiler, no_log
from atc.build import BuildResult, Unit, build_library, write_tree
from atc.cache import Cache, CacheStats, DebugConfig, mode_under_debug, open_cache, read_debug_config
from atc.dump import dump
from atc.emit import Emission, emit
from atc.errors import OptionError
from atc.importers import load_model
from atc.ir import Graph
from atc.lower import lower_model
from atc.memory import Arena, plan_memory
from atc.names import identifier
from atc.options import Options
from atc.passes import run_passes
from atc.program import Program, build_program
from atc.report import report_json
from atc.select import Selection, select
from atc.weights import included_weights


@dataclass(frozen=True)
class Listener:
    """Who wants to hear how a compilation goes; nothing is printed below the command line."""

    stage: Callable[[str], None] = lambda text: None
    """A stage begins: `lowering`, `fuse_epilogue`, ..."""
    progress: Callable[[str, int, int], None] = lambda what, done, total: None
    warn: Callable[[str], None] = lambda text: None
    graph: Callable[[str, Graph], None] = lambda name, graph: None
    """A pass has run."""
    process: Log = no_log
    """A compiler or linker is started."""


@dataclass(frozen=True)
class Compilation:
    """The result of one compilation and everything the report tells of it."""

    folder: Path
    name: str
    target: Target
    compiler: Compiler
    graph: Graph
    selection: Selection
    program: Program
    arena: Arena
    emission: Emission
    build: BuildResult
    cache: CacheStats


def compile_model(
    options: Options, environ: Mapping[str, str] | None = None, listen: Listener | None = None
) -> Compilation:
    """Compile a model as the options say and write the output folder.

    Raises AtcError; the output folder is then as it was before.
    """
    env = dict(os.environ) if environ is None else environ
    heard = listen or Listener()
    name = network_name(options.output)
    target = get_target(options.target)
    debug = read_debug_config(options.op_debug_config) if options.op_debug_config else DebugConfig()
    compiler = find_compiler(target, env, log=heard.process)
    heard.stage("reading the model")
    model = load_model(options.model, options.framework, options.input_shape, options.weight)
    graph = optimised_graph(model, options, heard)
    heard.stage("choosing kernels")
    selection = select(graph, target)
    program = build_program(graph, selection, target)
    heard.stage("planning memory")
    arena = plan_memory(program, reuse=not options.disable_reuse_memory)
    heard.stage("writing C")
    emission = emit(
        program, arena, target, name=name, model=options.model.name,
        model_hash=_digest(options.model), options=_build_options(options),
        external_weights=options.external_weight == 2,
    )  # fmt: skip
    heard.stage("compiling C")
    with _cache(options, target, compiler, debug, env, heard) as cache:
        extra, result = _build(options, emission, target, compiler, cache, debug, program, heard)
        stats = cache.stats
    done = Compilation(
        options.output, name, target, compiler, graph, selection, program, arena, emission,
        result, stats,
    )  # fmt: skip
    heard.stage("writing the output folder")
    texts = {
        f"{name}.report.json": report_json(done).encode(),
        f"{name}.graph.txt": dump(graph).encode(),
    }
    write_tree({**emission.files, **extra, **texts}, options.output)
    return done


def optimised_graph(model: onnx_ir.Model, options: Options, heard: Listener) -> Graph:
    """Lower a model and run the passes, dumping each result where asked."""
    heard.stage("lowering")
    graph = lower_model(model, options.model.name, options.out_nodes)
    steps = iter(range(1 << 30))

    def observe(name: str, current: Graph) -> None:
        heard.graph(name, current)
        if options.dump is not None:
            options.dump.mkdir(parents=True, exist_ok=True)
            text = dump(current)
            (options.dump / f"{next(steps):02}-{name}.txt").write_text(text, "utf-8")

    return run_passes(graph, observe, options.skip_passes)


def network_name(output: Path) -> str:
    """Return the C prefix for an output path; OptionError E10022 when it has no last part."""
    if output.name in ("", ".", ".."):
        raise OptionError(
            f"'{output}' names no file", where="--output", code="E10022",
            hint="end the path with the network's name, e.g. --output=out/net",
        )  # fmt: skip
    return identifier(output.name)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _build_options(options: Options) -> str:
    precision = options.precision_mode or "default"
    return f"precision={precision}; implmode={options.op_select_implmode}"


def _cache(
    options: Options, target: Target, compiler: Compiler, debug: DebugConfig,
    env: Mapping[str, str], heard: Listener,
) -> Cache:  # fmt: skip
    mode = mode_under_debug(
        options.op_compiler_cache_mode, level=options.op_debug_level,
        configured=bool(debug.switches), listed=bool(debug.operators),
    )  # fmt: skip
    versions = {"atc_version": __version__, "ops_version": __version__}
    return open_cache(
        mode, options.op_compiler_cache_dir, target.name,
        versions=versions, environ=env, warn=heard.warn,
    )  # fmt: skip


def _build(
    options: Options, emission: Emission, target: Target, compiler: Compiler, cache: Cache,
    debug: DebugConfig, program: Program, heard: Listener,
) -> tuple[dict[str, bytes], BuildResult]:  # fmt: skip
    """Return the libraries and the files of the weights, and what the build took."""
    name = emission.name
    files = dict(emission.files)
    simd = ["src/simd.h", "src/simd_math.h"] if "src/simd.h" in files else []
    headers = ["src/kernel.h", *simd]
    units = [
        Unit(k.path, k.symbol, tuple(headers[:1] if k.portable else headers))
        for k in emission.kernels
    ]
    own = (f"include/{name}.h", f"src/{name}_kernels.h")
    units.append(Unit(f"src/{name}.c", name, own))
    extra: dict[str, bytes] = {}
    if emission.weights:
        extra[f"{name}_weights.bin"] = emission.weights
        if options.external_weight != 2:
            extra[f"{name}_weights.S"] = included_weights(name, f"{name}_weights.bin").encode()
            included = (f"{name}_weights.bin",)
            units.append(Unit(f"{name}_weights.S", f"{name}_weights", included, cacheable=False))
    level, symbols = ("O0", True) if options.op_debug_level == 2 else ("O2", False)
    flags = (*compile_flags(compiler, target, level, symbols), "-Iinclude", "-I.")
    libraries, result = build_library(
        {**files, **extra}, units, name, target, compiler, flags, cache,
        options.jobs or os.cpu_count() or 1,
        lambda done, total: heard.progress("compiling", done, total), log=heard.process,
    )  # fmt: skip
    return {**extra, **libraries}, result
