"""Runners copy a small program and its data to where it runs, and return what it printed.

`local`, `qemu:PROGRAM`, `ssh:HOST`, `adb:SERIAL`, `command:WORDS`. Each has a time limit, and
leaves nothing behind. A user's words are passed as arguments, or quoted for the shell over there.
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import archspec.cpu

from atc.backends.toolchain.processes import Finished, Log, TimedOut, no_log, run_binary
from atc.build.output_folder import write_files
from atc.errors import OptionError, ToolchainError, one_line
from atc.files.temporary import temporary_folder
from atc.options.farm import parse_runner

COPYING = 60.0
"""Time limit in seconds for copying a program to a board, or a question to it."""
_BAD, _KILLED = 254, 137
"""Exit statuses: of a program that couldn't be copied there, and of one that took too long."""
_ASK = "uname -m; nproc; grep -m1 -E '^(model name|Hardware|uarch|CPU part)' /proc/cpuinfo"


class Unreachable(ToolchainError):
    """The place where programs run can't be reached, which says nothing about the program."""


class Runner(Protocol):
    """A place where measuring programs run."""

    def machine(self) -> str:
        """Return the machine's identity: machines with different times have different ones."""

    def run(
        self, folder: Path, program: str, files: Sequence[str], arguments: Sequence[str],
        timeout: float,
    ) -> Finished:  # fmt: skip
        """Run a program of a folder there, beside some of the folder's files.

        Raises Unreachable where it can't be reached, TimedOut where it takes longer than `timeout`
        seconds: it is ended then.
        """


def host_name() -> str:
    """Return what identifies this machine: the processor and its core count."""
    return f"{archspec.cpu.brand_string() or archspec.cpu.host().name}, {os.cpu_count()} cores"


@dataclass(frozen=True)
class Local:
    """This machine, as it is or under an emulator."""

    emulator: tuple[str, ...] = ()
    log: Log = no_log
    emulated: str = ""
    """The part of the identity that names an emulator that the user chose."""

    def machine(self) -> str:
        """Return the processor's name and the number of cores."""
        return f"{host_name()}{self.emulated}"

    def run(
        self, folder: Path, program: str, files: Sequence[str], arguments: Sequence[str],
        timeout: float,
    ) -> Finished:  # fmt: skip
        """Run a program in its folder."""
        argv = [*self.emulator, str(folder / program), *arguments]
        return run_binary(argv, timeout, cwd=folder, log=self.log)


@dataclass(frozen=True)
class Board:
    """A board with a shell: commands that copy there and that run a line of its shell."""

    name: str
    copy: tuple[str, ...]
    """Copies files to a folder; `{files}` and `{folder}` stand for them. Without it they come on
    the shell's standard input, so that one connection does it all."""
    shell: tuple[str, ...]
    """Runs the shell's line that follows."""
    root: str
    """The folder in which others may be made."""
    log: Log = no_log

    def machine(self) -> str:
        """Return what the board reports about its processor."""
        done = self._shell(_ASK, COPYING)
        answer = one_line(" ".join(done.stdout.decode("utf-8", "replace").split()), 200)
        if not answer:
            raise self._unreachable(done)
        return f"{answer}, by {self.name}"

    def run(
        self, folder: Path, program: str, files: Sequence[str], arguments: Sequence[str],
        timeout: float,
    ) -> Finished:  # fmt: skip
        """Copy a program there, run it, and remove it."""
        place = f"{self.root}/atc-{uuid4().hex}"
        quoted = shlex.quote(place)
        words = shlex.join([f"./{program}", *arguments])
        limit = "" if not timeout else f"timeout -s KILL {max(1, round(timeout))} "
        clean = f"trap 'cd /; rm -rf {quoted}' EXIT; trap 'exit 1' HUP TERM"
        unpack, stdin = ":", b""
        if self.copy:
            made = self._shell(f"mkdir -m 700 {quoted}", COPYING)
            if made.status != 0:
                raise self._unreachable(made)
            paths = [str(folder / name) for name in (program, *files)]
            copied = run_binary(self._copying(paths, place), COPYING, log=self.log)
            if copied.status != 0:
                self._shell(f"rm -rf {quoted}", COPYING)
                raise self._unreachable(copied)
        else:
            unpack = f"mkdir -m 700 {quoted} && tar xf - -C {quoted}"
            stdin = _packed(folder, (program, *files))
        ready = f"{{ {unpack} && cd {quoted} && chmod 700 {shlex.quote(program)}; }} || exit {_BAD}"
        line = f"{clean}; {ready}; {limit}{words}; exit $?"
        done = self._shell(line, timeout + COPYING if timeout else 0, stdin)
        if timeout and done.status == _KILLED:
            raise TimedOut(f"{self.name} took longer than {timeout:g} s")
        if done.status in (_BAD, 255):  # 255 is ssh's own
            raise self._unreachable(done)
        return done

    def _copying(self, paths: Sequence[str], place: str) -> list[str]:
        words: list[str] = []
        for word in self.copy:
            words += paths if word == "{files}" else [word.replace("{folder}", place)]
        return words

    def _shell(self, line: str, timeout: float, stdin: bytes = b"") -> Finished:
        try:
            return run_binary([*self.shell, line], timeout, stdin=stdin, log=self.log)
        except TimedOut as error:
            message = f"{self.name} doesn't answer: {error.message}"
            raise Unreachable(message, where="--runner") from None

    def _unreachable(self, done: Finished) -> Unreachable:
        output = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
        reason = one_line(output[-1], 200) if output else f"exit status {done.status}"
        return Unreachable(
            f"{self.name} can't run a program: {reason}", where="--runner",
            hint="try it by hand first: the runner asks for no password",
        )  # fmt: skip


