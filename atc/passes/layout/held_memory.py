"""The memory that a graph's values and kernels' scratch take at a time, before it is planned.

Values that are parts of others, or overwrite an operand, take none of their own. Of those that
pass through cascades of calls only some rows are held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from atc.dims import max_value
from atc.ir.graph import DType, Graph, TensorType, reads
from atc.ir.ops import Map, Normalize, Reshape, Softmax, SubView
from atc.ir.ops.data import Concat

Types = Mapping[str, TensorType]
Rows = tuple[DType, int]
"""The type of a value, and the bytes of the rows of it that a cascade holds."""


@dataclass
class HeldMemory:
    """The times at which the values of a graph are held: from the node that begins to make them to
    the last that reads them. Of values of more than `near` bytes cascades hold rows: `rows` has the
    type of such a value and their bytes then."""

    graph: Graph
    near: int = 0
    rows: Mapping[str, Rows] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    """The values in whose memory others lie."""
    first: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    live: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        made = {name for node in self.graph.nodes for name in node.outputs}
        for node in self.graph.nodes:
            if isinstance(node.op, Reshape | SubView):
                self.source[node.outputs[0]] = node.inputs[0]
            elif isinstance(node.op, Concat) and node.op.outer == 1:
                parts = (n for n in dict.fromkeys(node.inputs) if n in made)
                self.source.update({n: node.outputs[0] for n in parts if n not in self.source})
        for k, node in enumerate(self.graph.nodes):
            for name in map(self.base, (*reads(node), *node.outputs)):
                self.last[name] = k
            for name in map(self.base, node.outputs):
                self.first.setdefault(name, k)
        kept = self.first.keys() - {*self.graph.outputs}  # which the caller has memory for
        self.live = [[] for _ in self.graph.nodes]
        for name in sorted(kept):
            for k in range(self.first[name], self.last[name] + 1):
                self.live[k].append(name)

    def base(self, name: str) -> str:
        """Return the value in whose memory another lies."""
        while name in self.source:
            name = self.source[name]
        return name

    def most(self, types: Types, scratch: Sequence[int]) -> int:
        """Return the most bytes that are held at a time, with the scratch of every node."""
        return self.during(range(len(self.live)), types, scratch)

    def while_held(self, names: Iterable[str]) -> Iterable[int]:
        """Return the nodes at which any of some values is held, or made, or read."""
        found: set[int] = set()
        for name in map(self.base, names):
            if name in self.first:
                found.update(range(self.first[name], self.last[name] + 1))
        return found

    def during(self, nodes: Iterable[int], types: Types, scratch: Sequence[int]) -> int:
        """Return the most bytes that are held at some nodes."""
        return max((self._at(k, types) + scratch[k] for k in nodes), default=0)

    def _at(self, k: int, types: Types) -> int:
        held = sum(self._bytes(name, types) for name in self.live[k])
        return held - self._overwritten(k, types)

    def _bytes(self, name: str, types: Types) -> int:
        size = max_value(types[name].nbytes)
        if name not in self.rows or size <= self.near:
            return size
        dtype, held = self.rows[name]
        return held * types[name].dtype.itemsize // dtype.itemsize

    def _overwritten(self, k: int, types: Types) -> int:
        """Return the bytes of an operand in whose memory a node writes its result."""
        node = self.graph.nodes[k]
        if not isinstance(node.op, Map | Softmax | Normalize):
            return 0
        y = node.outputs[0]
        for name in dict.fromkeys(node.inputs):
            own = self.base(name) == name and self.last.get(name) == k and name in self.first
            size = self._bytes(name, types) if own else 0
            if own and types[name].dtype is types[y].dtype and size == self._bytes(y, types):
                return size
        return 0
