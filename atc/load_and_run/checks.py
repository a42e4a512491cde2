"""Observers that look for what should not be: large values, changing values, idle kernel calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from atc.errors import one_line
from atc.ir.graph import Array
from atc.load_and_run.engine import Engine, Step
from atc.load_and_run.failure import CheckError


@dataclass(frozen=True)
class RangeCheck:
    """Raises CheckError for a float of a result whose magnitude isn't below `limit`, or NaN."""

    engine: Engine
    limit: float

    def __call__(self, step: Step, done: bool, arrays: Sequence[Array]) -> None:
        """Look at the results of a call."""
        if not done:
            return
        for number, array in zip(step.writes, arrays[len(step.reads) :], strict=True):
            tensor = self.engine.values[number].tensor
            if array.size == 0 or tensor.dtype.kind in "iubS":
                continue
            wide = array.astype(np.float64)
            with np.errstate(invalid="ignore"):
                wrong = np.flatnonzero(~(np.abs(wide) < self.limit))
            if wrong.size:
                place = [int(i) for i in np.unravel_index(wrong[0], wide.shape)]
                raise CheckError(
                    f"var{number} '{one_line(tensor.name, 100)}' of node "
                    f"'{one_line(step.nodes, 100)}' is {wide.reshape(-1)[wrong[0]]:g} at {place}",
                    where=f"--range={self.limit:g}",
                )


@dataclass
class ValueCheck:
    """Keeps all results of the first run; later compares one after the other, bit by bit.

    Each is compared in `interval` runs. `begin` and `end` surround a run.
    """

    engine: Engine
    interval: int
    start: int = 0
    first: dict[int, list[bytes]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    _compared: int = -1
    _iteration: int = 0

    def begin(self) -> None:
        """Begin with a run; raises CheckError where there is no value of the first index."""
        self._iteration = 0
        if self._compared == 0 and self.start >= len(self.first):
            raise CheckError(
                f"there are {len(self.first)} values, none has the index {self.start}",
                where="--check_var_value",
            )

    def end(self) -> None:
        """Report success once every value has been compared."""
        self._compared += 1
        if self._compared and self._compared % (self.interval * len(self.first)) == 0:
            self.lines.append(f"check_var_value: all {len(self.first)} values passed")

    @property
    def chosen(self) -> int | None:
        """The number of the value to be compared in this run; None in the first."""
        if self._compared < 0:
            return None
        index = (self.start + self._compared // self.interval) % len(self.first)
        return list(self.first)[index]

    def __call__(self, step: Step, done: bool, arrays: Sequence[Array]) -> None:
        """Keep, or compare, the results of a call; in a loop each iteration has its own."""
        if not done:
            return
        chosen = self.chosen
        for number, array in zip(step.writes, arrays[len(step.reads) :], strict=True):
            if chosen is None:
                self.first.setdefault(number, []).append(array.tobytes())
            elif number == chosen:
                before = self.first[number][self._iteration % len(self.first[number])]
                self._iteration += 1
                if array.tobytes() != before:
                    self._fail(step, number, array, before)

    def _fail(self, step: Step, number: int, array: Array, before: bytes) -> None:
        was, now = (np.frombuffer(data, np.uint8) for data in (before, array.tobytes()))
        wrong = int(np.flatnonzero(was != now)[0]) // array.itemsize
        place = [int(i) for i in np.unravel_index(wrong, array.shape)]
        tensor = self.engine.values[number].tensor
        raise CheckError(
            f"var{number} '{one_line(tensor.name, 100)}' of node '{one_line(step.nodes, 100)}' "
            f"is not what it was in the first run, at {place}",
            where="--check_var_value",
        )


@dataclass
class DispatchCheck:
    """Finds kernel calls that write nothing: results are filled with noise before the call."""

    engine: Engine
    idle: list[Step] = field(default_factory=list)
    _noise: list[bytes | None] = field(default_factory=list)

    def __call__(self, step: Step, done: bool, arrays: Sequence[Array]) -> None:
        """Put noise where no operand lies; look whether it is still there."""
        operands, results = arrays[: len(step.reads)], arrays[len(step.reads) :]
        if not done:
            self._noise = [_fill(r, operands, step.number + k) for k, r in enumerate(results)]
            return
        idle = [n is not None and r.tobytes() == n for r, n in zip(results, self._noise,
                                                                  strict=True)]  # fmt: skip
        if idle and all(idle):
            self.idle.append(step)

    def lines(self) -> list[str]:
        """Return a warning for each idle call."""
        return [
            f"WARNING: operator {one_line(s.nodes, 200)}{{{s.op}}} opr{s.number} "
            f"({s.kernel}) dispatches no work"
            for s in self.idle
        ]


def _fill(result: Array, operands: Sequence[Array], seed: int) -> bytes | None:
    if result.size == 0 or any(np.may_share_memory(result, x) for x in operands):
        return None
    noise = np.random.default_rng(seed).integers(0, 256, result.nbytes, np.uint8)
    flat = result.reshape(-1).view(np.uint8)
    flat[:] = noise
    return noise.tobytes()
