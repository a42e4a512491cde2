"""All that one compilation depends on, as one value; the command line and `compile` fill it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """One field per option of the command line, parsed and validated."""

    model: Path
    output: Path
    weight: Path | None = None
    framework: str = ""
    """onnx, mge, mxnet, or empty: found out from the file's content."""
    input_shape: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    out_nodes: tuple[str, ...] = ()
    target: str = "host"
    op_compiler_cache_mode: str = "disable"
    op_compiler_cache_dir: Path | None = None
    op_debug_level: int = 0
    op_debug_config: Path | None = None
    debug_dir: Path = Path(".")
    op_select_implmode: str = "high_performance"
    precision_mode: str = ""
    fast_run: bool = False
    num_threads: int = 1
    external_weight: int = 0
    disable_reuse_memory: bool = False
    skip_passes: frozenset[str] = frozenset()
    dump: Path | None = None
    jobs: int = 0
    """Compiler processes at a time; 0: one per core."""

    @property
    def name(self) -> str:
        """The network's name: the last part of the output path."""
        return self.output.name
