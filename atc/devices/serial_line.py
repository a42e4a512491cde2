"""A network on a board at the other end of a serial line: the host's side of starter/serial.c."""

from __future__ import annotations

import importlib
import os
import select
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from atc.errors import OptionError, ToolchainError, one_line, reason_of

BAUD = 115200
CHUNK = 512
"""Bytes of a tensor that are sent or requested at a time."""
_MORE = 1  # <NAME>_MORE: the run isn't done yet
RUNNING = 600.0
"""Seconds that a run may take."""
_HEAD = struct.Struct("<3sB3I")
_ANSWER = struct.Struct("<3sBiI")
_SUM = struct.Struct("<I")


def line_of(text: str) -> tuple[str, int]:
    """Return device and speed of `DEVICE` or `DEVICE:BAUD`; OptionError if it is neither."""
    device, _, baud = text.rpartition(":")
    if not device or not (baud.isascii() and baud.isdigit()):
        device, baud = text, str(BAUD)
    if not device or not 0 < int(baud) < 10**8:
        raise OptionError(f"'{one_line(text, 60)}' is not a serial line", where="--runner",
                          hint="the form is serial:/dev/ttyACM0, or serial:/dev/ttyACM0:115200"
                          )  # fmt: skip
    return device, int(baud)


@dataclass
class SerialLine:
    """An open serial line, by its file descriptor, and the requests over it."""

    descriptor: int
    name: str
    baud: int
    tries: int = 3
    """How often a request is sent if the answer is missing or damaged."""
    patience: float = 5.0
    """Seconds to wait for an answer, in addition to the time to transfer its bytes."""
    _asked: int = field(default=0, init=False)
    """The checksum of the latest request, from which those of its answers go on."""

    def ask(
        self, command: str, index: int = 0, offset: int = 0, size: int = 0, data: bytes = b""
    ) -> tuple[int, bytes]:
        """Send a request and return the answer's status and data; ToolchainError without one."""
        request = _HEAD.pack(b"atc", ord(command), index, offset, size)
        sent = _summed(request) + (_summed(data) if data else b"")
        self._asked = zlib.crc32(request)
        for _ in range(self.tries):
            self._drain()
            self._write(sent)
            transfer = 20 * (len(sent) + size) / self.baud
            until = time.monotonic() + self.patience + transfer
            answer = self._answer(command, until)
            if answer is not None:
                return answer
        raise ToolchainError(
            f"nothing answers on {one_line(self.name, 60)} at {self.baud} baud", where="--runner",
            hint="write the starter's serial program to the board (make flash-serial, see "
            "starter/Makefile), with its uart.c for that board",
        )  # fmt: skip

    def run(self, number: int, in_parts: bool = False) -> int:
        """Do the run of this number, or the part of runs, and return the network's status."""
        self.ask("p" if in_parts else "r", number)
        done = self._answer("d", time.monotonic() + RUNNING)
        return (self.ask("s") if done is None else done)[0]

    def _answer(self, command: str, until: float) -> tuple[int, bytes] | None:
        """Return the next answer to a command; None if it times out, is damaged or another's."""
        met = b""
        while met != b"ATC":
            byte = self._read(1, until)
            if byte is None:
                return None
            met = (met + byte)[-3:]
        rest = self._read(_ANSWER.size - 3 + _SUM.size, until)
        if rest is None or _SUM.unpack(rest[-4:])[0] != zlib.crc32(met + rest[:-4], self._asked):
            return None
        _, given, status, size = _ANSWER.unpack(met + rest[:-4])
        if given != ord(command) or size > 1 << 16:
            return None
        if not size:
            return status, b""
        data = self._read(size + _SUM.size, until + 20 * size / self.baud)
        if data is None or _SUM.unpack(data[-4:])[0] != zlib.crc32(data[:-4], self._asked):
            return None
        return status, data[:-4]

    def _read(self, size: int, until: float) -> bytes | None:
        found = b""
        while len(found) < size:
            ready, _, _ = select.select([self.descriptor], [], [], max(until - time.monotonic(), 0))
            more = self._some(size - len(found)) if ready else b""
            if not more:
                return None
            found += more
        return found

    def _some(self, size: int) -> bytes:
        try:
            return os.read(self.descriptor, size)
        except OSError as error:
            raise self._lost(error) from None

    def _write(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            _, ready, _ = select.select([], [self.descriptor], [], self.patience)
            if not ready:
                raise ToolchainError(
                    f"{one_line(self.name, 60)} accepts no data", where="--runner"
                )
            try:
                at += os.write(self.descriptor, data[at : at + 64])
            except OSError as error:
                raise self._lost(error) from None

    def _drain(self) -> None:
        """Discard the rest of earlier answers."""
        while select.select([self.descriptor], [], [], 0)[0] and self._some(4096):
            pass

    def _lost(self, error: OSError) -> ToolchainError:
        reason = one_line(reason_of(error), 100)
        return ToolchainError(f"{one_line(self.name, 60)} was lost: {reason}", where="--runner")


def _summed(data: bytes) -> bytes:
    return data + _SUM.pack(zlib.crc32(data))


@contextmanager
def open_line(text: str) -> Iterator[SerialLine]:
    """Open the serial line that a runner names, raw, at its speed; OptionError if it can't be."""
    name, baud = line_of(text)
    try:
        termios: Any = importlib.import_module("termios")
    except ImportError:
        raise OptionError("serial lines are opened on Linux and macOS only", where="--runner",
                          hint="run atc verify there") from None  # fmt: skip
    speed = getattr(termios, f"B{baud}", None)
    if speed is None:
        raise OptionError(f"{baud} is not a speed that serial lines have here", where="--runner",
                          hint=f"use {BAUD}") from None  # fmt: skip
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as error:
        reason = one_line(reason_of(error), 100)
        raise OptionError(
            f"{one_line(name, 60)} can't be opened: {reason}", where="--runner"
        ) from None
    try:
        try:
            _make_raw(termios, descriptor, speed)
        except termios.error:
            raise OptionError(
                f"{one_line(name, 60)} is not a serial line", where="--runner"
            ) from None
        yield SerialLine(descriptor, name, baud)
    finally:
        os.close(descriptor)


def _make_raw(termios: Any, descriptor: int, speed: int) -> None:
    """Pass bytes unchanged: eight bits, no parity, no flow control, no echo."""
    settings = termios.tcgetattr(descriptor)
    settings[0] = settings[1] = settings[3] = 0
    settings[2] = termios.CS8 | termios.CREAD | termios.CLOCAL
    settings[4] = settings[5] = speed
    settings[6][termios.VMIN], settings[6][termios.VTIME] = 0, 0
    termios.tcsetattr(descriptor, termios.TCSANOW, settings)


@dataclass(frozen=True)
class Span:
    """Bytes of the arena (buffer 0), or of an output, that are complete after a step of a run."""

    step: int
    buffer: int
    offset: int
    size: int


def run_over(
    line: SerialLine, known: Callable[[str], bool], runs: Sequence[Sequence[bytes]],
    sizes: Sequence[int], spans: Sequence[Span] = (),
) -> tuple[list[list[bytes]], list[bytes]]:  # fmt: skip
    """Run the network on the board on the inputs of each of `runs`, states going on between them.

    Returns each run's outputs of `sizes` bytes, and the last one's `spans`, which are in the order
    of their steps; with these it runs in parts. `known` returns whether build information is that
    of the expected network. Raises ToolchainError if the board doesn't answer, runs another
    network, or fails.
    """
    answer = line.ask("?")[1].decode(errors="replace")
    if not known(answer):
        raise ToolchainError(
            f"another network answers on {one_line(line.name, 60)}: {one_line(answer, 120)}",
            where="--runner",
            hint="write the serial program of this folder's starter to the board",
        )  # fmt: skip
    ends = [Span(0, 1 + index, 0, size) for index, size in enumerate(sizes)]
    found: list[list[bytes]] = []
    seen: list[bytes] = []
    parts = count()
    for number, inputs in enumerate(runs):
        for index, data in enumerate(inputs):
            _send(line, index, data)
        if spans:
            wanted = spans if number + 1 == len(runs) else ()
            seen = [*_run_in_parts(line, parts, wanted)]
        else:
            _good(line, line.run(number), "the run")
        found.append([_fetched(line, end) for end in ends])
    return found, seen


def _send(line: SerialLine, index: int, data: bytes) -> None:
    """Write an input."""
    for at in range(0, len(data), CHUNK):
        part = data[at : at + CHUNK]
        _good(line, line.ask("w", index, at, len(part), part)[0], f"input {index}")


def _run_in_parts(
    line: SerialLine, parts: Iterator[int], spans: Sequence[Span]
) -> Iterator[bytes]:
    """Do a run in parts, numbered on from earlier ones; yields `spans`."""
    for step in count():
        status = line.run(next(parts), in_parts=True)
        _good(line, 0 if status == _MORE else status, "the run")
        yield from (_fetched(line, s) for s in spans if s.step == step)
        if status != _MORE:
            return


def _fetched(line: SerialLine, span: Span) -> bytes:
    """Return bytes of the arena or of an output."""
    command, index = ("g", span.buffer - 1) if span.buffer else ("a", 0)
    what = f"output {index}" if span.buffer else "the arena"
    found = b""
    while len(found) < span.size:
        size = min(CHUNK, span.size - len(found))
        status, part = line.ask(command, index, span.offset + len(found), size)
        _good(line, status if len(part) == size else 1, what)
        found += part
    return found


def _good(line: SerialLine, status: int, what: str) -> None:
    if status:
        raise ToolchainError(f"{what} failed on {one_line(line.name, 60)}: status {status}",
                             where="--runner")  # fmt: skip
