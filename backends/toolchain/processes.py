"""Processes, and the tools of compilers among them: the only module that starts any.

Every call is an argument list (never a shell), runs with LC_ALL=C in a given folder and under a
time limit.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from atc.backends.target import host_arch
from atc.backends.toolchain.compiler import PATIENCE, Compiler
from atc.backends.toolchain.running import Running, crashed, end_group
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
    environment = tuple(os.environ.get(name) for name in _SAID_BY)
    key = (tuple(argv), stat.st_ino, stat.st_mtime_ns, stat.st_size, environment)
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


_ERROR = re.compile("[Ee]rror:|undefined|multiple definition")
_OF_ANOTHER = re.compile(r"returned \d+ exit status")
"""What collect2 says of the linker, which has said why."""


def run_tool(compiler: Compiler, argv: Sequence[str], cwd: Path, where: str, log: Log) -> None:
    """Run a step of the build; raise ToolchainError with the tool's own first error line.

    A tool that crashes is run once more (nvcc 13.0 does now and then, on what it compiles at other
    times), and then CompilerCrash is raised.
    """
    done = ran(compiler, argv, cwd, where, log)
    if done.status == 0:
        return
    lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines()]
    full = [line for line in lines if os.strerror(errno.ENOSPC) in line]
    errors = [line for line in lines if _ERROR.search(line) and not _OF_ANOTHER.search(line)]
    reason = next((r for r in (*full, *errors, *lines) if r), f"exit status {done.status}")
    kind = CompilerCrash if crashed(done.status) else ToolchainError
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
