"""All that one compilation depends on, as one value; the command line and `compile` fill it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from atc.errors import OptionError
from atc.option_values import InputShape


@dataclass(frozen=True)
class Options:
    """One field per option of a compilation, parsed and validated; see `atc/settings/`."""

    model: Path
    output: Path
    weight: Path | None = None
    framework: str = ""
    input_shape: Mapping[str, InputShape] = field(default_factory=dict)
    out_nodes: tuple[str, ...] = ()
    external_weight: int = 0
    target: str = "host"
    num_threads: int = 1
    op_compiler_cache_mode: str = "disable"
    op_compiler_cache_dir: Path | None = None
    fast_run: bool = False
    full_run: bool = False
    fast_run_algo_policy: Path | None = None
    fast_run_timeout: float = 20.0
    fast_run_cache_type: str = ""
    fast_run_cache_dir: Path | None = None
    kernels: str = "all"
    workspace_limit: int = -1
    reproducible: bool = False
    deterministic: bool = False
    profile: bool = False
    hooks: bool = False
    precision_mode: str = ""
    op_select_implmode: str = "high_performance"
    disable_reuse_memory: bool = False
    memory_in_place: bool = True
    jobs: int = 0
    dump: Path | None = None
    op_debug_level: int = 0
    op_debug_config: Path | None = None
    debug_dir: Path | None = Path(".")
    build_dir: Path | None = None
    keep_build: bool = False
    notes: tuple[str, ...] = ()
    """Warnings of what is set, but has no effect."""
    skip_passes: frozenset[str] = frozenset()
    """Passes of the graph that are left out."""

    @property
    def name(self) -> str:
        """The network's name: the last part of the output path."""
        return self.output.name

    @property
    def measures(self) -> bool:
        """Whether candidate kernels are measured."""
        return self.fast_run or self.full_run

    def warnings(self) -> Iterator[str]:
        """Yield what is accepted but doesn't do what it says."""
        yield from self.notes
        if self.num_threads > 1:
            yield f"--num_threads={self.num_threads}: compiled networks use one thread so far"


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
        own["target"] = soc
    if own.get("framework") == "-1":
        own["framework"] = ""
    if own.get("fast_run") and own.get("full_run"):
        raise OptionError(
            "--fast_run and --full_run exclude each other", where="--full_run",
            hint="--full_run measures all candidates, --fast_run the most promising ones",
        )  # fmt: skip
    return Options(**own)
