"""Progress of a compilation as the user sees it: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from atc.errors import one_line
from atc.options.table import LOG_LEVELS

if TYPE_CHECKING:
    from rich.progress import Progress

    from atc.cache import CacheStats
    from atc.diagnostics import Diagnostics
    from atc.ir.graph import Graph
    from atc.pipeline.pipeline import Compilation

PATIENCE = 1.0
"""Seconds between two lines of progress."""
FIRST = "starting"
"""What goes on before the first stage: imports, which take longer than a small model does."""


class Terminal:
    """Shows a compilation on a stream; a context around it and around the imports it needs.

    On a terminal a bar says what goes on. Lines appear at the --log level: stages and counts from
    `info` on, passes and commands with `debug`. A warning is shown at once, at any level.
    """

    def __init__(self, level: str, stream: TextIO) -> None:
        self.level = level
        self._warned: set[str] = set()
        self._stream = stream
        self._begin = self._step = self._shown = time.monotonic()
        self._bar: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> Terminal:
        if self._stream.isatty():
            self._stream.write(f"{FIRST}\r")  # the bar's own library takes a while to load
            self._stream.flush()
            self._bar = _bar(self._stream)
            self._stream.write(" " * len(FIRST) + "\r")
            self._bar.start()
        self.stage(FIRST)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take the bar away while something else is written, be it to another stream."""
        if self._bar is not None:
            self._bar.stop()
        yield
        if self._bar is not None:
            self._bar.start()

    def diagnostics(self) -> Diagnostics:
        """Return what a compilation is to call."""
        from atc.diagnostics import Diagnostics

        return Diagnostics(self.stage, self.progress, self._warn, self._pass, self._process)

    def finished(self, done: Compilation) -> None:
        """Show how long the build took and what the cache did."""
        self.built(done.build.compiled, done.build.cached, done.cache)

    def built(self, compiled: int, cached: int, cache: CacheStats) -> None:
        """Show how many objects were compiled, how many the cache had, and the time."""
        from atc.cache import run_text

        self._line(
            "info",
            f"{compiled} objects compiled, {cached} from the cache; "
            f"{time.monotonic() - self._begin:.2f} s in all",
        )
        for line in run_text(cache).splitlines():
            self._line("info", line)

    def _line(self, level: str, text: str) -> None:
        if LOG_LEVELS.index(level) < LOG_LEVELS.index(self.level):
            return
        self._write(f"[{level.upper()}] {text}")

    def _write(self, line: str) -> None:
        if self._bar is not None:  # above the bar
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            self._stream.write(line + "\n")
            self._stream.flush()

    def stage(self, text: str) -> None:
        """Show the stage that begins."""
        self._step = self._shown = time.monotonic()
        self._line("info", text)
        self._show(text, None, None)

    def progress(self, what: str, done: int, total: int) -> None:
        """Show how much of the stage is done."""
        self._show(what, done, total)
        if time.monotonic() - self._shown > PATIENCE:
            self._shown = time.monotonic()
            left = f", about {self._left(done, total):.0f} s left" if done else ""
            self._line("info", f"{what}: {done} of {total}{left}")

    def _show(self, text: str, done: int | None, total: int | None) -> None:
        if self._bar is None:
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        count = "" if total is None else f" {done}/{total}"
        if done and total and done < total:
            count += f", about {self._left(done, total):.0f} s left"
        self._task = self._bar.add_task(text + count, completed=done or 0, total=total)

    def _left(self, done: int, total: int) -> float:
        """Return the seconds that a stage needs yet if it goes on as it began."""
        return (time.monotonic() - self._step) / done * (total - done)

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._write(f"W10001: {one_line(text)}")

    def _pass(self, name: str, graph: Graph) -> None:
        now = time.monotonic()
        self._line("debug", f"{name}: {len(graph.nodes)} nodes, {now - self._step:.3f} s")
        self._step = now

    def _process(self, command: tuple[str, ...]) -> None:
        self._line("debug", shlex.join(command))


def _bar(stream: TextIO) -> Progress:
    """Return a bar that goes when it is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
        console=Console(file=stream), transient=True, redirect_stdout=False, redirect_stderr=False,
    )  # fmt: skip
