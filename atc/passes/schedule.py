"""Run nodes that free memory early: an order of the same nodes with shorter live ranges.

Models list their nodes in an order of their own. In a training step the gradients of biases, which
are sums of large values, often come after all others, and those values wait for them. List
scheduling by what a value's last readers free avoids that; nothing is computed differently or more
than once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from atc.ir.graph import Graph, Node, reads
from atc.passes.lifetimes import Lifetimes

_MOVED = 32
"""The most nodes that are moved together."""


def free_early(graph: Graph) -> Graph:
    """Return the graph with nodes moved up where that frees memory.

    A node that computes a result of the graph isn't moved before another one that reads the same
    input: the result may overwrite that input.
    """
    moved = replace(graph, nodes=tuple(_Order(graph).nodes()))
    return moved if Lifetimes(moved).area < Lifetimes(graph).area else graph


class _Order:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.lives = Lifetimes(graph)
        self.needs = [[self.lives.base(n) for n in reads(node)] for node in graph.nodes]
        self.makes = [[self.lives.base(n) for n in node.outputs] for node in graph.nodes]
        self.writers: dict[str, list[int]] = {}
        self.readers: dict[str, list[int]] = {}
        for k, node in enumerate(graph.nodes):
            for name in node.outputs:
                self.writers.setdefault(name, []).append(k)
        for k in range(len(graph.nodes)):
            for place in dict.fromkeys(self.needs[k]):
                self.readers.setdefault(place, []).append(k)
        self.inputs = {self.lives.base(n) for n in graph.inputs}
        self.blocked: dict[str, dict[str, None]] = {}
        """Values that would be freed but for an input that other nodes have to read before."""
        self.done = [False] * len(graph.nodes)

    def nodes(self) -> Iterator[Node]:
        """Yield the nodes in their new order."""
        for k in range(len(self.done)):
            if not self.done[k]:
                yield from self._run(k)

    def _run(self, first: int) -> Iterator[Node]:
        waiting = [first]
        while waiting:
            k = waiting.pop()
            if self.done[k]:
                continue
            self.done[k] = True
            yield self.graph.nodes[k]
            freed = (p for n in self.needs[k] for p in self.blocked.pop(n, ()))
            for place in dict.fromkeys([*self.needs[k], *self.makes[k], *freed]):
                if group := self._freeing(place):
                    waiting += reversed(group)

    def _freeing(self, place: str) -> Sequence[int]:
        """Return the nodes that free a value, in order, if they free more than they allocate."""
        if place not in self.lives.sizes:
            return ()
        left = [k for k in self.readers.get(place, ()) if not self.done[k]]
        if not left or len(left) > _MOVED:
            return ()
        group: set[int] = set()
        stack = left
        while stack:
            k = stack.pop()
            if k in group:
                continue
            node = self.graph.nodes[k]
            if len(group) == _MOVED:
                return ()
            group.add(k)
            stack += [
                w for n in reads(node) for w in self.writers.get(n, ()) if not self.done[w]
            ]
        early = {n for k in group for n in self._read_later(k, group)}
        for name in early:
            self.blocked.setdefault(name, {})[place] = None
        if early:
            return ()
        freed = made = 0
        for value in {p for k in group for p in self.needs[k] + self.makes[k]}:
            size = self.lives.sizes.get(value, 0)
            dies = all(self.done[k] or k in group for k in self.readers.get(value, ()))
            inside = any(value in self.makes[k] for k in group)
            freed += size if dies and not inside else 0
            made += size if inside and not dies else 0
        return sorted(group) if freed > made else ()

    def _read_later(self, step: int, group: set[int]) -> Iterator[str]:
        """Yield the inputs that others have to read before a node that computes a result."""
        node = self.graph.nodes[step]
        if not self.graph.ends.intersection(node.outputs):
            return
        types = {self.graph.types[n] for n in node.outputs}
        for name in dict.fromkeys(self.needs[step]):
            overwritten = name in self.inputs and self.graph.types[name] in types
            if overwritten and not all(self.done[k] or k in group for k in self.readers[name]):
                yield name