def _packed(folder: Path, names: Sequence[str]) -> bytes:
    """Return files of a folder as a tar archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in names:
            archive.add(folder / name, name)
    return packed.getvalue()


@dataclass(frozen=True)
class Command:
    """A command of the user's, called as `COMMAND TIMEOUT PROGRAM FILES... -- ARGUMENTS...`.

    It runs the program beside the files, returns its output and exit status, and answers
    `COMMAND machine` with a line that identifies the machine. It is called in the files' folder.
    """

    words: tuple[str, ...]
    log: Log = no_log

    def machine(self) -> str:
        """Return the line by which the command identifies the machine."""
        done = run_binary([*self.words, "machine"], COPYING, log=self.log)
        answer = one_line(done.stdout.decode("utf-8", "replace").strip(), 200)
        if done.status != 0 or not answer:
            raise ToolchainError(
                f"'{shlex.join(self.words)} machine' doesn't identify the machine",
                where="--runner",
                hint="let it print a line that identifies the machine, and return 0",
            )  # fmt: skip
        return f"{answer}, by {self.words[0]}"

    def run(
        self, folder: Path, program: str, files: Sequence[str], arguments: Sequence[str],
        timeout: float,
    ) -> Finished:  # fmt: skip
        """Have the command run a program."""
        argv = [*self.words, f"{timeout:g}", program, *files, "--", *arguments]
        limit = timeout + COPYING if timeout else 0
        return run_binary(argv, limit, cwd=folder, log=self.log)


def open_runner(text: str, emulator: Sequence[str] = (), log: Log = no_log) -> Runner:
    """Return the runner that a text names; by default this machine, under a target's emulator."""
    kind, _, rest = text.partition(":")
    match kind:
        case "" | "local":
            return Local(tuple(emulator) if not kind else (), log)
        case "serial":
            raise OptionError("nothing is measured over a serial line", where="--runner",
                              hint="serial:DEVICE is for atc verify")  # fmt: skip
        case "qemu":
            words = tuple(shlex.split(rest))
            return Local(_there(words), log, f" under {shlex.join(words)}")
        case "command":
            return Command(_there(tuple(shlex.split(rest))), log)
        case "ssh":
            host, port = rest, ""
            if rest.rpartition(":")[2].isdigit():
                host, _, port = rest.rpartition(":")
            config = os.environ.get("ATC_SSH_CONFIG", "")
            patient = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={COPYING:g}")
            quiet = (*patient, *(("-F", config) if config else ()))
            shell = (*_there(("ssh",)), *quiet, *(("-p", port) if port else ()), host)
            return Board(text, (), shell, "/tmp", log)
        case _:
            adb = (*_there(("adb",)), *(("-s", rest) if rest else ()))
            copying = (*adb, "push", "{files}", "{folder}/")
            return Board(text, copying, (*adb, "shell"), "/data/local/tmp", log)


def _there(words: tuple[str, ...]) -> tuple[str, ...]:
    found = shutil.which(words[0])
    if found is None:
        raise OptionError(
            f"{one_line(words[0], 60)} is not installed", where="--runner", hint="install it"
        )
    return (found, *words[1:])


# --------------------------------------------------------------------------------- by a cluster


@dataclass(frozen=True)
class RemoteRun:
    """A program with its files and arguments, to be run by a worker; empty to ask its machine."""

    program: str
    files: Mapping[str, bytes]
    arguments: tuple[str, ...]
    timeout: float
    emulator: tuple[str, ...] = ()


def perform(task: RemoteRun) -> Finished | str:
    """Run a program on the board of the worker that this is called on, which $ATC_RUNNER names."""
    runner = open_runner(parse_runner(os.environ.get("ATC_RUNNER", "")), task.emulator)
    if not task.program:
        return runner.machine()
    with temporary_folder("program") as folder:
        place = Path(folder).resolve()
        write_files(place, task.files)
        (place / task.program).chmod(0o700)
        others = [name for name in task.files if name != task.program]
        return runner.run(place, task.program, others, task.arguments, task.timeout)
