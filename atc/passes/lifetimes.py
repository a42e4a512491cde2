"""Live ranges of the values of a graph, and the bytes that they need at each node."""

from __future__ import annotations

from itertools import accumulate

from atc.ir.graph import Graph, reads
from atc.ir.ops import Reshape

_ALIGNMENT = 64


class Lifetimes:
    """Live ranges of a graph's values: bases by name, steps by base, bytes by step.

    Results of Reshape share their operands' memory. Inputs, constants and outputs don't count.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._base: dict[str, str] = {}
        self.made: dict[str, int] = {}
        self.used: dict[str, list[int]] = {}
        for step, node in enumerate(graph.nodes):
            for name in reads(node):
                self.used.setdefault(self.base(name), []).append(step)
            for name in node.outputs:
                if isinstance(node.op, Reshape):
                    self._base[name] = self.base(node.inputs[0])
                else:
                    self.made[name] = step
        outside = {*graph.inputs, *graph.constants, *graph.outputs}
        self.outside = {self.base(name) for name in outside}
        self.sizes = {
            name: -(-graph.types[name].nbytes // _ALIGNMENT) * _ALIGNMENT
            for name in self.made
            if name not in self.outside
        }
        self.load = self._loads()
        self.peak = max(self.load, default=0)

    def base(self, name: str) -> str:
        """Return the value whose memory a value lives in."""
        return self._base.get(name, name)

    def last(self, base: str) -> int:
        """Return the step of a value's last use."""
        return self.used.get(base, [self.made.get(base, 0)])[-1]

    @property
    def area(self) -> tuple[int, int]:
        """The peak, and the sum of the bytes at all steps."""
        return self.peak, sum(self.load)

    def _loads(self) -> list[int]:
        change = [0] * (len(self.graph.nodes) + 1)
        for name, size in self.sizes.items():
            change[self.made[name]] += size
            change[self.last(name) + 1] -= size
        return list(accumulate(change[:-1]))
