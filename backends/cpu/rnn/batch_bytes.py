"""Recurrent of bytes, all rows of a step together: each weight is read once for many rows.

Before a step each row of h is rounded to bytes by its own range, as the kernel of single rows does
it; the sums are the same integers.
"""

from __future__ import annotations

import numpy as np

from atc.backends.cpu.rnn.batch import BatchParams, RecurrentBatch
from atc.backends.cpu.rnn.portable import padded
from atc.backends.cpu.rnn.vectors import DEEPEST, WORD
from atc.backends.kernel import Workload
from atc.backends.render.expr import literal
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.ir.graph import Array, DType
from atc.ir.ops import Recurrent


class RecurrentBytes(RecurrentBatch):
    """Bytes in register tiles of mr rows by nv vectors; a group is u vectors of units."""

    name = "recurrent_bytes"
    template = "cpu/rnn/batch_bytes.c.j2"
    integers = True

    def accepts(self, w: Workload[Recurrent], target: Target) -> bool:
        """Accept layers that round h, of sums that fit 32 bits."""
        return w.op.hidden <= DEEPEST and super().accepts(w, target)

    def depth(self, op: Recurrent) -> int:
        """Return the words of a column."""
        return -(-op.hidden // WORD)

    def column(self, op: Recurrent) -> int:
        """Return the bytes of a packed column: its sum and its words."""
        return WORD * (self.depth(op) + 1)

    def stride(self, op: Recurrent, lane: int) -> int:
        """Return the words from row to row: bytes, factor and zero point; never a page apart."""
        whole = padded(self.depth(op) + 2, lane)
        return whole + lane * (whole % 1024 == 0)

    def deep(self, op: Recurrent, own: Array) -> Array:
        """Return sums of columns, then words of 4 bytes: [.., 1 + words, vectors, 4 * lanes]."""
        outer, (vectors, lane) = own.shape[:2], own.shape[3:]
        full = np.pad(own, ((0, 0), (0, 0), (0, -op.hidden % WORD), (0, 0), (0, 0)))
        words = full.reshape(*outer, -1, WORD, vectors, lane)
        words = np.moveaxis(words, 3, -1).reshape(*outer, -1, vectors, lane * WORD)
        sums = own.sum(2, keepdims=True, dtype=np.int32).view(np.int8)
        return np.concatenate([sums, words], 2)

    def values(
        self, w: Workload[Recurrent], params: BatchParams, target: Target
    ) -> dict[str, object]:
        """Return the scale of a direction, and the units after those in whole vectors."""
        op = w.op
        first, *others = (literal(s, DType.FLOAT) for s in op.scales)
        rest = op.hidden % lanes(target)
        return {
            **super().values(w, params, target), "hidden_whole": op.hidden - rest,
            "hidden_rest": rest,
            "scale": f"d == 0 ? {first} : {others[0]}" if others else first,
        }  # fmt: skip


KERNELS = (RecurrentBytes(),)
