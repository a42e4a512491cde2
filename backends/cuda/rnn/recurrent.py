"""CUDA kernel of Recurrent: a block for each row of each direction."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from atc.backends.cuda.kernel import RowKernel, grid, unravel
from atc.backends.cuda.products.tiles import multiply_add
from atc.backends.kernel import Launch, Params, Workload
from atc.backends.render.expr import literal
from atc.backends.render.recurrent import formulas, places
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType
from atc.ir.ops import Recurrent

MOST_BLOCKS = 1024
"""Most blocks, each of which has scratch."""


class RecurrentBlocks(RowKernel[Recurrent]):
    """Any Recurrent: a block computes all steps of a row, whose units its threads share."""

    name = "cuda_recurrent"
    op = Recurrent
    template = "cuda/rnn/recurrent.cu.j2"
    dynamic = True
    threads = 256

    def accepts(self, w: Workload[Recurrent], target: Target) -> bool:
        """Accept floats and doubles with a known number of units."""
        return w.outputs[0].dtype in (DType.FLOAT, DType.DOUBLE) and not is_dynamic(w.op.hidden)

    def rows(self, w: Workload[Recurrent]) -> int:
        """Return the number of rows of all directions."""
        return len(w.op.cells) * w.op.batch

    def launch(self, w: Workload[Recurrent], params: Params, target: Target) -> Launch:
        """Return as many blocks as there is scratch for."""
        return grid(self.rows(w), MOST_BLOCKS, self.threads)

    def _block_bytes(self, w: Workload[Recurrent]) -> int:
        """Return the bytes of a block: the states' shares of the gates, reset h, h in bytes."""
        op = w.op
        size = (op.gates + 1) * op.hidden * w.outputs[0].dtype.itemsize
        return size + -(-op.hidden // 8) * 8 if op.scales else size

    def scratch(self, w: Workload[Recurrent], params: Params, target: Target) -> int:
        """Return the bytes of all blocks."""
        return self.launch(w, params, target).blocks * self._block_bytes(w)

    def overwrites(self, w: Workload[Recurrent], params: Params) -> Mapping[int, tuple[int, ...]]:
        """Let states be replaced where they lie: a row's are its block's alone."""
        places = {0: 4, 1: 5} if w.op.has_memory else {0: 4}
        return {k: (i,) for k, i in places.items() if w.inputs[i] is not None}

    def values(self, w: Workload[Recurrent], params: Params, target: Target) -> dict[str, object]:
        """Addresses of the operands, and each direction's formulas."""
        op, dtype = w.op, w.outputs[0].dtype
        gates = op.gates * op.hidden
        products = [("h", 0, op.gates)]
        if op.cells[0].reset is not None:
            products = [("h", 0, op.gates - 1), ("reset", op.gates - 1, 1)]
        return {
            "op": op, "type": dtype.c, "weight": "int8_t" if op.scales else dtype.c,
            "count": self.rows(w), "products": products, "block_bytes": self._block_bytes(w),
            "indices": unravel("at", [("d", len(op.cells)), ("b", op.batch)]),
            "step": multiply_add(dtype, "total", "OPERAND[p]", f"r[p * {gates} + u]"),
            "scales": [literal(s, DType.FLOAT) for s in op.scales],
            "lengths": w.inputs[3] is not None,
            "initial": [w.inputs[i] is not None for i in (4, 5)],
            "sequence": f"y{len(w.outputs) - 1}",
            "directions": [
                {**places(op, d), **formulas(cell, dtype, _reader(op, d))}
                for d, cell in enumerate(op.cells)
            ],
        }  # fmt: skip


def _reader(op: Recurrent, d: int) -> Callable[[int], str]:
    """Return how C reads Input(k) of the cell's expressions at unit j."""

    def read(k: int) -> str:
        if k < op.state:
            array, gate = ("given", k) if k < op.gates else ("recurrent", k - op.gates)
            return f"{array}[{gate * op.hidden} + j]" if gate else f"{array}[j]"
        own = k - op.state
        if own < 3:
            return ("h[j]", "c[j]", "memory")[own]
        first = (d * op.vectors + own - 3) * op.hidden
        return f"x2[{first} + j]" if first else "x2[j]"

    return read


KERNELS = (RecurrentBlocks(),)
