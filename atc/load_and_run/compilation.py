"""Compiles a model file as the options of load_and_run say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir

from atc.backends.cpu.catalogue import KERNELS
from atc.backends.cpu.targets import TARGETS
from atc.backends.flops import operations
from atc.backends.target import Target, host_arch
from atc.backends.targets import get_target
from atc.build.compilers import check_compilers
from atc.compile import compile_model
from atc.convert import load_model
from atc.diagnostics import Diagnostics
from atc.errors import OptionError, UnsupportedError, not_written, one_line
from atc.files.temporary import temporary_folder
from atc.load_and_run.arguments import RunArguments
from atc.load_and_run.batches import with_batch
from atc.load_and_run.console import Console
from atc.load_and_run.inputs import Given, fit_inputs, input_name
from atc.load_and_run.plugins import HOOKED
from atc.load_and_run.shared_batch import with_shared_batch
from atc.load_and_run.workers import wanted_threads
from atc.options.options import Options, make_options
from atc.options.resolve import resolve
from atc.passes import RESIDUAL
from atc.pipeline.graph_file import write_graph
from atc.pipeline.input_types import input_types
from atc.pipeline.pipeline import Compilation
from atc.pipeline.request import Decisions, Request, resolve_request
from atc.program.steps import calls

_SHARED = ("target", "weight", "framework", "op_compiler_cache_mode", "op_compiler_cache_dir",
           "fast_run_timeout", "fast_run_algo_policy", "full_run", "fast_run", "reproducible",
           "workspace_limit", "input_shape", "c_opr_lib", "c_opr_init_interface",
           "sanity_check")  # fmt: skip
_BLOCKS = {"enable_nchw44": 16, "enable_nchw44_dot": 16, "enable_nchw88": 32}
"""Bytes of the vectors that a layout's blocks fill."""
_GPU_LAYOUTS = {"enable_nchw4": "nchw4c", "enable_nchw32": "nchw32c", "enable_chwn4": "chwn4"}
"""Layouts of bytes on a GPU, as --layout_transform calls them."""
_FEATURES = {"enable_nchw44_dot": frozenset({"asimddp"})}
"""What a layout needs besides."""


def compile_subject(
    arguments: RunArguments, given: Sequence[Given], folder: Path, console: Console
) -> Compilation:
    """Compile the model that is named, with what the options need compiled in.

    Open dimensions are those of the inputs given. Raises AtcError; --fast_run also for a
    convolution or product that has no optimised kernel.
    """
    options, environ, decided = compile_options(arguments, given, folder)
    check_compilers(options, environ)
    if arguments["model_dump"] is None and not runs_natively(options.target):
        raise OptionError(
            f"{one_line(options.target, 60)} doesn't run on this machine", where="--target",
            hint="--model_dump=FOLDER compiles for another machine",
        )  # fmt: skip
    diagnostics = Diagnostics(console.stage, console.terminal.progress, console.warn)
    with ExitStack() as stack:
        place = Path(stack.enter_context(temporary_folder("load_and_run")))
        if arguments["batch_size"] > 0:
            options = with_batch(options, arguments["batch_size"], place)
        if given:
            _check_given(resolve_request(options, environ), given, arguments["batch_size"])
        on_gpu = "cuda" in options.target.lower()
        options = replace(options, layout_transform=_layout(arguments, on_gpu, console))
        if batch := arguments["fast_run_shared_batch_size"]:
            (place / "shared").mkdir()
            other = with_batch(options, batch, place / "shared")
            policy = place / "shared.policy"
            options = with_shared_batch(options, other, environ, decided, policy, diagnostics)
        done = compile_model(options, environ, diagnostics, decided)
    if arguments["fast_run"]:
        _refuse_naive(done)
    if arguments["layout_transform"]:
        _report_layouts(done, console)
    if arguments["layout_transform_dump"] is not None:
        path = arguments["layout_transform_dump"]
        _write_graph(done, path)
        console.line(
            f"layout transform: {path} is a graph in atc's own format (ATCGRAPH), for "
            f"{done.target.name}; load_and_run and atc --model run it, MegEngine doesn't"
        )
    return done


def runs_natively(target: str) -> bool:
    """Return whether a library for some targets can be loaded on this machine."""
    return any(get_target(name).is_native for name in target.split(","))


