"""Callbacks that report the progress and the diagnostics of a compilation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atc.backends.toolchain.processes import Log, no_log

if TYPE_CHECKING:  # a graph takes longer to load than the callbacks to be called
    from atc.ir.graph import Graph


@dataclass(frozen=True)
class Diagnostics:
    """Callbacks for a compilation's progress; nothing is printed below the command line."""

    stage: Callable[[str], None] = lambda text: None
    """A stage begins: `reading the model`, `compiling C`, ..."""
    progress: Callable[[str, int, int], None] = lambda what, done, total: None
    warn: Callable[[str], None] = lambda text: None
    graph: Callable[[str, Graph], None] = lambda name, graph: None
    """A pass has run."""
    process: Log = no_log
    """A compiler or linker is started."""


def remembering(diagnostics: Diagnostics, warnings: list[str]) -> Diagnostics:
    """Return the diagnostics with every warning written down too, and none reported twice."""

    def warn(text: str) -> None:
        if text in warnings:
            return
        warnings.append(text)
        diagnostics.warn(text)

    return Diagnostics(
        diagnostics.stage, diagnostics.progress, warn, diagnostics.graph, diagnostics.process
    )
