"""The options of a compilation as one value; the command line and `compile` fill it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from atc.backends.machine import Machine
from atc.backends.target import host_arch
from atc.backends.targets import get_target
from atc.cache.remote_url import RemoteUrl
from atc.dims import Extent, InputShape, Named, Range
from atc.errors import OptionError
from atc.options.machine import chosen_machine
from atc.options.values import EXPORT, Checks

_CPU_TARGETS = {"x86_64": "x86-64", "aarch64": "aarch64-neon"}


@dataclass(frozen=True)
class Options:
    """One field per option of a compilation, parsed and validated; see `table/`."""

    model: Path
    output: Path
    weight: Path | None = None
    framework: str = ""
    input_shape: Mapping[str, InputShape] = field(default_factory=dict)
    static_shapes: bool = False
    dynamic_batch_size: tuple[tuple[int, ...], ...] = ()
    dynamic_image_size: tuple[tuple[int, ...], ...] = ()
    dynamic_dims: tuple[tuple[int, ...], ...] = ()
    value_range: Mapping[str, tuple[Range, ...]] = field(default_factory=dict)
    out_nodes: tuple[str, ...] = ()
    input_format: str = ""
    input_fp16_nodes: tuple[str, ...] = ()
    output_type: tuple[tuple[str, str], ...] = ()
    state: tuple[str, ...] = ()
    insert_op_conf: Path | None = None
    external_weight: int = 0
    target: str = "host"
    machine: Machine | None = None
    host_env_os: str = ""
    host_env_cpu: str = ""
    build_config: str = ""
    compiler_timeout: float = 600.0
    num_threads: int = 1
    parallel_branches: int = 0
    workspaces: int = 0
    thread_tuning: bool = True
    tuned_cores: int = 0
    parallel_copy_size: int = -1
    op_compiler_cache_mode: str = "disable"
    op_compiler_cache_dir: Path | None = None
    op_compiler_cache_remote: RemoteUrl | None = None
    op_compiler_cache_remote_access: str = ""
    op_compiler_cache_trust: str = "key"
    fast_run: bool | str = False
    fast_run_import: Path | None = None
    full_run: bool = False
    fast_run_algo_policy: Path | None = None
    fast_run_timeout: float = 20.0
    fast_run_cache_type: str = ""
    fast_run_cache_dir: Path | None = None
    kernels: str = "all"
    deterministic_math: bool = False
    workspace_limit: int = -1
    weight_price: float = 0.2
    reproducible: bool = False
    deterministic: bool = False
    deterministic_level: int = 0
    profile: bool = False
    hooks: bool = False
    runtime_log: bool = False
    record_computing_path: bool = False
    sanity_check: Checks | None = None
    strip: bool = False
    selftest: bool = False
    starter: bool = False
    wrappers: tuple[str, ...] = ()
    wheel: bool = False
    package: tuple[str, ...] = ()
    step: bool = False
    io: str = "caller"
    input_type: str = ""
    max_ram: int = 0
    max_rom: int = 0
    max_stack: int = 0
    c_opr_lib: Path | None = None
    c_opr_init_interface: str = "mgb_c_opr_init"
    precision_mode: str = ""
    precision_mode_v2: str = ""
    keep_dtype: Path | None = None
    modify_mixlist: Path | None = None
    customize_dtypes: Path | None = None
    op_select_implmode: str = "high_performance"
    optypelist_for_implmode: tuple[str, ...] = ()
    op_precision_mode: Path | None = None
    max_error: float = 0.0
    cal_conf: Path | None = None
    oo_level: str = "O3"
    fusion_switch_file: Path | None = None
    optimization_switch: str = ""
    op_bank_path: Path | None = None
    layout_transform: str = "auto"
    disable_reuse_memory: bool = False
    memory_tries: int = 12
    memory_in_place: bool = True
    device_id: int = 0
    host_compute: bool = True
    fused_code: str = "auto"
    gpu_streams: int = 4
    gpu_copy_streams: int = 1
    gpu_pool: str = ""
    gpu_kept_free: int = 0
    gpu_swap: bool = False
    tensor_cores: bool = True
    allow_hf32: bool = False
    recompute: str = "none"
    memory_budget: int = 0
    recompute_until: int = 0
    recompute_minimum: int = 0
    recompute_tries: int = 10
    recompute_rounds: int = 0
    recompute_pool: int = 20
    recompute_workers: int = 0
    jobs: int = 0
    scheduler: str = ""
    runner: str = ""
    dump: Path | None = None
    op_debug_level: int = 0
    op_debug_config: Path | None = None
    debug_dir: Path | None = Path(".")
    build_dir: Path | None = None
    keep_build: bool = False
    notes: tuple[str, ...] = ()
    """Warnings of what is set, but has no effect."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where values come from that are neither the command line's nor defaults, by option."""
    target_option: str = "target"
    """The option that gave the target: `soc_version` is its twin."""

    @property
    def name(self) -> str:
        """The network's name: the last part of the output path."""
        return self.output.name

    @property
    def compiler_words(self) -> tuple[str, ...]:
        """The command of `--build_config` up to its flags."""
        words = shlex.split(self.build_config)
        return tuple(takewhile(lambda word: not word.startswith("-"), words))

    @property
    def compiler_flags(self) -> tuple[str, ...]:
        """The flags of `--build_config`."""
        return tuple(shlex.split(self.build_config)[len(self.compiler_words) :])

    def asked(self, name: str) -> str:
        """Return what the user wrote to give an option: the option itself, or a variable."""
        kind, _, variable = self.sources.get(name, "").partition(": ")
        if variable:
            return variable if kind == "environment" else f"{variable} of the {kind}"
        return f"--{name} of the {kind}" if kind else f"--{name}"

    @property
    def has_selftest(self) -> bool:
        """Whether the library tests itself: a starter's program does nothing else."""
        return self.selftest or self.starter

    @property
    def sharers(self) -> int:
        """The most threads that share one call."""
        return min(self.num_threads, self.tuned_cores or self.num_threads)

    @property
    def measures(self) -> bool:
        """Whether candidate kernels are measured."""
        return not self.exports and bool(self.fast_run or self.full_run)

    @property
    def exports(self) -> bool:
        """Whether candidate kernels are to be measured elsewhere."""
        return self.fast_run == EXPORT

    @property
    def knows_times(self) -> bool:
        """Whether there are times to choose by, measured now or before."""
        earlier = self.op_bank_path is not None or self.fast_run_import is not None
        return self.measures or earlier

    def warnings(self) -> Iterator[str]:
        """Yield what is accepted but doesn't do what it says."""
        yield from self.notes
        if self.hooks or self.sanity_check:
            what = "hooks" if self.hooks else "checks"
            for option in self.asks_for_threads():
                yield f"{option}: a build with {what} computes in one thread"
        if (
            self.op_compiler_cache_remote and self.op_compiler_cache_mode == "disable"
            and not self.measures and "op_compiler_cache_remote" not in self.sources
        ):  # fmt: skip
            yield "--op_compiler_cache_remote has no effect without --op_compiler_cache_mode=enable"
        precise = self.op_select_implmode.startswith("high_precision")
        if self.optypelist_for_implmode and not precise:
            yield (
                "--optypelist_for_implmode has no effect without "
                "--op_select_implmode=high_precision, which it is a list for"
            )

    def asks_for_threads(self) -> Iterator[str]:
        """Yield the options that ask for more than one thread."""
        for name in ("num_threads", "parallel_branches"):
            if getattr(self, name) > 1:
                yield f"--{name}={getattr(self, name)}"