def _write_graph(done: Compilation, path: Path) -> None:
    try:
        path.write_bytes(write_graph(done.graph, done.target.name))
    except OSError as error:
        raise not_written(path, error, "--layout_transform_dump") from None


def compile_options(
    arguments: RunArguments, given: Sequence[Given], folder: Path
) -> tuple[Options, dict[str, str], Decisions]:
    """Return the options of the compilation, the environment, and what is decided beside them."""
    texts: dict[str, object] = {k: v for k, v in arguments.texts.items() if k in _SHARED}
    texts.setdefault("op_compiler_cache_mode", "enable")
    resolved = resolve({**texts, "model": arguments.subject, "output": folder}, "compile")
    options = make_options(resolved.values)
    if target := _layout_target(arguments):
        options = replace(options, target=target)
    if arguments["cuda"] and "cuda" not in options.target.lower():
        options = replace(options, target="cuda")
    on_gpu = "cuda" in options.target.lower()
    hooks = any(arguments[name] for name in HOOKED)
    profile = bool(arguments["profile"] or arguments["profile_host"])
    return replace(
        options, input_shape=_shapes(options, given, arguments["batch_size"] > 0),
        profile=profile, hooks=hooks or (profile and wanted_threads(arguments) == 1 and not on_gpu),
        num_threads=wanted_threads(arguments),
        kernels="optimized" if arguments["fast_run"] else options.kernels,
        disable_reuse_memory=arguments["disable_mem_opt"] or options.disable_reuse_memory,
        strip=arguments["record_comp_seq2"],
        sanity_check=None if arguments["no_sanity_check"] else options.sanity_check,
    ), resolved.environ, _decisions(arguments)  # fmt: skip


def _decisions(arguments: RunArguments) -> Decisions:
    return Decisions(
        skip_passes=frozenset(_skipped(arguments)),
        measured_layouts=bool(arguments["layout_transform"]),
    )


def _skipped(arguments: RunArguments) -> Iterator[str]:
    """Yield the passes to leave out."""
    if not arguments["enable_fuse_conv_bias_nonlinearity"] and not arguments["enable_nchw32"]:
        yield "fuse_epilogue"
    if not arguments["enable_fuse_conv_bias_with_z"]:
        yield RESIDUAL
    if not arguments["enable_jit"]:
        yield "fuse_elementwise"
    elif arguments["jit_level"] == 1:
        yield "fuse_elementwise_again"
    if not arguments["enable_fuse_preprocess"]:
        yield "fold_views"


# ---- layouts ------------------------------------------------------------------------------------


