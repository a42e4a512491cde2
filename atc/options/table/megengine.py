"""MegEngine's environment variables, and what they mean for an ahead-of-time compiler."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

from atc.errors import OptionError
from atc.options.table.setting import Setting
from atc.options.values import choice, integer, nonnegative, path, pool, present, switch

_LEVELS = {"DEBUG": "debug", "INFO": "info", "WARNING": "warning", "WARN": "warning",
           "ERROR": "error"}  # fmt: skip
_NUMBERED = ("debug", "info", "warning", "error", "null")
_STRATEGIES = ("HEURISTIC", "PROFILE", "REPRODUCIBLE", "OPTIMIZED")
_BACKENDS = ("MLIR", "HALIDE", "NVRTC", "TINYOPENCL")

PERSISTENT_CACHE = "~/.cache/megengine/persistent_cache"
"""Where MegEngine keeps measured times."""

_N = r"\d{1,4}"
_POOL = rf"multithread((?P<threads>{_N})(:{_N})?|:default:(?P<own>{_N}))"
_MOST_THREADS = 1024

_SMALLEST_DROPPED = 1 << 20
"""Bytes: what automatic dropping keeps is smaller, unless a variable says otherwise."""


def device(value: object) -> str:
    """Return a device's name as MegEngine writes it, such as cpux, xpu0:1 or multithread4:0."""
    name = str(value).strip()
    pattern = rf"(xpu|cpu|gpu|cuda)(x|:?default|{_N}(:{_N})?)|{_POOL}"
    threads = device_threads(name)
    if not re.fullmatch(pattern, name) or threads not in (None, *range(1, 1 + _MOST_THREADS)):
        raise OptionError(
            f"unknown device '{name[:60]}'", hint="use xpux, cpux, cpu0, multithread4 or gpu0"
        )
    return name


def device_threads(name: str) -> int | None:
    """Return how many threads a device `multithreadN`, or `multithread:default:N`, has."""
    found = re.fullmatch(_POOL, name)
    return int(found["threads"] or found["own"]) if found else None


def strategy(value: object) -> frozenset[str]:
    """Return the words of a strategy, joined by `_` or `|`; REPRODUCEABLE is REPRODUCIBLE."""
    words = re.split(r"[_|]", str(value).strip().replace("REPRODUCEABLE", "REPRODUCIBLE"))
    for word in words:
        if word not in _STRATEGIES:
            raise OptionError(
                f"unknown strategy '{word[:60]}'",
                hint=f"use {', '.join(_STRATEGIES)}, joined by _ or |",
            )
    return frozenset(words)


def _target(name: str) -> str:
    return "cuda" if name.startswith(("gpu", "cuda")) else "host"


def _device_id(name: str) -> int | None:
    """Return the number of a GPU, of which MegEngine's may have a stream's behind it."""
    found = re.fullmatch(r"(gpu|cuda):?(\d+)(:\d+)?", name)
    return int(found[2]) if found else None


def _full_run(words: Collection[str]) -> bool:
    return "PROFILE" in words and "OPTIMIZED" not in words


def _fast_run(words: Collection[str]) -> bool:
    return "PROFILE" in words and "OPTIMIZED" in words


def _same(value: object) -> object:
    return value


def _persistent_cache(kind: str) -> str | None:
    """Return MegEngine's folder of measured times; None where nothing is kept, or without home."""
    with suppress(RuntimeError):
        return str(Path(PERSISTENT_CACHE).expanduser()) if kind == "FILE" else None
    return None


def _reserved(value: object) -> object:
    """Return how much memory of a GPU is reserved, as --gpu_pool says it."""
    word = str(value)
    if found := re.fullmatch(r"b:(\d+)", word):
        return pool(found[1])
    if word not in ("0", "1"):
        raise OptionError(f"invalid value '{word[:60]}'", hint="use 0, 1 or b:BYTES")
    return {"0": "", "1": "all"}[word]


def _backend(value: object) -> object:
    """Return a code generator; there is no equivalent of OpenCL's."""
    word = choice(_BACKENDS)(value)
    if word == "TINYOPENCL":
        raise OptionError(f"{word} makes no code for a CPU or CUDA", hint="use MLIR or NVRTC")
    return word


_once = partial(
    Setting, group="MegEngine variables", system="MegEngine", kind="variable", read="once"
)
_dynamic = partial(_once, read="dynamic")

