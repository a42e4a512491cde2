"""Compiling sources to objects, many at a time.

The bytes depend on nothing but the compiler, the flags and the files: sources are named relative
to a folder, so that the same input gives the same bytes anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atc.backends.toolchain.compiler import Compiler
from atc.backends.toolchain.processes import Log, no_log, run_tool
from atc.backends.toolchain.running import Running


@contextmanager
def compiling_threads(running: Running, count: int) -> Iterator[ThreadPoolExecutor]:
    """Return threads that run compilers; an interrupt ends those, so that nobody waits for them."""
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        except Exception:
            raise
        except BaseException:
            running.end()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@dataclass(frozen=True)
class Job:
    """One source to compile: its path inside `cwd`, where `<source>.o` is written too."""

    compiler: Compiler
    flags: tuple[str, ...]
    source: str
    cwd: Path


def compile_object(
    compiler: Compiler,
    flags: tuple[str, ...],
    source_path: str,
    cwd: Path,
    *,
    log: Log = no_log,
) -> bytes:
    """Compile one source, named relative to `cwd`, and return the object file's bytes."""
    return compile_job(Job(compiler, flags, source_path, cwd), log).read_bytes()


def compile_many(
    jobs: Sequence[Job],
    workers: int,
    *,
    progress: Callable[[int], None] = lambda done: None,
    log: Log = no_log,
) -> tuple[Path, ...]:
    """Compile all jobs, `workers` at a time, and return the object files in the jobs' order.

    `progress` is called in this thread with the number done. The first job (in order) that
    fails is the one whose error is raised; those not yet begun are then dropped.
    """
    running = jobs[0].compiler.running if jobs else Running()
    with compiling_threads(running, max(1, min(workers, len(jobs)))) as pool:
        futures = [pool.submit(compile_job, job, log) for job in jobs]
        objects = []
        try:
            for future in futures:
                objects.append(future.result())
                progress(len(objects))
        except Exception:
            pool.shutdown(cancel_futures=True)
            raise
    return tuple(objects)


def compile_job(job: Job, log: Log = no_log) -> Path:
    """Compile one source and return the object file."""
    cwd = job.cwd.resolve()
    own = () if job.compiler.kind == "nvcc" else (*_no_path(cwd), "-c")
    command = (*job.compiler.argv, *job.flags, *own, job.source, "-o", f"{job.source}.o")
    run_tool(job.compiler, command, cwd, job.source, log)
    return cwd / f"{job.source}.o"


def _no_path(cwd: Path) -> tuple[str, ...]:
    """Return what takes the folder's name out of objects; not in the flags, so in no cache key."""
    return (f"-ffile-prefix-map={cwd}=.",)


PARSED = {"gcc": "gch", "clang": "pch"}
"""The file name's end of parsed headers, by the compilers that look for them."""


def parse_header(job: Job, *, log: Log = no_log) -> Path:
    """Parse a C header once for all sources that get it, and the same flags, by `-include`.

    The objects are the same as without. Returns the file that the compiler finds beside the header.
    """
    cwd, parsed = job.cwd.resolve(), f"{job.source}.{PARSED[job.compiler.kind]}"
    own = (*_no_path(cwd), "-x", "c-header")
    command = (*job.compiler.argv, *job.flags, *own, job.source, "-o", parsed)
    run_tool(job.compiler, command, cwd, job.source, log)
    return cwd / parsed
