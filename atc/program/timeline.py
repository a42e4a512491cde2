"""The times when data-dependent extents are known, in the order in which nodes run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from atc.dims import Symbol, symbols_of
from atc.ir.graph import Node
from atc.ir.ops import If, Loop


@dataclass
class Timeline:
    """A clock that counts the beginnings and ends of nodes, and what was when."""

    clock: int = 0
    begun: dict[str, int] = field(default_factory=dict)
    """When the node of a value begins; of a Concat, the first of those that compute its parts."""
    written: dict[Symbol, int] = field(default_factory=dict)
    """When an extent of the data has been written last."""

    def begin(self, node: Node) -> None:
        """Note that a node begins."""
        self.clock += 1
        self.begun.update(dict.fromkeys(node.outputs, self.clock))
        if isinstance(node.op, Loop):  # its body knows what it carries
            self._write(own for own, _, _ in node.op.carried_extents)

    def end(self, node: Node) -> None:
        """Note that a node has ended, and so has written the extents of its results."""
        self.clock += 1
        self._write(node.op.written)
        match node.op:
            case If(extents=extents):
                self._write(own for own, _, _ in extents)
            case Loop(carried_extents=extents, trip_count=count):
                self._write((*(own for own, _, _ in extents), count))

    def join(self, part: str, whole: str) -> None:
        """Note that a value is computed as a part of another one."""
        self.begun[whole] = min(self.begun[whole], self.begun[part])

    def is_known(self, extent: int, value: str) -> bool:
        """Return whether an extent is known before the node of a value begins."""
        when = self.begun[value]
        return all(self.written.get(symbol, 0) <= when for symbol in symbols_of(extent))

    def _write(self, extents: Iterable[int]) -> None:
        self.written.update(dict.fromkeys(symbols_of(tuple(extents)), self.clock))
