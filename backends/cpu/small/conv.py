"""Convolution of bytes with the channels last, [N, 1, *spatial, C], as sums of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atc.backends.cpu.small.requantize import requantization, result_lines
from atc.backends.cpu.small.runs import TILES, Runs, instructions
from atc.backends.kernel import Kernel, Pack, StripedParams, Workload
from atc.backends.render.axis import Axis, plane_axes
from atc.backends.render.stripes import InStripes, stripes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Array, DType
from atc.ir.ops import ConvBlocked, Epilogue


def spatial_axes(w: Workload[ConvBlocked]) -> tuple[Axis, Axis]:
    """Return rows and columns of a convolution with the channels last; one axis is columns."""
    x, y = w.input(0), w.outputs[0]
    return plane_axes(w.op.window, y.shape[2:-1], x.shape[2:-1])


def takes_bytes_last(w: Workload[ConvBlocked], target: Target) -> bool:
    """Return whether it is a convolution of bytes with the channels last, its weights known."""
    bytes_ = w.op.accumulator is DType.INT32 and w.constant[1]
    if not bytes_ or not target.bytes_last or is_dynamic(w):
        return False
    rank, x, y = w.op.window.rank, w.input(0).shape, w.outputs[0].shape
    last = len(x) == len(y) == rank + 3 and x[1] == y[1] == 1
    return last and rank in (1, 2) and 0 not in y


def dims(w: Workload[ConvBlocked]) -> list[str]:
    """Return the C variables of the loops over a result's axes."""
    spatial = ["h", "q"] if len(w.outputs[0].shape) == 5 else ["q"]
    return ["n", "0", *spatial, "m"]


@dataclass(frozen=True, kw_only=True)
class RunParams(StripedParams):
    """The way in which windows are read."""

    patch: bool
    """Whether every one is copied, to one run."""


class ConvRuns(InStripes[ConvBlocked, RunParams], Kernel[ConvBlocked, RunParams]):
    """Convolution of u8 or s8 by s8, tile by tile."""

    name = "conv_runs"
    op = ConvBlocked
    template = "cpu/small/runs.c.j2"
    headers = ("small",)
    bitwise_reproducible = True

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Known weights of one group."""
        return takes_bytes_last(w, target) and w.op.group == 1

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[RunParams]:
        """Windows as they lie, or copied; the one of less work first."""
        ways = [RunParams(patch=patch) for patch in (False, True) if _able(w, patch)]
        return sorted(ways, key=lambda params: self.cost(w, params, target))

    def scratch(self, w: Workload[ConvBlocked], params: RunParams, target: Target) -> int:
        """Reserve a copy of what a tile reads."""
        return runs_of(w, params, target).scratch

    def packs(
        self, w: Workload[ConvBlocked], params: RunParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights in the order of use, behind what the sums start with."""
        runs = runs_of(w, params, target)
        zero = read_zero(w, w.op.zero, runs.kind)

        def pack(weights: Array) -> Array:
            spatial = weights.reshape(*weights.shape[:2], runs.rows.kernel, runs.cols.kernel)
            return runs.pack(spatial.transpose(0, 2, 3, 1), zero)

        return {1: pack}

    def values(
        self, w: Workload[ConvBlocked], params: RunParams, target: Target
    ) -> dict[str, object]:
        """Return geometry and epilogue."""
        runs = runs_of(w, params, target)
        own = run_values(w, runs, w.op.epilogue, w.op.zero, 2, dims(w))
        return {**own, "s": stripes(params, runs.rows.size, runs.rows.out)}

    def cost(self, w: Workload[ConvBlocked], params: RunParams, target: Target) -> float:
        """Estimated instructions."""
        return runs_of(w, params, target).cost


def _able(w: Workload[ConvBlocked], patch: bool) -> bool:
    """Return whether windows can be read as they lie; copies always can."""
    _, cols = spatial_axes(w)
    return patch or cols.dilation == 1 or cols.kernel == 1


def runs_of(w: Workload[ConvBlocked], params: RunParams, target: Target) -> Runs:
    """Return the geometry of a convolution."""
    rows, cols = spatial_axes(w)
    kind = instructions(target)
    tile = next((t for t in TILES[kind] if t[0] <= cols.out), TILES[kind][-1])
    x, y = w.input(0), w.outputs[0]
    return Runs(y.shape[0], rows, cols, x.shape[-1], y.shape[-1], kind, *tile, params.patch)


def read_zero(w: Workload, zero: int, kind: str) -> int:
    """Return the zero point of x as the kernel reads it: vectors take all bytes as signed."""
    return zero - 128 if kind == "mve" and w.input(0).dtype is DType.UINT8 else zero


def run_values(
    w: Workload, runs: Runs, epilogue: Epilogue, zero: int, first: int, indices: Sequence[str]
) -> dict[str, object]:
    """Return what the template needs; the epilogue's operands start at input `first`."""
    unsigned = w.input(0).dtype is DType.UINT8
    return {
        "r": runs, "single": replace(runs, pixels=1), "zero": zero, "unsigned": unsigned,
        "known": requantization(epilogue, w, first), "result": w.outputs[0].dtype.c,
        "epilogue": lambda total, q, m: result_lines(
            epilogue, w, first, [{"q": q, "m": m}.get(i, i) for i in indices], total, m
        ),
    }  # fmt: skip


KERNELS = (ConvRuns(),)
