"""Output of lines, warnings and the JSON result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from atc.errors import one_line


class Terminal(AbstractContextManager["Terminal"], Protocol):
    """Shows how a compilation goes; a context around it."""

    def stage(self, text: str) -> None:
        """Show the stage that begins."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Show how much of the stage is done."""


@dataclass
class Console:
    """Writes lines through functions of the command line; with `quiet` only warnings are written.

    `terminal` shows how a compilation goes; `result` becomes the JSON object.
    """

    out: Callable[[str], None]
    error: Callable[[str], None]
    terminal: Terminal
    quiet: bool = False
    verbose: bool = False
    result: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def line(self, text: str) -> None:
        """Write a line for people and scripts."""
        if not self.quiet:
            self.out(text)

    def warn(self, text: str) -> None:
        """Report what has no effect, once."""
        if text not in self.warnings:
            self.warnings.append(text)
            self.error(f"W10001: {one_line(text)}")

    def stage(self, text: str) -> None:
        """Report the stage of a compilation that begins."""
        self.debug(text)
        self.terminal.stage(text)

    def debug(self, text: str) -> None:
        """Report a step, with --verbose."""
        if self.verbose:
            self.error(f"[DEBUG] {one_line(text)}")
