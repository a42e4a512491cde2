"""Running the rows of a matrix: several processes, each with a row at a time.

A process that is killed or crashes costs its row; the others go on, and so does a new process.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from atc.batch.journal import Journal, Outcome
from atc.batch.matrix import Matrix, Row
from atc.cache import Session
from atc.diagnostics import Diagnostics
from atc.errors import AtcError, one_line
from atc.options.options import make_options
from atc.options.resolve import resolve
from atc.pipeline.kept import kept_network, numbers_of

LEAVING = 5.0
"""Seconds that a process may take to end its compilers."""

COLLECTED = 50_000
"""Objects more than before at which a process looks for cycles: a row makes some 100,000."""


@dataclass(frozen=True)
class Event:
    """Something that the user may see: a row `begins`, is `done`, or is the `same` as before."""

    kind: str
    row: Row
    outcome: Outcome | None = None


def run_matrix(
    matrix: Matrix, journal: Journal, workers: int, report: Callable[[Event], None],
    *, again: bool = False,
) -> list[Outcome]:  # fmt: skip
    """Compile the rows that aren't up to date, `workers` at a time; return all rows' outcomes.

    `again` compiles all. What is done is in the journal at once, so that a run that is killed goes
    on where it was. `report` is called in this thread.
    """
    digests = {row.output: _digest(row) for row in matrix.rows}
    todo, outcomes = [], dict[str, Outcome]()
    for row in matrix.rows:
        known = journal.last.get(row.name)
        same = known is not None and known.ok and known.digest == digests[row.output]
        if known is not None and same and _is_there(row) and not again:
            outcomes[row.name] = known
            report(Event("same", row, known))
        else:
            todo.append(row)
    share = max(1, (os.cpu_count() or 1) // max(1, min(workers, len(todo))))
    for event in _events(todo, digests, max(1, min(workers, len(todo))), share):
        if event.outcome is not None:
            journal.add(event.outcome)
            outcomes[event.row.name] = event.outcome
        report(event)
    return [outcomes[row.name] for row in matrix.rows]


def _digest(row: Row) -> str:
    try:
        return row.digest()
    except (AtcError, OSError):
        return ""  # of a model that isn't there: its compilation says so


def _is_there(row: Row) -> bool:
    return (row.output / f"{row.output.name}.report.json").is_file() or any(
        row.output.glob("lib*.so")
    )


def _events(todo: Sequence[Row], digests: Mapping[Any, str], workers: int, jobs: int) -> Any:
    """Yield what happens, from threads that each have a process."""
    rows: queue.SimpleQueue[Row] = queue.SimpleQueue()
    for row in todo:
        rows.put(row)
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    crew = [_RowThread(rows, events, digests, jobs) for _ in range(workers if todo else 0)]
    try:
        for hand in crew:
            hand.start()
        left = len(crew)
        while left:
            event = events.get()
            if event is None:
                left -= 1
            else:
                yield event
    finally:
        for hand in crew:
            hand.end()


class _NotStarted(Exception):
    """A process that compiles rows couldn't be started."""


class _RowThread(threading.Thread):
    """A thread that has one process compile rows, and another one once that is gone."""

    def __init__(
        self, rows: queue.SimpleQueue[Row], events: queue.SimpleQueue[Event | None],
        digests: Mapping[Any, str], jobs: int,
    ) -> None:  # fmt: skip
        super().__init__(daemon=True)
        self._rows, self._events, self._digests, self._jobs = rows, events, digests, jobs
        self._process: Any = None
        self._pipe: Connection | None = None
        self._over = False

    def run(self) -> None:
        with suppress(queue.Empty):
            while not self._over:
                row = self._rows.get_nowait()
                self._events.put(Event("begins", row))
                self._events.put(Event("done", row, self._compiled(row)))
        if self._pipe is not None:
            with suppress(OSError):
                self._pipe.send(None)
        self._events.put(None)

    def _compiled(self, row: Row) -> Outcome:
        begin = time.monotonic()
        digest = self._digests[row.output]
        try:
            if self._process is None:
                self._start()
            assert self._pipe is not None
            self._pipe.send((row, self._jobs))
            outcome = self._pipe.recv()
            assert isinstance(outcome, Outcome)
        except _NotStarted as error:
            outcome = Outcome(row.name, digest, False, f"no process can be started: {error}")
        except (OSError, EOFError):
            self._process.join(LEAVING)
            status = self._process.exitcode
            self._process = None
            reason = f"its process was ended by signal {-status}" if (status or 0) < 0 else (
                f"its process ended with status {status}"
            )
            outcome = Outcome(row.name, digest, False, f"{reason}; out of memory?")
        return replace(outcome, digest=digest, seconds=round(time.monotonic() - begin, 3))

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        try:
            self._pipe, theirs = context.Pipe()
            with theirs:
                process = context.Process(target=serve, args=[theirs], daemon=True)
                process.start()
        except OSError as error:
            raise _NotStarted(one_line(str(error))) from None
        except RuntimeError:
            raise _NotStarted('a script that calls it needs `if __name__ == "__main__":`') from None
        self._process = process

    def end(self) -> None:
        """End the process, and with it its compilers."""
        self._over = True
        process = self._process
        if process is not None and process.is_alive():
            process.terminate()
            process.join(LEAVING)
            process.kill()


def serve(pipe: Connection) -> None:
    """Compile the rows that come by a pipe, until None does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    signal.signal(signal.SIGTERM, _interrupt)
    session = Session()
    gc.freeze()
    gc.set_threshold(COLLECTED)
    with suppress(EOFError, KeyboardInterrupt):
        while (order := pipe.recv()) is not None:
            row, jobs = order
            pipe.send(compile_row(row, jobs, session))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def compile_row(row: Row, jobs: int, session: Session | None = None) -> Outcome:
    """Compile a row and return what became of it.

    `session` is what the process knows of its caches from other rows.
    """
    try:
        given = {"model": row.model, "output": row.output, "target": row.target, "jobs": jobs}
        given |= row.options
        resolved = resolve(given, "compile", program=True)
        kept = kept_network(
            make_options(resolved.values), resolved.environ, resolved.values, session
        )
        if kept and (restored := kept.restore(Diagnostics())):
            return _outcome(
                row, restored.numbers, cached=restored.cached, warnings=restored.warnings
            )
        from atc.api import compile_holding
        from atc.pipeline.held import Held

        done = compile_holding(Held(), given, session=session, kept=kept)
        return _outcome(
            row, numbers_of(done), done.build.compiled, done.build.cached, done.warnings
        )
    except AtcError as error:
        return Outcome(row.name, "", False, one_line(str(error)))
    except Exception as error:  # a mistake of ours fails a row, not the batch
        return Outcome(row.name, "", False, one_line(f"{type(error).__name__}: {error}"))


def _outcome(
    row: Row, numbers: Mapping[str, int], compiled: int = 0, cached: int = 0,
    warnings: tuple[str, ...] = (),
) -> Outcome:  # fmt: skip
    return Outcome(
        row.name, "", True, library=numbers["library"], weights=numbers["weights"],
        arena=numbers["arena"], compiled=compiled, cached=cached, warnings=warnings,
    )  # fmt: skip