def _layout(arguments: RunArguments, on_gpu: bool, console: Console) -> str:
    """Return how --layout_transform of atc calls the layout that is asked for; `auto` for none."""
    chosen = arguments["layout_transform"]
    if chosen == "cuda" and not on_gpu:
        raise OptionError("the target is not a GPU", where="--layout_transform=cuda",
                          hint="add --cuda, or use --layout_transform=cpu")  # fmt: skip
    asked = [name for name in _GPU_LAYOUTS if arguments[name]]
    if not on_gpu:
        for name in asked:
            console.warn(f"--{name} has no effect: it is for int8 on CUDA, the target is a CPU")
        blocks = [size // 4 for name, size in _BLOCKS.items() if arguments[name]]
        return f"nchw{blocks[0]}c" if blocks and not chosen else "auto"
    if len(asked) > 1 or asked and chosen:
        other = asked[1] if len(asked) > 1 else "layout_transform"
        raise OptionError(f"--{asked[0]} and --{other} exclude each other", where=f"--{other}")
    return _GPU_LAYOUTS[asked[0]] if asked else "auto"


def _layout_target(arguments: RunArguments) -> str:
    """Return the target whose vectors are as wide as a layout's blocks, '' where none is asked."""
    asked = [name for name in _BLOCKS if arguments[name]]
    own = arguments["target"] if "target" in arguments.given else ""
    if not asked:
        return ""
    if len(asked) > 1:
        text = f"--{asked[0]} and --{asked[1]} exclude each other"
        raise OptionError(text, where=f"--{asked[1]}")
    option = asked[0]
    if not own:
        return _narrowest(option).name
    target = get_target(own)
    if not _suits(target, option):
        lacking = "dot product of int8 as ARM's have it" if option in _FEATURES else (
            f"vectors of {_BLOCKS[option] // 4} floats"
        )  # fmt: skip
        raise UnsupportedError(
            f"target {target.name} has no {lacking}", where=f"--{option}",
            hint=f"use {' or '.join(t.name for t in TARGETS if _suits(t, option))}",
        )  # fmt: skip
    return target.name


def _suits(target: Target, option: str) -> bool:
    features = _FEATURES.get(option, frozenset())
    return target.vector_bytes == _BLOCKS[option] and features <= target.features


def _narrowest(option: str) -> Target:
    """Return the plainest target of this machine that has what a layout needs."""
    suited = [t for t in TARGETS if _suits(t, option)]
    for target in suited:
        if target.arch == host_arch():
            return target
    raise UnsupportedError(
        "no target of this machine has the vectors and the instructions of this layout",
        where=f"--{option}",
        hint=f"--target={suited[0].name} --model_dump=FOLDER compiles for another machine",
    )


def _report_layouts(done: Compilation, console: Console) -> None:
    """Report what layouts of the whole graph cost by estimates, and which one was chosen."""
    totals = [report.totals for report in done.layouts]
    names = dict.fromkeys(name for each in totals for name in each)
    costs = {name: sum(each[name].cycles for each in totals) for name in names}
    console.result["layout_transform"] = {"costs": costs, "chosen": "auto"}
    shown = ", ".join(f"{name} {cost:.0f}" for name, cost in costs.items())
    console.line(f"layout transform: cycles, by measured times: {shown or 'of no convolution'}")


# ---- kernels ------------------------------------------------------------------------------------


def _refuse_naive(done: Compilation) -> None:
    """Raise UnsupportedError for a product that none of its operator's optimised kernels does."""
    optimised = {kernel.op for kernel in KERNELS if not kernel.portable}
    for call in calls(done.program.steps):
        heavy = operations(call.choice.workload) > 0 and type(call.node.op) in optimised
        if heavy and call.source.portable and done.target.vector_bytes > 4:
            node = " + ".join(call.node.origin)
            raise UnsupportedError(
                f"only a naive kernel ({call.choice.candidate.label}) computes it",
                where=f"node '{one_line(node, 200)}'", hint="use --full_run",
            )  # fmt: skip


# ---- shapes -------------------------------------------------------------------------------------


def _shapes(options: Options, given: Sequence[Given], any_batch: bool) -> Mapping[str, Any]:
    """Return the shapes to pin: those of the options, and of inputs given for open dims."""
    if not given:
        return options.input_shape
    model = load_model(options.model, options.framework, options.input_shape, options.weight)
    names = {v.name or "": v for v in model.graph.inputs if v.name not in model.graph.initializers}
    found: dict[str, Any] = dict(options.input_shape)
    for each in given:
        name = input_name(each, tuple(names))
        if name not in found and _is_open(names[name]):
            found[name] = _shape_of(each, name, names[name].shape, any_batch)
    return found


def _check_given(request: Request, given: Sequence[Given], batch_size: int) -> None:
    """Raise OptionError for inputs that the network won't take, once it is compiled."""
    types = input_types(request)
    if types is not None:
        signature = {name: (t.shape, t.dtype) for name, t in types.items()}
        lowest = {name: t.lowest for name, t in types.items()}
        fit_inputs(given, signature, batch_size, lowest)


def _is_open(value: onnx_ir.Value) -> bool:
    return value.shape is None or any(not isinstance(d, int) for d in value.shape)


def _shape_of(
    given: Given, name: str, declared: onnx_ir.Shape | None, any_batch: bool
) -> tuple[int, ...]:
    """Return the shape of an array for an input some of whose dims are open.

    The first one is, too, with `any_batch`. Raises OptionError where those that aren't differ.
    """
    dims = None if declared is None else [
        d if isinstance(d, int) and d > 0 and (axis or not any_batch) else "?"
        for axis, d in enumerate(declared)
    ]  # fmt: skip

    def fits(shape: tuple[int, ...]) -> bool:
        return dims is None or len(shape) == len(dims) and all(
            d in ("?", n) for d, n in zip(dims, shape, strict=True)
        )

    shape = tuple(given.laid_out(fits).value.shape)
    if given.literal and shape[0] == 1 and not fits(shape) and fits(shape[1:]):
        shape = shape[1:]
    if not fits(shape):
        wanted = f"[{', '.join(map(str, dims or ()))}]"
        raise OptionError(
            f"input '{one_line(name, 60)}' must have the shape {wanted}, not {list(shape)}",
            where="--input",
        )
    return shape
