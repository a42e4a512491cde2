"""`atc.compile`: the command line's compilation as a Python function."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from inspect import signature
from os import PathLike
from typing import Any, ParamSpec, TypeVar, cast

from atc.accuracy.compare import Verification
from atc.cache import Session
from atc.diagnostics import Diagnostics
from atc.errors import OptionError
from atc.files.blob import NO_WEIGHTS, Blob
from atc.ir.graph import Graph
from atc.notebook import with_progress
from atc.options.modes import TRAIN
from atc.options.options import make_options
from atc.options.resolve import resolve
from atc.options.table import LOG_LEVELS
from atc.pipeline.held import Held
from atc.pipeline.kept import KeptNetwork
from atc.pipeline.pipeline import Compilation
from atc.pipeline.request import Decisions
from atc.tools.explain import explain as explain_node
from atc.tools.model_info import model_info
from atc.tools.modes import compile_or_report
from atc.tools.verify import check_device, compare

Name = str | PathLike[str]

_LOGGER = logging.getLogger("atc")
_LOGGER.addHandler(logging.NullHandler())

P = ParamSpec("P")
R = TypeVar("R")

_OMITTED: Any = object()


def _mark_omitted_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Give a function `_OMITTED` for the arguments that its caller doesn't give.

    A default that is given counts more than the environment; one that isn't counts less.
    """
    accepted = signature(function)
    omitted = dict.fromkeys(accepted.parameters, _OMITTED)

    @wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        given = accepted.bind(*arguments, **keywords).arguments
        return cast(Callable[..., R], function)(**{**omitted, **given})

    return call


@_mark_omitted_arguments
def compile(
    model: Name,
    output: Name,
    *,
    weight: Name = "",
    framework: str | int = "",
    input_shape: str | Mapping[str, Sequence[int] | Sequence[Sequence[int]] | str | None] = "",
    input_shape_range: str | Mapping[str, Sequence[int | str]] = "",
    static_shapes: bool = False,
    dynamic_batch_size: str | Sequence[int] = "",
    dynamic_image_size: str | Sequence[Sequence[int]] = "",
    dynamic_dims: str | Sequence[Sequence[int]] = "",
    value_range: str | Mapping[str, Sequence[int | str]] = "",
    out_nodes: str | Sequence[str] = "",
    input_format: str = "",
    input_fp16_nodes: str | Sequence[str] = "",
    output_type: str = "",
    state: str | Sequence[str] = "",
    insert_op_conf: Name = "",
    external_weight: int = 0,
    display_model_info: bool = False,
    explain: str = "",
    verify: bool = False,
    target: str = "host",
    machine: Name = "",
    soc_version: str = "",
    host_env_os: str = "",
    host_env_cpu: str = "",
    build_config: str = "",
    compiler_timeout: float = 600,
    num_threads: int = 1,
    parallel_branches: int = 0,
    workspaces: int = 0,
    thread_tuning: bool = True,
    tuned_cores: int = 0,
    parallel_copy_size: int = -1,
    op_compiler_cache_mode: str = "disable",
    op_compiler_cache_dir: Name = "",
    op_compiler_cache_remote: str = "",
    op_compiler_cache_remote_access: str = "",
    op_compiler_cache_trust: str = "key",
    fast_run: bool | str = False,
    fast_run_import: Name = "",
    full_run: bool = False,
    fast_run_algo_policy: Name = "",
    fast_run_timeout: float = 20,
    fast_run_cache_type: str = "",
    fast_run_cache_dir: Name = "",
    kernels: str = "all",
    deterministic_math: bool = False,
    workspace_limit: int = -1,
    weight_price: float = 0.2,
    reproducible: bool = False,
    deterministic: bool = False,
    deterministic_level: int = 0,
    profile: bool = False,
    hooks: bool = False,
    runtime_log: bool = False,
    record_computing_path: bool = False,
    sanity_check: str = "",
    strip: bool = False,
    selftest: bool = False,
    starter: bool = False,
    wrappers: str | Sequence[str] = "",
    wheel: bool = False,
    package: str | Sequence[str] = "",
    step: bool = False,
    io: str = "caller",
    input_type: str = "",
    max_ram: str | int = 0,
    max_rom: str | int = 0,
    max_stack: str | int = 0,
    c_opr_lib: Name = "",
    c_opr_init_interface: str = "mgb_c_opr_init",
    precision_mode: str = "",
    precision_mode_v2: str = "",
    keep_dtype: Name = "",
    modify_mixlist: Name = "",
    customize_dtypes: Name = "",
    op_precision_mode: Name = "",
    max_error: float = 0,
    cal_conf: Name = "",
    op_select_implmode: str = "high_performance",
    optypelist_for_implmode: str | Sequence[str] = "",
    oo_level: str = "O3",
    fusion_switch_file: Name = "",
    optimization_switch: str = "",
    op_bank_path: Name = "",
    layout_transform: str = "auto",
    disable_reuse_memory: bool = False,
    memory_tries: int = 12,
    memory_in_place: bool = True,
    device_id: int = 0,
    host_compute: bool = True,
    fused_code: str = "auto",
    gpu_streams: int = 4,
    gpu_copy_streams: int = 1,
    gpu_pool: str = "",
    gpu_kept_free: int = 0,
    gpu_swap: bool = False,
    tensor_cores: bool = True,
    allow_hf32: bool = False,
    recompute: str = "none",
    memory_budget: int = 0,
    recompute_until: int = 0,
    recompute_minimum: int = 0,
    recompute_tries: int = 10,
    recompute_rounds: int = 0,
    recompute_pool: int = 20,
    recompute_workers: int = 0,
    jobs: int = 0,
    scheduler: str = "",
    runner: str = "",
    log: str = "null",
    dump: Name = "",
    op_debug_level: int = 0,
    op_debug_config: Name = "",
    debug_dir: Name = ".",
    build_dir: Name = "",
    keep_build: bool = False,
    mode: int = 0,
    om: Name = "",
    json: Name = "",
    check_report: Name = "",
    singleop: Name = "",
) -> Compilation:
    """Compile a model file into the folder `output`, as `atc --model=... --output=...` does.

    The keywords are the command line's options; texts mean the same as there, `input_shape` may be
    a mapping of names to dims and `out_nodes` a sequence. Messages go to the logger "atc", at the
    levels that `log` lets through, warnings always. Raises AtcError; the folder is then as it was
    before, unless it was `verify` that failed.

    A keyword that isn't given takes its value from the environment or the configuration file, as
    an option that the command line doesn't give (see `atc/docs/settings.md`).

    Returns the compilation: its `folder`, its `library`, the sizes of its memory plan
    (`arena.plan.size`, bytes), its `warnings`, and everything else in the report.
    """
    keywords = {name: value for name, value in locals().items() if value is not _OMITTED}
    return compile_holding(Held(), keywords)


