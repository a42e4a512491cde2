"""Limits of a traced function's memory: MegEngine's two configurations."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from atc.tracing.errors import ArgumentError


def _at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if not isinstance(value, int):
            raise ArgumentError(f"{name} is {value!r}, not a whole number", where=name)
        if value < least:
            raise ArgumentError(f"{name} is {value}, below {least}", where=name)


@dataclass(frozen=True)
class SublinearMemoryConfig:
    """Values are recomputed to save memory, after a search for the cheapest choice.

    `thresh_nr_try` rules are tried, then `genetic_nr_iter` rounds of `genetic_pool_size`, by
    `num_worker` threads, up to four times the cores; nothing more is recomputed once memory is
    down to `lb_memory_mb`.
    """

    thresh_nr_try: int = 10
    genetic_nr_iter: int = 0
    genetic_pool_size: int = 20
    lb_memory_mb: int = 0
    num_worker: int = field(default_factory=lambda: max(1, (os.cpu_count() or 2) // 2))

    def __post_init__(self) -> None:
        _at_least(0, thresh_nr_try=self.thresh_nr_try, genetic_nr_iter=self.genetic_nr_iter,
                  genetic_pool_size=self.genetic_pool_size,
                  lb_memory_mb=self.lb_memory_mb)  # fmt: skip
        _at_least(1, num_worker=self.num_worker)
        most = 4 * (os.cpu_count() or 1)
        if self.num_worker > most:
            raise ArgumentError(f"num_worker is {self.num_worker}, above {most}, four times the "
                                "cores", where="num_worker")  # fmt: skip
        if self.genetic_nr_iter:
            _at_least(1, genetic_pool_size=self.genetic_pool_size)

    def options(self) -> dict[str, Any]:
        """Return the equivalent keywords of `atc.compile`."""
        return {
            "recompute": "all", "recompute_tries": self.thresh_nr_try,
            "recompute_rounds": self.genetic_nr_iter, "recompute_pool": self.genetic_pool_size,
            "recompute_until": self.lb_memory_mb << 20, "recompute_workers": self.num_worker,
        }  # fmt: skip


@dataclass(frozen=True)
class DTRConfig:
    """Values of at least `evictee_minimum_size` bytes are evicted where memory exceeds a threshold.

    The threshold is the most memory that the network may take, in bytes: arena, parameters and
    their new values, gradients. If the network can't do with it, the error names the least that it
    needs.
    """

    eviction_threshold: int = 0
    evictee_minimum_size: int = 1 << 20

    def __post_init__(self) -> None:
        _at_least(1, eviction_threshold=self.eviction_threshold)
        _at_least(0, evictee_minimum_size=self.evictee_minimum_size)

    def options(self) -> dict[str, Any]:
        """Return the equivalent keywords of `atc.compile`."""
        return {
            "recompute": "all", "memory_budget": self.eviction_threshold,
            "recompute_minimum": self.evictee_minimum_size,
        }  # fmt: skip
