"""LinearAttention, head by head: columns of a state don't depend on each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.backends.kernel import KernelParams, Workload, WorkSplit
from atc.backends.parallel_for.kernel import ParallelFor
from atc.backends.render.expr import literal
from atc.backends.render.tile_geometry import largest_divisor
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType
from atc.ir.ops.linear_attention import LinearAttention

UNROLLED = 4
"""Rows of a state that are met together."""
LARGEST = 256
"""Most columns at a time."""
RATE = 2.0
"""Numbers of a state that a cycle reads or writes."""


@dataclass(frozen=True, kw_only=True)
class PartitionedParams(KernelParams):
    """Those of a loop whose iterations threads share."""

    partitions: int = 1


class LinearAttentionSteps(ParallelFor[LinearAttention, PartitionedParams]):
    """A state is read for what it holds of a key, then updated while it is read for the query."""

    name = "linear_attention"
    op = LinearAttention
    template = "parallel_for/linear_attention.j2"
    dynamic = True

    def accepts(self, w: Workload[LinearAttention], target: Target) -> bool:
        """Only steps and batch may be for the run to know."""
        op = w.op
        return not is_dynamic((op.heads, op.q_heads, op.k_heads, op.k_size, op.v_size))

    def columns(self, w: Workload[LinearAttention]) -> int:
        """Return the columns of a state that an iteration computes."""
        return largest_divisor(w.op.v_size, LARGEST)

    def iterations(self, w: Workload[LinearAttention]) -> int:
        """Return the number of columns of all states, in blocks."""
        return w.op.batch * w.op.heads * (w.op.v_size // self.columns(w))

    def in_place(self, w: Workload[LinearAttention]) -> tuple[int, ...]:
        """Return the first state, of which an iteration reads its own columns before it writes."""
        return (3,) if w.op.window == 1 else ()

    def parameters(
        self, w: Workload[LinearAttention], target: Target
    ) -> Sequence[PartitionedParams]:
        """One thread computes all."""
        return (PartitionedParams(),)

    def shared_params(
        self, w: Workload[LinearAttention], params: PartitionedParams, target: Target, threads: int
    ) -> Sequence[PartitionedParams]:
        """Threads share the heads."""
        return (PartitionedParams(partitions=threads),) if w.op.heads >= threads else ()

    def work_split(
        self, w: Workload[LinearAttention], params: PartitionedParams, target: Target
    ) -> WorkSplit:
        """Partitions of iterations."""
        return WorkSplit(params.partitions)

    def values(
        self, w: Workload[LinearAttention], params: PartitionedParams, target: Target
    ) -> dict[str, object]:
        """Return extents, and which operands there are."""
        op, (_, _, _, _, decay, rate) = w.op, w.inputs
        by_key = decay is not None and decay.shape[-1] == op.k_size > 1
        return {
            "op": op, "columns": self.columns(w), "count": self.iterations(w),
            "partitions": params.partitions, "unrolled": min(UNROLLED, op.k_size),
            "scale": literal(op.scale, DType.FLOAT), "decays": decay is not None, "by_key": by_key,
            "rates": 0 if rate is None else op.heads if rate.shape[-1] == op.heads else 1,
            "state": op.k_size * op.v_size,
        }  # fmt: skip

    def cost(
        self, w: Workload[LinearAttention], params: PartitionedParams, target: Target
    ) -> float:
        """Return the cycles of passes over the states."""
        op = w.op
        passes = 2 + op.delta + max(op.readers // op.heads - 1, 0)
        return op.batch * op.steps * op.heads * op.k_size * op.v_size * passes / RATE
