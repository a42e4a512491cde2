"""Stripes of rows, axis 2 of a tensor: which are computed, which memory holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from typing_extensions import TypeVar

from atc.backends.kernel import OpT, Stripable, StripedParams, Workload
from atc.backends.target import Target

StripedT = TypeVar("StripedT", bound=StripedParams, default=StripedParams)


@dataclass(frozen=True)
class Stripes:
    """C of the rows [begin, end) that are computed; rows of x and y in memory, and their begin."""

    begin: str
    end: str
    x_rows: int
    y_rows: int
    x_first: str
    """Is put behind a row of x: minus the first one in memory, if that isn't always row 0."""
    y_first: str

    @property
    def all(self) -> bool:
        """Whether all rows are computed at once."""
        return self.begin == "0"


def stripes(params: StripedParams, x: int, y: int) -> Stripes:
    """Return the stripes of a kernel's parameters, for so many rows of input 0 and output 0."""
    if params.x_rows is None:
        return Stripes("0", str(y), x, y, "", "")
    x_first, y_first = " - x_first" * bool(params.x_rows), " - y_first" * bool(params.y_rows)
    return Stripes("begin", "end", params.x_rows or x, params.y_rows or y, x_first, y_first)


class InStripes(Stripable[OpT, StripedT]):
    """Kernels whose loop over rows, axis 2 of input 0 and output 0, may begin and end anywhere."""

    def striped_params(
        self, w: Workload[OpT], params: StripedT, target: Target, x_rows: int, y_rows: int
    ) -> StripedT | None:
        """Return the same parameters for a part of the rows."""
        if len(w.input(0).shape) < 4 or len(w.outputs[0].shape) != 5:
            return None
        return replace(params, x_rows=x_rows, y_rows=y_rows)

    def stripe_ends(
        self, w: Workload[OpT], params: StripedT, target: Target
    ) -> Sequence[int]:
        """Return all rows."""
        return range(1, w.outputs[0].shape[2] + 1)
