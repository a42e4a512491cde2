"""Threads that share the panels of a product: the run counts its rows, there may be one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from typing_extensions import TypeVar

from atc.backends.cpu.matmul.cost import TileParams
from atc.backends.kernel import OpT_contra, Splittable, Workload, WorkSplit
from atc.backends.target import Target


@dataclass(frozen=True, kw_only=True)
class SharedParams(TileParams):
    """Those of tiles whose panels `partitions` threads share."""

    partitions: int = 1


SharedT = TypeVar("SharedT", bound=SharedParams, default=SharedParams)


class SharesPanels(Splittable[OpT_contra, SharedT], Protocol):
    """A kernel whose partitions are whole panels, the last one also what is left of the columns."""

    def shared_panels(self, w: Workload[OpT_contra], params: SharedT, target: Target) -> int:
        """Return how many panels, or groups of them, threads may share; 0 if they don't."""
        raise NotImplementedError

    def shared_params(
        self, w: Workload[OpT_contra], params: SharedT, target: Target, threads: int
    ) -> Sequence[SharedT]:
        """Return a partition for each thread."""
        enough = self.shared_panels(w, params, target) >= threads
        return [replace(params, partitions=threads)] if enough else []

    def work_split(self, w: Workload[OpT_contra], params: SharedT, target: Target) -> WorkSplit:
        """Partitions of panels."""
        return WorkSplit(params.partitions)
