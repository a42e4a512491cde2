"""Kernels that are a loop of independent iterations."""

from __future__ import annotations

from atc.backends.kernel import Kernel, OpT, ParamsT, Workload
from atc.backends.target import Target


class ParallelFor(Kernel[OpT, ParamsT]):
    """A kernel that is one loop; an iteration writes what no other one reads or writes.

    Its template extends `frame`, that of the processor, and begins the loop by the macro
    `iterations` of parallel_for/loop.j2.
    """

    def iterations(self, w: Workload[OpT]) -> int:
        """Return how often the loop runs."""
        raise NotImplementedError

    def iteration_scratch(self, w: Workload[OpT]) -> int:
        """Return the bytes that an iteration needs for itself."""
        return 0

    def scratch(self, w: Workload[OpT], params: ParamsT, target: Target) -> int:
        """One iteration runs after the other."""
        return self.iteration_scratch(w)