def compile_holding(
    held: Held, keywords: Mapping[str, Any], before: Blob = NO_WEIGHTS,
    session: Session | None = None, kept: KeptNetwork | None = None,
) -> Compilation:  # fmt: skip
    """Compile as `compile` does; `held` is what the caller keeps from run to run.

    `before` are the weights of other networks, in a library of several; `session` what the
    caller's other compilations know of the op compiler cache, and `kept` its place for all of this.
    """
    resolved = resolve(keywords, "compile", program=True)
    values = resolved.values
    if values["mode"] or values["singleop"]:
        raise OptionError(
            "compile makes one library of one model", where="mode or singleop",
            hint="call atc.training_step" if values["mode"] == TRAIN
            else "call the functions of atc.tools.modes",
        )  # fmt: skip
    options, diagnostics = make_options(values), diagnostics_of(str(values["log"]))
    if values["verify"]:
        check_device(options)
    decisions = Decisions(held=held, before=before)
    with with_progress(diagnostics) as shown:
        report = values["check_report"]
        done = compile_or_report(
            options, resolved.environ, shown, report, decisions, session, kept
        )
    if values["display_model_info"]:
        for line in model_info(done).splitlines():
            _LOGGER.info("%s", line)
    if values["explain"]:
        for line in explain_node(done.report, values["explain"]).splitlines():
            _LOGGER.info("%s", line)
    if values["verify"]:
        verify_compilation(done).require()
    return done


def verify_compilation(done: Compilation) -> Verification:
    """Compare the library of a compilation with a reference, on random inputs."""
    return compare(done.request, done.folder, Diagnostics())


def diagnostics_of(level: str) -> Diagnostics:
    """Return diagnostics that send what the level lets through to the logger."""
    quiet = Diagnostics(warn=_LOGGER.warning)
    if LOG_LEVELS.index(level) > LOG_LEVELS.index("info"):
        return quiet
    stages = replace(quiet, stage=_LOGGER.info)
    if level != "debug":
        return stages

    def passed(name: str, graph: Graph) -> None:
        _LOGGER.debug("%s: %d nodes", name, len(graph.nodes))

    def started(command: tuple[str, ...]) -> None:
        _LOGGER.debug("%s", shlex.join(command))

    return replace(stages, graph=passed, process=started)
