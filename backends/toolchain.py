"""Processes and compilers: the only module that starts any; `linking` takes what they make.

Every call is an argument list (never a shell), runs with LC_ALL=C in a given folder and under a
time limit, and its output depends on nothing but the compiler, the flags and the files: sources
are named relative to that folder, so that the same input gives the same bytes anywhere.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from atc.backends.compiler import PATIENCE, Compiler
from atc.backends.running import Running, crashed, end_group
from atc.backends.target import host_arch
from atc.errors import CompilerCrash, ToolchainError, one_line, reason_of, way_out

Log: TypeAlias = Callable[[tuple[str, ...]], object]  # called with each command that is started

ANSWER = 60.0  # seconds that a compiler may take to name a tool beside it
_LONGEST = 600  # characters of a command in a message


def no_log(command: tuple[str, ...]) -> None:
    """Take note of nothing."""


class TimedOut(ToolchainError):
    """A process took longer than it may."""


@dataclass(frozen=True)
class Finished:
    """The result of a process: its exit status (negative: a signal) and all it wrote."""

    status: int
    stdout: bytes
    stderr: bytes


# ---------------------------------------------------------------------------------- processes


def run_binary(
    argv: Sequence[str],
    timeout: float = PATIENCE,
    *,
    cwd: Path | None = None,
    stdin: bytes = b"",
    log: Log = no_log,
    running: Running | None = None,
) -> Finished:
    """Run a program (under an emulator: `(*target.runner, path)`) and return what it did.

    Any exit status is a result; ToolchainError means that it can't be started, or (TimedOut) that
    it was still running after `timeout` seconds (0: no limit), when it is ended with all that it
    started. While it runs it is among `running`, too.
    """
    log(tuple(argv))
    env = {**os.environ, "LC_ALL": "C", "ZERO_AR_DATE": "1"}
    if cwd is not None:
        env["PWD"] = str(cwd)  # compilers believe it, and write it into debug information
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            argv, cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
    except (OSError, ValueError) as error:
        reason = one_line(reason_of(error), 300)
        raise ToolchainError(f"can't start {argv[0]}: {reason}", hint=way_out(error)) from None
    running = running or Running()
    with process:
        running.started(process.pid)
        try:
            stdout, stderr = process.communicate(stdin, timeout or None)
        except subprocess.TimeoutExpired:
            end_group(process.pid)
            raise TimedOut(f"{argv[0]} took longer than {timeout:g} s") from None
        except BaseException:
            end_group(process.pid)
            raise
        finally:
            running.finished(process.pid)
    return Finished(process.returncode, stdout, stderr)


def ask_program(
    argv: Sequence[str], timeout: float = PATIENCE, *, log: Log = no_log,
    running: Running | None = None,
) -> Finished:  # fmt: skip
    """Return what a program says of itself; it is asked once while its file stays as it is.

    Errors are those of `run_binary`; an answer with another status than 0 isn't kept.
    """
    path = shutil.which(argv[0])
    if path is None:
        return run_binary(argv, timeout, log=log, running=running)
    stat = os.stat(path)
    surroundings = tuple(os.environ.get(name) for name in _SAID_BY)
    key = (tuple(argv), stat.st_ino, stat.st_mtime_ns, stat.st_size, surroundings)
    if key not in _answers:
        done = run_binary(argv, timeout, log=log, running=running)
        if done.status:
            return done
        _answers[key] = done
    return _answers[key]


_SAID_BY = ("PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "LIBRARY_PATH")
"""Variables on which a compiler's answers depend."""
_answers: dict[tuple[object, ...], Finished] = {}
"""By command and by the file that runs: five processes of each compilation would say the same."""


def run_tool(compiler: Compiler, argv: Sequence[str], cwd: Path, where: str, log: Log) -> None:
    """Run a step of the build; raise ToolchainError with the tool's own first error line.

    A tool that crashes is run once more (nvcc 13.0 does now and then, on what it compiles at other
    times), and then CompilerCrash is raised.
    """
    done = ran(compiler, argv, cwd, where, log)
    if done.status == 0:
        return
    lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines()]
    errors = [line for line in lines if re.search("[Ee]rror:|undefined|multiple definition", line)]
    reason = next((line for line in (*errors, *lines) if line), f"exit status {done.status}")
    kind = CompilerCrash if crashed(done.status) else ToolchainError
    full = os.strerror(errno.ENOSPC) in reason
    hint = "make room, or set TMPDIR, or --build_dir, to a folder that has some" if full else ""
    raise kind(f"{Path(argv[0]).name} failed: {reason}", where=where, hint=hint)


def ran(
    compiler: Compiler, argv: Sequence[str], cwd: Path, where: str, log: Log
) -> Finished:  # fmt: skip
    """Return what became of a step of the build."""
    try:
        done = run_binary(argv, compiler.timeout, cwd=cwd, log=log, running=compiler.running)
        if crashed(done.status):
            done = run_binary(argv, compiler.timeout, cwd=cwd, log=log, running=compiler.running)
    except TimedOut as error:
        raise timeout_error(error, argv, where) from None
    return done


def timeout_error(error: TimedOut, argv: Sequence[str], where: str = "") -> ToolchainError:
    """Return the error for a command that took too long, with all its words."""
    return ToolchainError(
        f"{error.message}: {one_line(shlex.join(argv), _LONGEST)}", where=where,
        hint="run it yourself, or give it more time with --compiler_timeout",
    )  # fmt: skip


def own_command(
    compiler: Compiler, name: str, question: tuple[str, ...],
    words_of: Callable[[bytes], tuple[str, ...]], log: Log,
) -> tuple[str, ...]:  # fmt: skip
    """Return the command of a tool that GCC starts, as it answers; none where there is more to it.

    `question` has `-###`; `words_of` takes the tool's words out of the answer.
    """
    if compiler.kind != "gcc" or not compiler.elf:
        return ()
    try:
        answer = ask_program(question, compiler.timeout, log=log, running=compiler.running)
    except TimedOut:
        return ()
    tool, words = companion(compiler, name, log), words_of(answer.stderr)
    return (tool, *words) if tool and words and answer.status == 0 else ()


def companion(compiler: Compiler, name: str, log: Log) -> str | None:
    """Return the binary tool that belongs to a compiler (a cross compiler has its own)."""
    if compiler.kind == "zig":  # has none, but the host's own will do
        at_home = compiler.machine.partition("-")[0] == host_arch()
        return shutil.which(name) if at_home else None
    done = ask_program((*compiler.argv, f"-print-prog-name={name}"), ANSWER, log=log)
    return shutil.which(done.stdout.decode(errors="replace").strip()) if not done.status else None


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


# ------------------------------------------------------------------------------- compiling


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
    return _compile(Job(compiler, flags, source_path, cwd), log).read_bytes()


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
        futures = [pool.submit(_compile, job, log) for job in jobs]
        objects = []
        try:
            for future in futures:
                objects.append(future.result())
                progress(len(objects))
        except Exception:
            pool.shutdown(cancel_futures=True)
            raise
    return tuple(objects)


def _compile(job: Job, log: Log) -> Path:
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
