"""Rules for combining options, and messages about those that have no effect."""

from __future__ import annotations

from collections.abc import Iterator

from atc.backends.cuda.device import compute_capabilities
from atc.errors import OptionError, UnsupportedError
from atc.load_and_run.arguments import RunArguments
from atc.load_and_run.pool import check_cores
from atc.options.table import options_of

COMPILING = frozenset({
    "full_run", "fast_run", "fast_run_algo_policy", "fast_run_shared_batch_size", "fitting",
    "dump_fitting_model", "enable_chwn4", "enable_nchw4", "enable_nchw32", "enable_nchw44",
    "enable_nchw44_dot", "enable_nchw88", "layout_transform", "layout_transform_dump",
    "enable_fuse_conv_bias_nonlinearity", "enable_fuse_conv_bias_with_z", "enable_fuse_preprocess",
    "disable_mem_opt", "workspace_limit", "record_comp_seq2",
    "enable_jit", "jit_level", "target", "input_shape", "weight", "framework", "model_dump",
    "fast_run_timeout", "sanity_check",
})  # fmt: skip
"""Options that decide how a model is compiled."""

DUMPS = ("io_dump", "bin_io_dump", "bin_out_dump", "io_dump_stdout", "io_dump_stderr")
"""Options that dump values, in the order in which they are looked at; the last one counts."""


_ALWAYS = {
    "weight_preprocess": "weights are rearranged when compiling",
    "optimize_for_inference": "networks are compiled for inference",
}
"""Switches that are on in any case."""


def dump_kind(arguments: RunArguments) -> str:
    """Return the option of the dump to make, '' for none."""
    return next((name for name in reversed(DUMPS) if arguments[name]), "")


def strategy(arguments: RunArguments) -> tuple[str, ...]:
    """Return how kernels are chosen, in MegEngine's words."""
    if arguments["full_run"]:
        words = ["PROFILE"]
    elif arguments["fast_run"]:
        words = ["PROFILE", "OPTIMIZED"]
    else:
        words = ["HEURISTIC"]
    if arguments["reproducible"] or arguments["binary_equal_between_batch"]:
        words.append("REPRODUCIBLE")
    return tuple(words)


def check_rules(arguments: RunArguments) -> None:
    """Raise OptionError for options that exclude or need each other."""
    for problem, option, hint in _conflicts(arguments):
        raise OptionError(problem, where=f"--{option}", hint=hint)
    check_cores(arguments["multi_thread_core_ids"] or ())
    if arguments["enable_nchw64"]:
        raise UnsupportedError(
            "--enable_nchw64 is a layout of int4, which no kernel computes in",
            where="--enable_nchw64", hint="leave it out",
        )  # fmt: skip
    if arguments["rocm"]:
        raise UnsupportedError(
            "the device is not available: load_and_run has no ROCm", where="--rocm",
            hint="use --cpu or --cuda",
        )  # fmt: skip
    imitated = "emulated" in str(arguments.texts.get("target", ""))
    if arguments["cuda"] and not imitated and not compute_capabilities():
        raise UnsupportedError(
            "the device is not available: there is no CUDA driver, or no device", where="--cuda",
            hint="use --cpu, or --target=cuda-emulated",
        )  # fmt: skip


def _conflicts(w: RunArguments) -> Iterator[tuple[str, str, str]]:
    """Yield (problem, option, hint)."""
    measures = w["full_run"] or w["fast_run"]
    if w["cpu"] and w["cuda"]:
        yield "--cpu and --cuda exclude each other", "cuda", "give one of them"
    policy = w["fast_run_algo_policy"]
    if w["full_run"] and w["fast_run"]:
        yield "--full_run and --fast_run exclude each other", "full_run", "give one of them"
    if policy is not None and not policy.exists() and not measures:
        yield f"{policy} is not there", "fast_run_algo_policy", "add --fast_run to write it"
    if w["fast_run_shared_batch_size"] and not measures and policy is None:
        yield "there is nothing to share", "fast_run_shared_batch_size", "add --fast_run"
    yield from _thread_conflicts(w)
    if w["record_comp_seq2"] and not w["no_sanity_check"]:
        yield "needs --no_sanity_check", "record_comp_seq2", "add it"
    if w["record_comp_seq2"] and w["fake_first"]:
        yield "excludes --fake_first", "record_comp_seq2", "leave one of them out"
    if w["layout_transform_dump"] is not None and not w["layout_transform"]:
        yield "needs --layout_transform", "layout_transform_dump", "add --layout_transform=cpu"
    if w["c_opr_lib_with_param"] and w["c_opr_lib"] is None:
        yield "needs --c_opr_lib", "c_opr_lib_with_param", "name the library"
    if w["check_var_value"] and w["iter"] + w["warmup_iter"] < 2:
        yield "needs several runs", "check_var_value", "raise --iter"
    if w["dump_fitting_model"] is not None and not w["fitting"]:
        yield "needs --fitting", "dump_fitting_model", "add it"
    for option in ("bin_io_dump", "bin_out_dump"):
        if w[option] is not None and not w[option].is_dir():
            yield f"{w[option]} is not a folder", option, "make it first"


def _thread_conflicts(w: RunArguments) -> Iterator[tuple[str, str, str]]:
    pool, own = w["multithread"], w["multithread_default"]
    cores = w["multi_thread_core_ids"]
    if pool > 0 and own > 0:
        yield "excludes --multithread_default", "multithread", "give one of them"
    if w["cpu_default"] and (pool > 0 or own > 0):
        yield "--cpu_default starts no threads", "multithread", "leave one of them out"
    if cores and max(pool, own) < 1:
        yield "needs --multithread or --multithread_default", "multi_thread_core_ids", "add one"
    elif cores and len(cores) != max(pool, own):
        count = max(pool, own)
        yield f"{len(cores)} cores for {count} threads", "multi_thread_core_ids", f"name {count}"


def notes(arguments: RunArguments, compiles: bool) -> Iterator[str]:
    """Yield a warning for everything that is given and has no effect, or less than it says."""
    for name, setting in options_of("load_and_run").items():
        if name in arguments.given and setting.accepted and arguments[name]:
            yield f"--{name} has no effect: {setting.accepted}"
    if not compiles and (unused := sorted(COMPILING & arguments.given)):
        listed = ", ".join(f"--{name}" for name in unused)
        yield f"{listed}: of no effect on a library that is compiled already"
    if sum(bool(arguments[name]) for name in DUMPS) > 1:
        yield f"only one dump is made: --{dump_kind(arguments)}"
    if arguments["profile"] is not None and (arguments["range"] or arguments["check_var_value"]):
        yield "--profile: the runs' times hold those of the checks, too"
    for name, reason in _ALWAYS.items():
        if name in arguments.given and not arguments[name]:
            yield f"--{name}=0 has no effect: {reason}"
    if arguments["enable_nchw32"] and not arguments["enable_fuse_conv_bias_nonlinearity"]:
        yield "--enable_nchw32 switches --enable_fuse_conv_bias_nonlinearity on"
