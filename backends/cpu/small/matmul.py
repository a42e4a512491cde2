"""Products of bytes with constant weights (fully connected layers), as sums of runs."""

from __future__ import annotations

from collections.abc import Mapping

from atc.backends.cpu.small.conv import read_zero, run_values
from atc.backends.cpu.small.runs import TILES, Runs, instructions
from atc.backends.kernel import Kernel, Pack, Params, StripedParams, Workload
from atc.backends.render.axis import SINGLE, Axis
from atc.backends.render.stripes import stripes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Array, DType
from atc.ir.ops import MatMul
from atc.ir.ops.blocked import BYTES
from atc.ir.view import gather_view


class MatMulRuns(Kernel[MatMul, Params]):
    """A of u8 or s8 times constant B of s8: rows of A are pixels, columns of B filters."""

    name = "matmul_runs"
    op = MatMul
    template = "cpu/small/runs.c.j2"
    headers = ("small",)
    bitwise_reproducible = True

    def accepts(self, w: Workload[MatMul], target: Target) -> bool:
        """No batch, A's rows dense, B known and symmetric."""
        op = w.op
        if not target.bytes_last or is_dynamic(w) or op.batch or not w.constant[1]:
            return False
        a, b = w.input(0), w.input(1)
        bytes_ = a.dtype in BYTES and b.dtype is DType.INT8 and op.accumulator is DType.INT32
        rows = op.a_view.strides[-1] == 1 and (op.m == 1 or op.a_view.strides[0] == op.k)
        whole = not op.a_view.offset and 0 not in (op.m, op.n, op.k)
        return bytes_ and rows and whole and op.b_zero == 0

    def packs(self, w: Workload[MatMul], params: Params, target: Target) -> Mapping[int, Pack]:
        """Columns in the order of use, behind what the sums start with."""
        op, runs = w.op, _runs(w, target)
        k, n, view = op.k, op.n, op.b_view
        zero = read_zero(w, op.a_zero, runs.kind)

        def pack(weights: Array) -> Array:
            return runs.pack(gather_view(weights, (k, n), view).T.reshape(n, 1, 1, k), zero)

        return {1: pack}

    def values(self, w: Workload[MatMul], params: Params, target: Target) -> dict[str, object]:
        """Return geometry and epilogue."""
        op = w.op
        own = run_values(w, _runs(w, target), op.epilogue, op.a_zero, 2, ["q", "m"])
        return {**own, "s": stripes(StripedParams(), 1, 1)}

    def cost(self, w: Workload[MatMul], params: Params, target: Target) -> float:
        """Estimated instructions."""
        return _runs(w, target).cost


def _runs(w: Workload[MatMul], target: Target) -> Runs:
    op = w.op
    kind = instructions(target)
    tile = next((t for t in TILES[kind] if t[0] <= op.m), TILES[kind][-1])
    cols = Axis(op.m, op.m)
    return Runs(1, SINGLE, cols, op.k, op.n, kind, *tile, False)


KERNELS = (MatMulRuns(),)
