"""CUDA kernel of MoveRows: blocks for parts of rows, which don't depend on each other."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import gcd

from atc.backends.cuda.kernel import MOST_BLOCKS, DeviceKernel, grid
from atc.backends.kernel import Launch, Params, Workload
from atc.backends.target import Target
from atc.ir.ops.data import MoveRows, RowsMoved

WIDEST, COLUMNS = 16, 32
"""The most bytes that an instruction reads, and neighbours that a block reads at least."""


class MoveRowsParts(DeviceKernel[MoveRows]):
    """Any MoveRows: elements that are a step apart are one block's, which moves them in order."""

    name = "cuda_move_rows"
    op = MoveRows
    template = "cuda/data/move_rows.cu.j2"
    barriers = True
    threads = 256

    def _moves(self, w: Workload[MoveRows]) -> list[tuple[int, RowsMoved]]:
        """Return the bytes of the widest elements that each operand's are, and its move in them."""
        found = []
        for k, m in enumerate(w.op.moves):
            size = w.input(k).dtype.itemsize
            ends = (m.begin, m.pitch if m.rows > 1 else 0, m.length, m.step)
            width = gcd(WIDEST, *(n * size for n in ends))
            begin, pitch, length, step = (n * size // width for n in ends)
            found.append((width, RowsMoved(begin, m.rows, pitch, length, step)))
        return found

    def _blocks(self, w: Workload[MoveRows]) -> list[int]:
        """Return the parts of each operand's rows."""
        return [m.rows * -(-abs(m.step) // COLUMNS) for _, m in self._moves(w)]

    def launch(self, w: Workload[MoveRows], params: Params, target: Target) -> Launch:
        """Return a block for each part, up to a limit."""
        return grid(sum(self._blocks(w)), MOST_BLOCKS, self.threads)

    def values(self, w: Workload[MoveRows], params: Params, target: Target) -> dict[str, object]:
        """Return the moves, and which parts are each one's."""
        blocks = self._blocks(w)
        begins = accumulate(blocks, initial=0)
        return {
            "count": sum(blocks), "columns": COLUMNS, "moves": [
                {"width": width, "move": move, "parts": parts // move.rows, "begin": begin,
                 "end": begin + parts}
                for (width, move), parts, begin in zip(self._moves(w), blocks, begins, strict=False)
            ],
        }  # fmt: skip

    def overwrites(self, w: Workload[MoveRows], params: Params) -> Mapping[int, tuple[int, ...]]:
        """Rows are moved where they lie."""
        return {k: (k,) for k in range(len(w.outputs))}


KERNELS = (MoveRowsParts(),)
