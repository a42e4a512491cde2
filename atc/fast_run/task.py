"""Measuring tasks: a network's workloads, and the candidates of one of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from atc.backends.kernel import Candidate, Workload, workload_of
from atc.backends.kernel_source import KernelSource
from atc.backends.target import Target
from atc.ir.graph import Array, Graph
from atc.ir.ops import Reshape, SubView
from atc.ir.text import op_key
from atc.select.cost import packing_overhead
from atc.select.select import Measurement

_FLOAT = r"\b\d+(?:\.\d*(?:e[-+]?\d+)?|e[-+]?\d+)f?\b"
_NUMBER = re.compile(rf"\(-{_FLOAT}\)|{_FLOAT}")


def workloads(graph: Graph, outer: Mapping[str, Array]) -> Iterator[Workload]:
    """Yield the workload of every node that needs a kernel, subgraphs included."""
    constants = {**outer, **graph.constants}
    for node in graph.nodes:
        for inner in node.op.subgraphs():
            yield from workloads(inner, constants)
        if not isinstance(node.op, Reshape | SubView) and not node.op.subgraphs():
            yield workload_of(graph, node, constants)


def workload_digest(w: Workload, target: Target) -> str:
    """Return the digest of a workload on a target: the op, its types, what is constant."""
    parts = [op_key(w.op), str(w.inputs), str(w.outputs), str(w.constant), target.name]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Task:
    """A workload, the candidates to measure, their sources, and the key of their times."""

    workload: Workload
    chosen: tuple[Candidate, ...]
    sources: tuple[KernelSource, ...]
    key: str
    target: Target

    @cached_property
    def text(self) -> str:
        """Return what tasks have in common whose kernels differ in float constants alone.

        Such take the same time: a slope or a scale of each layer.
        """
        texts = (s.text.replace(s.symbol, "") for s in self.sources)
        return "\0".join([*(c.label for c in self.chosen), *(_NUMBER.sub("#", t) for t in texts)])

    def measurement(self, c: Candidate, time_ns: float | None, reason: str) -> Measurement:
        """Return what was measured of a candidate."""
        return Measurement(
            c.label, time_ns, reason, packing_overhead(c, self.workload, self.target)
        )

    def without(self, k: int) -> Task:
        """Return the task without its k-th candidate."""
        return replace(
            self,
            chosen=self.chosen[:k] + self.chosen[k + 1 :],
            sources=self.sources[:k] + self.sources[k + 1 :],
        )
