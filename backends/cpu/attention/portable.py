"""Portable kernel of Attention: one row of scores at a time, keys in panels as in matmul."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from atc.backends.cpu.matmul.portable import COLUMNS, product_rate
from atc.backends.cpu.normalize.portable import lowest
from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.render.expr import address, load, rounded
from atc.backends.render.loops import epilogue_lines, loop_names
from atc.backends.target import Target
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Attention


class AttentionRows(Kernel[Attention]):
    """Any Attention in plain C; keys, a row of scores and one of results lie in scratch."""

    name = "attention"
    op = Attention
    template = "cpu/attention/portable.c.j2"
    dynamic = True

    def accepts(self, w: Workload[Attention], target: Target) -> bool:
        """Require one type of all three operands."""
        types = {t.dtype for t in w.inputs[:3] if t is not None}
        return len(types) == 1 and _computed(w) in (DType.FLOAT, DType.DOUBLE)

    def scratch(self, w: Workload[Attention], params: Params, target: Target) -> int:
        """Reserve the keys of a batch, the scores and the unfinished results of one query."""
        op = w.op
        return (_padded(op) * (op.depth + 1) + op.width) * _computed(w).itemsize

    def values(self, w: Workload[Attention], params: Params, target: Target) -> dict[str, object]:
        """Addresses of the operands and both epilogues."""
        op, dtype = w.op, _computed(w)
        batch = loop_names("b", op.batch)
        outer = [v for v, _ in batch]
        split = 3 + len(op.scores.views)
        inner = replace(w, outputs=(TensorType(dtype, w.outputs[0].shape),))
        scored, score = epilogue_lines(op.scores, inner, "total[j]", [*outer, "i", "(j0 + j)"], 3)
        lines, value = epilogue_lines(op.result, w, "total", [*outer, "i", "e"], split)
        return {
            "op": op, "batch": batch, "type": dtype.c, "nb": COLUMNS, "padded": _padded(op),
            "q": load(w.input(0).dtype, f"x0[{address(op.q_view, [*outer, 'i', 'p'])}]"),
            "k": load(w.input(1).dtype, f"x1[{address(op.k_view, [*outer, 'p', '(j0 + j)'])}]"),
            "v": load(w.input(2).dtype, f"x2[{address(op.v_view, [*outer, 'j', 'e'])}]"),
            "y": address(op.y_view, [*outer, "i", "e"]),
            "scored": scored, "score": score, "lines": lines, "value": value,
            "start": lowest(dtype) if op.masked else "-INFINITY",
            "exp": "exp" if dtype is DType.DOUBLE else "expf",
            "single": target.own_math and dtype is not DType.DOUBLE,
            "rounded": rounded(op.weights, "scores[j] * scale"),
        }  # fmt: skip

    def cost(self, w: Workload[Attention], params: Params, target: Target) -> float:
        """Cycles of both products and of the exponentials."""
        op = w.op
        scores = prod((*op.batch, op.queries, op.keys))
        return scores * (op.depth + op.width + 20) / product_rate(target)


def _computed(w: Workload[Attention]) -> DType:
    """Return the type that is computed in; an epilogue may end in another one."""
    return w.input(0).dtype.computed


def _padded(op: Attention) -> int:
    """Return the keys rounded up to whole panels."""
    return -(-op.keys // COLUMNS) * COLUMNS


KERNELS = (AttentionRows(),)
