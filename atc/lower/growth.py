"""Growing inputs: how they grow, and the buffers that they lie in.

Such an input [outer, past, inner] is the begin of each row of a buffer [outer, room, inner]. What a
node joins behind it is written there, where the buffer lies, and what follows reads both as a view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from atc.dims import Symbol, dim
from atc.errors import UnsupportedError


@dataclass(frozen=True)
class Growth:
    """An input that grows along an axis, in each run by `more`; at most to `room`.

    `past`, the extent that it has before a run, is then at most `room - more`.
    """

    axis: int
    past: Symbol
    more: int
    room: int
    output: str
    """What it becomes."""

    @property
    def limit(self) -> int:
        """The most that the input may be before a run."""
        return self.room - self.more

    @property
    def length(self) -> tuple[Symbol, int]:
        """The extent before a run, as it is called where the input lies in a buffer, and after."""
        symbol = replace(self.past, high=self.limit)
        return symbol, dim(symbol) + self.more


@dataclass
class Caches:
    """The buffers of one lowering. A value that is read as the past stands for each."""

    growths: Mapping[str, Growth] = field(default_factory=dict)
    """By the names of inputs."""
    buffers: dict[str, str] = field(default_factory=dict)
    """By the values that are read as their past."""
    made: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Of each past the buffer as a node has left it, and its begin, which is what follows reads."""

    @property
    def limits(self) -> dict[int, int]:
        """The most that extents may be, by the numbers of their symbols."""
        return {g.past.index: g.limit for g in self.growths.values()}

    def output(self, name: str, value: str) -> str:
        """Return what the graph's output is where the model's is a value: of a cache, its buffer.

        Raises UnsupportedError for one that is not what was appended.
        """
        given = next((k for k, g in self.growths.items() if g.output == name), "")
        if not given:
            return value
        past = next(p for p, buffer in self.buffers.items() if buffer == given)
        left, whole = self.made.get(past, ("", ""))
        if not whole or whole != value:
            raise UnsupportedError(
                f"output '{name}' is not input '{given}' with more behind it", where="--state",
                hint="leave it in the signature, and name the other states",
            )  # fmt: skip
        return left