def make_options(values: Mapping[str, Any]) -> Options:
    """Return the options of checked values by setting name.

    Names of settings that no compilation reads are passed over. Raises OptionError for values
    that contradict each other.
    """
    own = {f.name: values[f.name] for f in fields(Options) if f.name in values}
    soc = values.get("soc_version", "")
    if soc and own["target"] not in ("", "host", soc):
        raise OptionError(
            f"--target={own['target']} and --soc_version={soc} contradict each other",
            where="--soc_version", hint="they are two names of one option", code="E10056",
        )  # fmt: skip
    if soc:
        own["target"], own["target_option"] = soc, "soc_version"
    if ranges := values.get("input_shape_range"):
        if own.get("input_shape") not in ({}, ranges):
            raise OptionError(
                "--input_shape and --input_shape_range contradict each other",
                where="--input_shape_range", hint="they are two names of one option", code="E10056",
            )  # fmt: skip
        own["input_shape"] = ranges
    given = own.get("target_option", "target")
    own["target"] = _host_target(own["target"], given, own.get("host_env_cpu", ""))
    own["machine"] = chosen_machine(own.get("machine", ""))
    _check_precision(own)
    if own.get("record_computing_path") and own.get("sanity_check"):
        own["sanity_check"] = replace(own["sanity_check"], path=True)
    if own.get("framework") == "-1":
        own["framework"] = ""
    if own.get("static_shapes"):
        shapes = own.get("input_shape", {})
        own["input_shape"] = {name: _largest(shape) for name, shape in shapes.items()}
    if own.get("fast_run") is True and own.get("full_run"):
        raise OptionError(
            "--fast_run and --full_run exclude each other", where="--full_run",
            hint="--full_run measures all candidates, --fast_run the most promising ones",
        )  # fmt: skip
    if own.get("deterministic_math"):
        _check_deterministic(own)
    if own.get("recompute_rounds") and not own.get("recompute_pool", 1):
        raise OptionError(
            "no rules are left for the rounds of --recompute_rounds", where="--recompute_pool",
            hint="give a pool of 1 or more", code="E10013",
        )  # fmt: skip
    return Options(**own)