MEGENGINE: tuple[Setting, ...] = (  # of two that mean the same option, the first one counts
    _once("MGE_DEFAULT_DEVICE", row="M-01", values="xpux|cpux|cpu0|multithreadN|gpuN", parse=device,
          default="xpux", meaning="the target where neither --target nor --soc_version is given: "
          "this machine's processor; multithreadN is that with N threads, as --num_threads, gpuN "
          "is --target=cuda with --device_id=N",
          gives={"target": _target, "num_threads": device_threads, "device_id": _device_id},
          documentation="gpux is any GPU. "
          "multithread:default:N is taken for multithreadN, which load_and_run takes for "
          "--multithread=N."),
    _once("MEGENGINE_HOST_COMPUTE", row="M-02", values="0|1", parse=switch, default="1",
          meaning="small computations run on the host beside a GPU, as --host_compute",
          gives={"host_compute": _same}),
    _once("RUNTIME_OVERRIDE_LOG_LEVEL", row="M-04", values="0...4", parse=integer(0, 4),
          meaning="the level of --log, by number: 0 debug, 1 info, 2 warning, 3 error, "
          "4 nothing, and that of a network compiled with --runtime_log; it beats a level that a "
          "program sets", gives={"log": _NUMBERED.__getitem__},
          documentation="Only --log itself beats it; atc.compile(log=...) doesn't, nor does "
          "NAME_set_log_level. A network reads it when it is initialised, and logs errors without "
          "it; other builds log nothing."),
    _once("MEGENGINE_LOGGING_LEVEL", row="M-03", values="|".join(_LEVELS),
          parse=choice(_LEVELS, code="E10010"), meaning="the level of --log",
          gives={"log": _LEVELS.__getitem__}),
    _dynamic("MGB_DEBUG_VAR_SANITY_CHECK_LOG", row="M-05", values="VAR", parse=integer(0),
             needs="sanity_check", meaning="when a library compiled with --sanity_check runs, it "
             "logs on standard error each kernel call that writes or reads this variable: "
             "checksum, last word, whether it is unchanged",
             documentation="VAR is the variable's number in dumps of load_and_run; the outputs' "
             "are output_variables of the report. A library without checks doesn't look at it."),
    _once("MGB_LOG_TRT_MEM_ALLOC", row="M-06", values="0|1", meaning="logs TensorRT's allocations",
          accepted="there is no TensorRT; the report shows the arena"),
    _dynamic("MGE_PLASMA_MEMORY", row="M-07", values="BYTES",
             meaning="shared memory of the data loader", accepted="there is no data loader"),
    _dynamic("MGE_DATALOADER_PLASMA_DEBUG", row="M-08", values="0|1", default="0",
             meaning="shows what the shared memory server says",
             accepted="there is no data loader"),
    _once("MGE_MM_OPR_DEBUG", row="M-09", values="0|1", default="0",
          meaning="debug output of collective operators",
          accepted="a model with collective operators is refused, and the node named"),
    _dynamic("MEGENGINE_INPLACE_UPDATE", row="M-10", values="0|1", parse=switch, default="1",
             meaning="steps of training update parameters in place, as --inplace_update",
             gives={"inplace_update": _same}),
    _once("MGB_CUDA_RESERVE_MEMORY", row="M-11", values="0|1|b:BYTES", default="0",
          parse=_reserved, meaning="reserves all memory of the GPU that is free, or so many bytes, "
          "as --gpu_pool", gives={"gpu_pool": _same}),
    _once("MGB_ROCM_RESERVE_MEMORY", row="M-12", values="0|1", default="0",
          meaning="reserves memory of the GPU", accepted="there is no ROCm target"),
    _dynamic("MGB_SUBLINEAR_MEMORY_THRESH_NR_TRY", row="M-13", values="N",
             parse=integer(0, 10_000), default="10",
             meaning="rules that the search for recomputation tries, as --recompute_tries",
             gives={"recompute_tries": _same}),
    _dynamic("MGB_SUBLINEAR_MEMORY_GENETIC_NR_ITER", row="M-14", values="N",
             parse=integer(0, 10_000), default="0",
             meaning="rounds of the genetic search for recomputation, as --recompute_rounds",
             gives={"recompute_rounds": _same}),
    _dynamic("MGB_SUBLINEAR_MEMORY_GENETIC_POOL_SIZE", row="M-15", values="N",
             parse=integer(0, 10_000), default="20",
             meaning="population of the genetic search for recomputation, as --recompute_pool",
             gives={"recompute_pool": _same}),
    _dynamic("MGB_SUBLINEAR_MEMORY_LOWER_BOUND_MB", row="M-16", values="MB", parse=integer(0),
             default="0", meaning="memory below which nothing is recomputed, as "
             "--recompute_until", gives={"recompute_until": lambda mb: mb << 20}),
    _dynamic("MGB_SUBLINEAR_MEMORY_WORKERS", row="M-17", values="N",
             parse=integer(1, 4 * (os.cpu_count() or 1)),
             meaning="threads of the search for recomputation, as --recompute_workers",
             documentation="Half of the cores without it; up to four times the cores.",
             gives={"recompute_workers": _same}),
    _dynamic("MEGENGINE_INPUT_NODE_USE_STATIC_SHAPE", row="M-18", values="0|1", parse=switch,
             default="0", meaning="inputs have one shape, memory is planned when compiling, as "
             "--static_shapes", documentation="Shapes without ranges are static in any case.",
             gives={"static_shapes": _same}),
    _once("MEGENGINE_ENABLE_SWAP", row="M-19", values="0|1", parse=switch, default="0",
          aliases=("MGB_ENABLE_SWAP",), meaning="moves tensors from the GPU to the host where they "
          "exceed the memory allowed, as --gpu_swap", gives={"gpu_swap": _same}),
    _once("MEGENGINE_ENABLE_DROP", row="M-20", values="0|1", parse=switch, default="0",
          meaning="tensors may be dropped and recomputed, as --recompute=all",
          gives={"recompute": lambda on: "all" if on else "none"}),
    _dynamic("MEGENGINE_DTR_EVICTEE_MINIMUM_SIZE", row="M-23", values="BYTES", parse=integer(0),
             default="1048576", meaning="the smallest tensors to drop, as --recompute_minimum",
             documentation="The default is that of MEGENGINE_DTR_AUTO_DROP=1.",
             gives={"recompute_minimum": _same}),
    _once("MEGENGINE_DTR_AUTO_DROP", row="M-21", values="0|1", parse=switch, default="0",
          meaning="tensors are dropped by dynamic rematerialization's rule, as --recompute=all; "
          "the order is chosen when compiling",
          gives={"recompute": lambda on: "all" if on else None,
                 "recompute_minimum": lambda on: _SMALLEST_DROPPED if on else None}),
    _dynamic("MEGENGINE_DTR_EVICTION_THRESHOLD", row="M-22", values="BYTES", parse=integer(0),
             default="0", meaning="memory above which tensors are dropped, as --memory_budget",
             gives={"memory_budget": _same}),
    _once("MEGENGINE_INTERP_ASYNC_LEVEL", row="M-24", values="0|1|2", parse=integer(0, 2),
          default="2", meaning="0: locate faults: compile with --sanity_check, so that the first "
          "kernel call that goes wrong is named, and net.submit runs a call before it returns; 1: "
          "net.submit queues, and raises at once for wrong arguments; 2: all errors are the "
          "future's", documentation="The running network's Python module reads it, too. What is "
          "called without net.submit is synchronous at every level.",
          gives={"sanity_check": lambda level: "1" if level == 0 else None}),
    _once("MEGENGINE_ASYNC_QUEUE_SIZE", row="M-25", values="N", parse=integer(1),
          default="10000", meaning="calls by net.submit that may be unfinished before the next "
          "one waits", documentation="The running network's Python module reads it."),
    _once("MEGENGINE_CATCH_WORKER_EXEC", row="M-26", values="0|1", parse=switch, default="1",
          meaning="1: errors of a call by net.submit are raised where its result is asked for; 0: "
          "they end the process where they are, for a debugger",
          documentation="The running network's Python module reads it."),
    _once("MEGENGINE_RECORD_COMPUTING_PATH", row="M-27", values="0|1", parse=switch, default="0",
          meaning="errors say how what a node reads was computed, as --record_computing_path",
          gives={"record_computing_path": _same}),
    _once("MEGENGINE_EXECUTION_STRATEGY", row="M-28", values="|".join(_STRATEGIES),
          parse=strategy, default="HEURISTIC", meaning="how kernels are chosen: estimated "
          "(HEURISTIC), measured (PROFILE: --full_run, with OPTIMIZED --fast_run), reproducible, "
          "optimized ones only (--kernels=optimized)",
          documentation="Words are joined by _ or |. REPRODUCEABLE is taken for REPRODUCIBLE.",
          gives={"full_run": _full_run, "fast_run": _fast_run,
                 "reproducible": lambda words: "REPRODUCIBLE" in words or None,
                 "kernels": lambda words: "optimized" if "OPTIMIZED" in words else None}),
    _once("MGB_CONV_PROFILING_TIMEOUT", row="M-29", values="SECONDS", parse=nonnegative,
          meaning="seconds that measuring one candidate kernel may take, 0: no limit",
          gives={"fast_run_timeout": _same}),
    _once("MGB_PROFILE_ONLY_WAIT", row="M-30", values="0|1", parse=present, default="0",
          meaning="load_and_run --profile shows only what waits for another stream: copies, "
          "and on a GPU the calls that the host computes beside it"),
    _once("CUDA_BIN_PATH", row="M-31", values="DIR", meaning="the folder of nvcc, where neither "
          "NVCC nor CUDA_HOME says another one"),
    _dynamic("MGB_JIT_BACKEND", row="M-32", values="MLIR|HALIDE|NVRTC", parse=_backend,
             works_for=("MLIR", "NVRTC"), meaning="what makes the code of fused operators: the "
             "counterparts of MLIR and NVRTC are the templates, of C and of CUDA",
             accepted="the templates do it", gives={"fused_code": {"NVRTC": "cuda"}.get},
             documentation="NVRTC needs a CUDA target, as --fused_code=cuda. TINYOPENCL is an "
             "error."),
    _once("MGB_JIT_KEEP_INTERM", row="M-33", values="0|1", parse=present, default="0",
          meaning="keeps the folder that objects are built in, as --keep_build",
          gives={"keep_build": _same}),
    _once("MGB_JIT_WORKDIR", row="M-34", values="DIR", parse=path,
          meaning="where objects are built, as --build_dir",
          gives={"build_dir": _same}),
    _once("MGB_DUMP_INPUT", row="M-35", values="0|1", parse=present, default="0",
          meaning="load_and_run --bin-io-dump writes the inputs of every kernel call too, in files "
          "that end in -inp and a number"),
    _once("MGE_FASTRUN_CACHE_DIR", row="M-37", values="DIR", parse=path,
          default=PERSISTENT_CACHE, meaning="where measured times are kept, as "
          "--fast_run_cache_dir", gives={"fast_run_cache_dir": _same},
          documentation="The default is for MGE_FASTRUN_CACHE_TYPE=FILE; where neither is set it "
          "is that of --fast_run_cache_dir."),
    _once("MGE_FASTRUN_CACHE_TYPE", row="M-36", values="FILE|MEMORY",
          parse=choice(("FILE", "MEMORY")), default="FILE",
          gives={"fast_run_cache_type": _same, "fast_run_cache_dir": _persistent_cache},
          meaning="whether measured times are kept on disk, as --fast_run_cache_type"),
    Setting("capabilities", "Features", "targets and compilers that are there: atc --version",
            kind="feature", system="MegEngine", row="M-38"),
    _once("MEGENGINE_MAX_RECOMP_TIME", values="N", default="1",
          meaning="how often a tensor may be recomputed",
          accepted="as often as the budget takes"),
    _once("MEGENGINE_DISABLE_MEMORY_FORWARDING", values="0|1", default="0",
          meaning="operators don't forward memory",
          accepted="--memory_in_place=0 keeps results out of their operands' memory"),
    _once("MEGENGINE_DTR_SQRT_SAMPLING", values="0|1", default="0",
          meaning="samples the tensors to drop", accepted="all of them are looked at"),
    _once("MGB_COMP_GRAPH_OPT", values="NAME=VALUE", meaning="options of MegEngine's graphs",
          accepted="atc's own options do that: --recompute=all is "
          "enable_sublinear_memory_opt"),
    _once("MGE_FASTRUN_CACHE_URL", values="URL", meaning="a redis server of measured times",
          accepted="measured times are kept in files only"),
)  # fmt: skip
