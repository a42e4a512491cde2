"""CUDA kernel of any Attention: a block for each query, sums in double."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from atc.backends.cuda.gpus import gpu_of
from atc.backends.cuda.kernel import RowKernel, grid, seconds, unravel
from atc.backends.cuda.normalize.rows import lowest
from atc.backends.kernel import Launch, Params, Workload
from atc.backends.render.expr import address, load, rounded
from atc.backends.render.loops import epilogue_lines, loop_names
from atc.backends.target import Target
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Attention

ROWS_OF_SCORES = 1024
"""Most blocks, each of which has a row of scores in scratch."""


class AttentionRows(RowKernel[Attention]):
    """Any Attention: a block computes a query's scores in scratch, then its result."""

    name = "cuda_attention"
    op = Attention
    template = "cuda/attention/attention.cu.j2"
    dynamic = True

    def accepts(self, w: Workload[Attention], target: Target) -> bool:
        """Accept operands of one type of floats."""
        return computed(w) is not None

    def rows(self, w: Workload[Attention]) -> int:
        """Return the number of queries."""
        op = w.op
        return prod(op.batch) * op.queries

    def launch(self, w: Workload[Attention], params: Params, target: Target) -> Launch:
        """Return as many blocks as there is scratch for."""
        return grid(self.rows(w), ROWS_OF_SCORES, self.threads)

    def cost(self, w: Workload[Attention], params: Params, target: Target) -> float:
        """Return the seconds that the products take: each loads an operand from memory."""
        op, gpu = w.op, gpu_of(target.device)
        clocks = 8 * op.keys * (op.depth + op.width) / gpu.fmas + 8 * (op.depth + op.keys)
        return seconds(w, gpu.compute_ns(self.rows(w), 8, clocks), gpu)

    def scratch(self, w: Workload[Attention], params: Params, target: Target) -> int:
        """Return the bytes of a row of scores for each block."""
        op = w.op
        blocks = self.launch(w, params, target).blocks
        return (blocks * op.keys or 1) * w.input(0).dtype.computed.itemsize

    def values(self, w: Workload[Attention], params: Params, target: Target) -> dict[str, object]:
        """Addresses of the operands and both epilogues."""
        op, stored = w.op, w.input(0).dtype
        dtype = stored.computed
        rows = [*loop_names("b", op.batch), ("i", op.queries)]
        outer = [v for v, _ in rows]
        split = 3 + len(op.scores.views)
        inner = replace(w, outputs=(TensorType(dtype, w.outputs[0].shape),))
        scored, score = epilogue_lines(op.scores, inner, "total", [*outer, "j"], 3)
        after, value = epilogue_lines(op.result, w, "total", [*outer, "e"], split)
        wide = dtype is DType.DOUBLE
        return {
            "op": op, "count": self.rows(w), "indices": unravel("at", rows), "type": dtype.c,
            "q": load(stored, f"x0[{address(op.q_view, [*outer, 'p'])}]"),
            "k": load(stored, f"x1[{address(op.k_view, [*outer[:-1], 'p', 'j'])}]"),
            "v": load(stored, f"x2[{address(op.v_view, [*outer[:-1], 'j', 'e'])}]"),
            "y": address(op.y_view, [*outer, "e"]),
            "scored": scored, "score": score, "after": after, "value": value,
            "start": lowest(dtype) if op.masked else "-INFINITY",
            "exp": "exp" if wide else "expf", "fma": "fma" if wide else "fmaf",
            "rounded": rounded(op.weights, "scores[j] * scale"),
        }  # fmt: skip


def computed(w: Workload[Attention]) -> DType | None:
    """Return the type that is computed in, if the operands are of one type of floats."""
    types = {t.dtype for t in w.inputs[:3] if t is not None}
    wide = w.input(0).dtype.computed
    return wide if len(types) == 1 and wide in (DType.FLOAT, DType.DOUBLE) else None


KERNELS = (AttentionRows(),)