def _check_deterministic(own: Mapping[str, Any]) -> None:
    """Raise OptionError for what would choose kernels by this machine's measure."""
    choosing = ("fast_run", "full_run", "fast_run_import", "fast_run_algo_policy", "op_bank_path",
                "machine")  # fmt: skip
    for name in choosing:
        if own.get(name):
            raise OptionError(
                f"--deterministic_math chooses the same kernels everywhere, which --{name} does "
                "not", where="--deterministic_math", hint=f"leave one of them out: --{name}",
            )  # fmt: skip


def _largest(shape: InputShape) -> InputShape:
    """Return a shape, or those of a sequence, with the largest extent of every range."""
    if isinstance(shape, list):
        return [tuple(map(_top, each)) for each in shape]
    return shape and tuple(map(_top, shape))


def _top(extent: Extent) -> Extent:
    if isinstance(extent, Named):
        ends = extent.extent
        return Named(extent.name, ends.high if isinstance(ends, Range) else ends)
    return extent.high if isinstance(extent, Range) else extent


def _host_target(target: str, option: str, cpu: str) -> str:
    """Return the target for the processor that `--host_env_cpu` names."""
    if not cpu or (target in ("", "host") and cpu == host_arch()):
        return target
    if target in ("", "host"):
        return _CPU_TARGETS[cpu]
    if get_target(target, option).arch not in ("", cpu):
        raise OptionError(
            f"--host_env_cpu={cpu} and --{option}={target} contradict each other",
            where="--host_env_cpu", hint="leave one of them out", code="E10056",
        )  # fmt: skip
    return target


def _check_precision(own: Mapping[str, Any]) -> None:
    """Raise OptionError where two options of precision say different things."""
    if own.get("precision_mode") and own.get("precision_mode_v2"):
        raise OptionError(
            "--precision_mode and --precision_mode_v2 can't both be given",
            where="--precision_mode_v2", hint="they are two spellings of one option", code="E10056",
        )  # fmt: skip
    general = "high_precision" in own.get("op_select_implmode", "") or own.get(
        "optypelist_for_implmode"
    )
    if own.get("op_precision_mode") and general:
        raise OptionError(
            "--op_precision_mode excludes --op_select_implmode and --optypelist_for_implmode",
            where="--op_precision_mode", hint="write all into its file", code="E10047",
        )  # fmt: skip
