"""The work of a worker: compiling one source, running one program. Nothing here knows of dask."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

from atc import __version__
from atc.backends.toolchain.compiler import Compiler, Kind
from atc.backends.toolchain.compiling import compile_object
from atc.backends.toolchain.running import Running
from atc.build.objects import RemoteJob
from atc.build.output_folder import write_files
from atc.errors import ToolchainError
from atc.files.temporary import temporary_folder

POLL = 0.2
"""Seconds between checks whether work is still wanted."""


@dataclass(frozen=True)
class Order:
    """A source to compile, with all that its object depends on, in a form that can be sent."""

    version: str
    argv: tuple[str, ...]
    kind: Kind
    compiler_version: str
    machine: str
    identity: bytes
    timeout: float
    flags: tuple[str, ...]
    source: str
    files: Mapping[str, bytes]


def order_of(job: RemoteJob) -> Order:
    """Return what is sent to have a source compiled; its files are compressed."""
    compiler = job.compiler
    files = {path: zlib.compress(data, 1) for path, data in job.files.items()}
    return Order(
        __version__, compiler.argv, compiler.kind, compiler.version, compiler.machine,
        compiler.identity(), compiler.timeout, job.flags, job.source, files,
    )  # fmt: skip


def compile_order(order: Order, wanted: Callable[[], bool] = lambda: True) -> bytes:
    """Compile a source here and return its object; stop once it isn't wanted any more.

    Raises ToolchainError if this machine's atc or compiler differs, or the compiler fails.
    """
    running = Running()
    compiler = Compiler(
        order.argv, order.kind, order.compiler_version, order.machine, order.timeout, running
    )
    if order.version != __version__:
        raise ToolchainError(f"the worker has atc {__version__} instead of {order.version}")
    if compiler.identity() != order.identity:
        raise ToolchainError(f"the worker has another {order.argv[0]}")
    files = {path: zlib.decompress(data) for path, data in order.files.items()}
    with temporary_folder("worker") as folder, _ended_unless(wanted, running):
        write_files(Path(folder), files)
        return compile_object(compiler, order.flags, order.source, Path(folder))


@contextmanager
def _ended_unless(wanted: Callable[[], bool], running: Running) -> Iterator[None]:
    """End a running compiler as soon as its result isn't wanted any more."""
    done = Event()

    def watch() -> None:
        while not done.wait(POLL):
            if not wanted():
                running.end()
                return

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
