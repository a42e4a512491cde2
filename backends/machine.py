"""Rates and sizes of processors: the numbers that estimates of kernels are made of.

Everything is in cycles of the core's clock, so that a record holds for any frequency, but for the
rate of memory, which is given for the clock that such a core usually runs at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import ceil
from typing import Any

from atc.errors import OptionError, one_line


@dataclass(frozen=True)
class Cache:
    """A level of the memory: what one core can count on of it.

    `size` in bytes; `rate` in bytes per cycle that arrive in a loop that also computes, which is
    some half of what the level can deliver at best; `latency` in cycles until a line is there.
    """

    size: int
    rate: float
    latency: float


@dataclass(frozen=True)
class Machine:
    """A core, its caches and its memory, called by archspec's name of the microarchitecture.

    `datapath` is the width of its arithmetic units in bytes: an instruction on wider vectors takes
    a unit several times. `fmas` and `loads` are started per cycle on vectors of at most that width.
    `fma_latency` are the cycles from one multiply-add to the next on the same sum, forwarding
    included. `l3` has size 0 where there is none. `memory` is in bytes per cycle of one core.

    Of a microcontroller the first level is its fast RAM (or its cache, if it has one), the second
    all of its RAM, and memory is the flash that holds code and weights.
    """

    name: str
    datapath: int
    fmas: float
    fma_latency: float
    loads: float
    l1: Cache
    l2: Cache
    l3: Cache
    memory: float
    scalar_factors: bool = False
    """Whether multiply-adds take a factor from a scalar register or a lane, as on Arm and RISC-V:
    no number is read into all lanes before."""
    separate_adds: bool = False
    """Whether additions have units of their own, as many as multiply-adds, as on AMD's Zen."""
    every_line: bool = False
    """Whether a stream of memory comes faster where a program asks for each of its lines than where
    it asks for one of sixteen and leaves the others to the core, as on Sapphire Rapids."""
    near_lines: bool = False
    """Whether requests are for the first cache where templates ask for the second, as on Zen 5, and
    for each line: requests for the second one are dropped there as soon as many wait."""
    slow_pairs: bool = False
    """Whether vectors take four multiply-adds' time for a product of pairs of bfloat16, half of
    float's rate, as on Sapphire Rapids, which has tiles for that."""
    measured: bool = False
    """Whether a program found the numbers on this very machine."""

    @property
    def of_pairs(self) -> Machine:
        """The core as vectors find it that multiply pairs of bfloat16, not floats."""
        return replace(self, fmas=self.fmas / 4) if self.slow_pairs else self

    def fma_rate(self, vector_bytes: int) -> float:
        """Return the multiply-adds started per cycle on vectors of so many bytes."""
        return self._narrowed(self.fmas, vector_bytes)

    def load_rate(self, vector_bytes: int) -> float:
        """Return the vectors of so many bytes loaded per cycle."""
        return self._narrowed(self.loads, vector_bytes)

    def broadcast_rate(self, vector_bytes: int) -> float:
        """Return the numbers per cycle that are read into all lanes of vectors of so many bytes.

        That takes as long as to load a vector, unless single numbers are factors.
        """
        return self.loads if self.scalar_factors else self.load_rate(vector_bytes)

    def sums(self, vector_bytes: int) -> int:
        """Return how many sums keep the multiply-adds on vectors of so many bytes busy."""
        return ceil(1.25 * self.fma_latency * self.fma_rate(vector_bytes))

    def _narrowed(self, units: float, vector_bytes: int) -> float:
        return units * min(1.0, self.datapath / vector_bytes)

    @property
    def far_rate(self) -> float:
        """Bytes per cycle from beyond the second cache: from the third, or memory if none is."""
        return self.l3.rate if self.l3.size else self.memory

    @property
    def slow_l3(self) -> bool:
        """Whether the third cache is slow beside the second, as on Intel's servers; not on Zen."""
        return self.l3.size > 0 and self.l3.rate < self.l2.rate / 2

    @property
    def l1_kept(self) -> int:
        """Bytes of the first cache that stay there while others pass by."""
        return self.l1.size * 2 // 3

    @property
    def l1_ways(self) -> int:
        """Lines a page apart that fit into the first cache."""
        return max(self.l1.size // PAGE, 2)

    @property
    def nearby(self) -> int:
        """Bytes that are still in a near cache when they are read soon after they were written."""
        return self.l2.size // 8


PAGE = 4096
"""Bytes: lines this far apart meet in one set of the first cache."""
CACHE_LINE = 64
"""Bytes."""
CALL = 12.0
"""Cycles to enter and leave the function of a tile."""


_FLAGS = tuple(f.name for f in fields(Machine) if f.type == "bool")


def machine_json(machine: Machine) -> str:
    """Return the text of a file that `read_machine` understands."""
    return json.dumps(asdict(machine), indent=1) + "\n"


def read_machine(data: object) -> Machine:
    """Return the machine of a JSON object; OptionError names what is missing or wrong."""
    own = _fields(data, Machine, "a machine")
    for level in ("l1", "l2", "l3"):
        cache = _fields(own[level], Cache, level)
        least = 0 if level == "l3" else 1
        numbers = {name: _number(cache[name], f"{level}.{name}", least) for name in cache}
        own[level] = Cache(int(numbers["size"]), numbers["rate"], numbers["latency"])
    if not isinstance(own["name"], str):
        raise OptionError("a machine's name is a text")
    for name in _FLAGS:
        if not isinstance(own.get(name, False), bool):
            raise OptionError(f"'{name}' of a machine is true or false")
    for name, value in own.items():
        if name not in {"name", "l1", "l2", "l3", *_FLAGS}:
            own[name] = _number(value, name, 1e-3)
    own["datapath"] = int(own["datapath"])
    return Machine(**own)


def _fields(data: object, kind: type, what: str) -> dict[str, Any]:
    """Return a copy of an object that has just the fields of a class, flags perhaps left out."""
    names = {f.name for f in fields(kind)}
    if not isinstance(data, Mapping) or not names.difference(_FLAGS) <= data.keys() <= names:
        got = sorted(map(str, data)) if isinstance(data, Mapping) else type(data).__name__
        raise OptionError(
            f"{what} has the fields {', '.join(sorted(names))}, not {one_line(str(got), 100)}",
            hint="start from what atc machine --json prints; measure a kept one again: atc machine "
            "--measure",
        )
    return dict(data)


def _number(value: object, name: str, least: float) -> float:
    """Return a number of a record; the largest is beyond what any processor does."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 1e12:
        raise OptionError(f"'{name}' is {one_line(str(value), 40)}, not a number from {least:g} on")
    return float(value)
